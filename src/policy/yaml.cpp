// Reads YAML by events, so that limits hold before anything is built. ReadYaml catches all exceptions of yaml-cpp.
#include "policy/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace lz {
namespace {

// Thrown in the handler to stop reading; never leaves this file.
struct Refused {
  int line;
  std::string wanted;
  std::string got;
  std::string fix;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { line_ = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Open({.kind = YamlNode::Kind::kNull, .line = mark.line + 1}, "", anchor);
    Close();
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { RefuseAnchor(mark.line + 1); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Open({.kind = YamlNode::Kind::kScalar, .quoted = tag == "!", .line = mark.line + 1, .text = value}, tag, anchor);
    Close();
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open({.kind = YamlNode::Kind::kList, .line = mark.line + 1}, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open({.kind = YamlNode::Kind::kMap, .line = mark.line + 1}, tag, anchor);
  }
  void OnMapEnd() override {
    RefuseDuplicates(open_.back());
    Close();
  }

  YamlNode TakeRoot() { return std::move(root_); }
  int line() const { return line_; }

 private:
  [[noreturn]] static void RefuseAnchor(int line) {
    throw Refused{line, "plain values", "an anchor or an alias (& or *)", "write the value out, or quote the text"};
  }

  void Open(YamlNode node, const std::string& tag, YAML::anchor_t anchor) {
    line_ = std::max(line_, node.line);
    if (anchor != 0) RefuseAnchor(node.line);
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused{node.line, "values without tags", "the tag " + tag, "remove the tag"};
    }
    if (open_.size() >= size_t(kMaxPolicyDepth)) {
      throw Refused{node.line, "at most " + std::to_string(kMaxPolicyDepth) + " levels", "deeper nesting", ""};
    }
    const bool is_key = !open_.empty() && open_.back().kind == YamlNode::Kind::kMap &&
                        open_.back().keys.size() == open_.back().items.size();
    if (is_key && node.kind != YamlNode::Kind::kScalar) throw Refused{node.line, "a name as key", GotText(node), ""};
    open_.push_back(std::move(node));
  }

  void Close() {
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (YamlNode& parent = open_.back();
               parent.kind == YamlNode::Kind::kMap && parent.keys.size() == parent.items.size()) {
      parent.keys.push_back(std::move(node));
    } else {
      parent.items.push_back(std::move(node));
    }
  }

  static void RefuseDuplicates(const YamlNode& map) {
    std::vector<const YamlNode*> sorted;
    sorted.reserve(map.keys.size());
    for (const YamlNode& key : map.keys) sorted.push_back(&key);
    std::stable_sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->text < b->text; });
    for (size_t i = 1; i < sorted.size(); ++i) {
      if (sorted[i]->text != sorted[i - 1]->text) continue;
      throw Refused{sorted[i]->line, "each key once",
                    GotText(*sorted[i]) + " again, first in line " + std::to_string(sorted[i - 1]->line),
                    "remove one of them"};
    }
  }

  std::vector<YamlNode> open_;  // the path to the node being read
  YamlNode root_;
  int line_ = 1;
};

}  // namespace

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = uint8_t(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((uint8_t(text[i + k]) & 0xC0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

std::string GotText(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return "nothing";
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kMap: return "a map";
    case YamlNode::Kind::kScalar: break;
  }
  constexpr size_t kShown = 60;
  std::string text = node.text.substr(0, kShown);
  while (node.text.size() > kShown && !IsUtf8(text)) text.pop_back();  // not within a character
  std::replace_if(
      text.begin(), text.end(), [](char c) { return uint8_t(c) < 32 || c == 127; }, ' ');
  return "'" + text + (node.text.size() > kShown ? "...'" : "'");
}

std::string PolicySource::At(int line) const {
  const bool one_line_of_json = text.starts_with('{') && text.find('\n') == std::string_view::npos;
  return one_line_of_json || line <= 0 ? std::string(name) : std::string(name) + ":" + std::to_string(line);
}

Status PolicySource::Error(int line, std::string_view key, std::string wanted, std::string got, std::string fix) const {
  return Status(StatusCode::kConfig, {.field = At(line) + (key.empty() ? "" : ": " + std::string(key)),
                                      .wanted = std::move(wanted),
                                      .got = std::move(got),
                                      .fix = std::move(fix)});
}

Result<YamlNode> ReadYaml(const PolicySource& source) {
  if (source.text.size() > kMaxPolicyBytes) {
    return source.Error(0, "", "at most " + std::to_string(kMaxPolicyBytes) + " bytes",
                        std::to_string(source.text.size()) + " bytes");
  }
  if (!IsUtf8(source.text)) return source.Error(0, "", "UTF-8 text", "bytes that are not UTF-8");
  if (source.text.find('\0') != source.text.npos) return source.Error(0, "", "text without zero bytes", "a zero byte");
  TreeBuilder builder;
  try {
    std::istringstream stream{std::string(source.text)};
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      YamlNode root = builder.TakeRoot();
      TreeBuilder more;
      if (parser.HandleNextDocument(more)) {
        return source.Error(more.line(), "", "one document", "a second one", "remove it");
      }
      return root;
    }
    return YamlNode{};
  } catch (const Refused& refused) {
    return source.Error(refused.line, "", refused.wanted, refused.got, refused.fix);
  } catch (const YAML::Exception& e) {
    return source.Error(e.mark.is_null() ? builder.line() : e.mark.line + 1, "", "valid YAML", e.msg);
  } catch (const std::exception& e) {
    return source.Error(builder.line(), "", "valid YAML", e.what());
  }
}

}  // namespace lz
