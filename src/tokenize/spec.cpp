#include "tokenize/spec.h"

#include <algorithm>
#include <unordered_map>

#include "base/json_reader.h"
#include "tokenize/spec_internal.h"
#include "tokenize/unicode.h"

namespace lz::tokenize {
namespace {

constexpr int64_t kGap = 4096;  // ids that no token has, at most

using Ids = std::unordered_map<std::string, int32_t>;

// The byte of each code point below 0x144 of the byte-level alphabet (OpenAI's GPT-2), or -1.
struct Alphabet {
  Alphabet() {
    std::fill(std::begin(bytes), std::end(bytes), int16_t(-1));
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printed = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      bytes[printed ? b : next++] = int16_t(b);
    }
  }
  int16_t bytes[0x144];
};

Status Place(std::string token, int32_t id, bool in_model, Spec* spec) {
  if (size_t(id) >= spec->tokens.size()) {
    spec->tokens.resize(size_t(id) + 1);
    spec->present.resize(size_t(id) + 1);
    spec->in_model.resize(size_t(id) + 1);
  }
  if (in_model && spec->in_model[size_t(id)]) return Unsupported("vocab", "one token for an id", std::to_string(id));
  spec->tokens[size_t(id)] = std::move(token);
  spec->present[size_t(id)] = true;
  if (in_model) spec->in_model[size_t(id)] = true;
  return {};
}

Status ReadVocab(Object& model, Ids* ids, Spec* spec) {
  const json* vocab = model.Find("vocab");
  if (!vocab || !vocab->is_object()) return Unsupported("model.vocab", "an object", "none");
  ids->reserve(vocab->size());
  // Ids are dense but for a few: a table by id is not much larger than the text that named them.
  const int64_t most = std::min<int64_t>(2 * int64_t(vocab->size()) + kGap, Object::kMostIds);
  for (const auto& [token, id] : vocab->items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= most) {
      return Unsupported("model.vocab", "ids from 0 to " + std::to_string(most - 1),
                         id.dump(-1, ' ', false, json::error_handler_t::replace));
    }
    ids->emplace(token, id.get<int32_t>());
    LZ_RETURN_IF_ERROR(Place(token, id.get<int32_t>(), true, spec));
  }
  return {};
}

// The two tokens of a merge: ["a", "b"], or "a b" in older files.
bool Halves(const json& merge, std::string* left, std::string* right) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    *left = merge[0].get<std::string>();
    *right = merge[1].get<std::string>();
    return true;
  }
  if (!merge.is_string()) return false;
  const auto& text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) return false;
  *left = text.substr(0, space);
  *right = text.substr(space + 1);
  return true;
}

Status ReadMerges(Object& model, const Ids& ids, Spec* spec) {
  const json* merges = model.Find("merges");
  if (!merges || !merges->is_array()) return Unsupported("model.merges", "a list", "none");
  std::string left, right;
  for (const json& merge : *merges) {
    if (!Halves(merge, &left, &right)) return Unsupported("model.merges", "pairs of tokens", "another value");
    const auto l = ids.find(left), r = ids.find(right), whole = ids.find(left + right);
    if (l == ids.end() || r == ids.end() || whole == ids.end()) {
      return Unsupported("model.merges", "tokens of the vocabulary", (left + " " + right).substr(0, 100));
    }
    spec->merges.push_back({l->second, r->second, int32_t(spec->merges.size()), whole->second});
  }
  return {};
}

Status RanksOf(Object& model, std::vector<int32_t>* ranks) {
  const json* list = model.Find("ranks");
  for (size_t i = 0; i < ranks->size(); ++i) (*ranks)[i] = int32_t(i);
  if (!list) return {};
  if (!list->is_array() || list->size() != ranks->size()) {
    return Unsupported("model.ranks", "one for each of " + std::to_string(ranks->size()) + " ids", "others");
  }
  for (size_t i = 0; i < ranks->size(); ++i) {
    const json& rank = (*list)[i];
    if (!rank.is_number_integer() || rank.get<int64_t>() < -1 || rank.get<int64_t>() > INT32_MAX) {
      return Unsupported("model.ranks", "ranks, -1 for none", "another value");
    }
    (*ranks)[i] = rank.get<int32_t>();
  }
  return {};
}

// Every division of a token into two others is a merge of the token's rank.
Status AllMerges(Object& model, const Ids& ids, Spec* spec) {
  std::vector<int32_t> ranks(spec->tokens.size());
  LZ_RETURN_IF_ERROR(RanksOf(model, &ranks));
  for (const auto& [token, id] : ids) {
    if (ranks[size_t(id)] < 0) continue;
    if (token.size() > 4096) return Unsupported("model.vocab", "tokens of at most 4096 bytes", "a longer one");
    for (size_t at = 1; at < token.size(); ++at) {
      if ((token[at] & 0xC0) == 0x80) continue;
      const auto left = ids.find(token.substr(0, at));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(at));
      if (right == ids.end()) continue;
      spec->merges.push_back({left->second, right->second, ranks[size_t(id)], id});
    }
  }
  return {};
}

Status ReadModel(const json& value, Ids* ids, Spec* spec) {
  Object model(value, "model");
  LZ_RETURN_IF_ERROR(model.TakeStatus());
  const std::string type = model.Text("type", model.Find("merges") ? "BPE" : "");
  if (type != "BPE") return Unsupported("model.type", "BPE", type.empty() ? "none" : type);
  model.Only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges", "layerzero_ranks", "ranks"});
  if (const json* dropout = model.Find("dropout"); dropout && (!dropout->is_number() || dropout->get<double>() != 0)) {
    model.Fail("dropout", "none");
  }
  for (const auto* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.Text(affix).empty()) model.Fail(affix, "none");
  }
  spec->fuse_unknown = model.Bool("fuse_unk", false);
  spec->byte_fallback = model.Bool("byte_fallback", false);
  spec->ignore_merges = model.Bool("ignore_merges", false);
  const bool all = model.Bool("layerzero_ranks", false);
  const std::string unknown = model.Text("unk_token");
  LZ_RETURN_IF_ERROR(model.TakeStatus());
  LZ_RETURN_IF_ERROR(ReadVocab(model, ids, spec));
  if (model.Find("unk_token")) {
    const auto found = ids->find(unknown);
    if (found == ids->end()) return Unsupported("model.unk_token", "a token of the vocabulary", unknown.substr(0, 100));
    spec->unknown = found->second;
  }
  spec->decodes_tokens_alone = all;
  return all ? AllMerges(model, *ids, spec) : ReadMerges(model, *ids, spec);
}

bool HasSpace(std::string_view text) {
  const CodeTable& table = CodeTable::Get();
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Code code = CodeAt(at);
    if (table[code.value] & kSpace) return true;
    at += code.bytes;
  }
  return false;
}

Status ReadAdded(const json& list, const Ids& ids, Spec* spec) {
  if (list.is_null()) return {};
  if (!list.is_array()) return Unsupported("added_tokens", "a list", list.type_name());
  bool strips = false, spaced = false;
  for (const json& value : list) {
    Object token(value, "added_tokens[" + std::to_string(spec->added.size()) + "]");
    token.Only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    if (token.Bool("single_word", false)) token.Fail("single_word", "false");
    AddedToken added{.content = token.Text("content"),
                     .id = token.Id("id"),
                     .special = token.Bool("special", false),
                     .normalized = token.Bool("normalized", true),
                     .lstrip = token.Bool("lstrip", false),
                     .rstrip = token.Bool("rstrip", false)};
    if (added.content.empty()) token.Fail("content", "a text that is not empty");
    LZ_RETURN_IF_ERROR(token.TakeStatus());
    const auto known = ids.find(added.content);
    if (known != ids.end() && known->second != added.id) {
      return Unsupported("added_tokens", "the vocabulary's id of " + added.content.substr(0, 100),
                         std::to_string(added.id));
    }
    if (added.id > int64_t(spec->tokens.size()) + kGap) {
      return Unsupported("added_tokens", "ids without large gaps", std::to_string(added.id));
    }
    strips |= added.lstrip || added.rstrip;
    spaced |= HasSpace(added.content);
    if (known == ids.end()) LZ_RETURN_IF_ERROR(Place(added.content, added.id, false, spec));
    spec->added.push_back(std::move(added));
  }
  if (strips && spaced) return Unsupported("added_tokens", "no white space in them where one has lstrip", "some");
  return {};
}

// What is correct for each part and not for all together.
Status CheckTogether(const Spec& spec) {
  for (const AddedToken& added : spec.added) {
    if (added.normalized && !spec.normalizers.empty() &&
        std::any_of(added.content.begin(), added.content.end(),
                    [](char c) { return c & 0x80 || c == ' ' || (c >= 'A' && c <= 'Z'); })) {
      return Unsupported("added_tokens", "none that a normalizer could change", added.content.substr(0, 100));
    }
    if (added.normalized && std::any_of(spec.normalizers.begin(), spec.normalizers.end(), [&](const Normalizer& step) {
          return step.kind == Normalizer::kPrepend || (step.kind == Normalizer::kReplace && step.from != " ");
        })) {
      return Unsupported("added_tokens", "none that is normalized with Prepend or Replace",
                         added.content.substr(0, 100));
    }
  }
  if (spec.byte_level && (spec.byte_fallback || spec.metaspace)) {
    return Unsupported("pre_tokenizer", "byte level, or byte fallback with metaspace", "both");
  }
  if (!spec.byte_level && spec.splitter != Splitter::kWhole) {
    return Unsupported("pre_tokenizer", "ByteLevel after Split", "Split alone");
  }
  return {};
}

}  // namespace

bool BytesOf(std::string_view token, std::string* bytes) {
  static const Alphabet alphabet;
  bytes->clear();
  for (const char *at = token.data(), *end = at + token.size(); at < end;) {
    const Code code = CodeAt(at);
    if (code.value >= 0x144 || alphabet.bytes[code.value] < 0) return false;
    bytes->push_back(char(alphabet.bytes[code.value]));
    at += code.bytes;
  }
  return true;
}

Result<Spec> ReadSpec(std::string_view text) {
  auto read = ReadJson(text, {.what = "tokenizer", .max_bytes = size_t{1} << 28, .max_values = size_t{1} << 23});
  if (!read.ok()) return read.TakeStatus();
  if (!read->is_object()) return Unsupported("the file", "an object", read->type_name());
  const json& file = *read;
  const auto part = [&](const char* name) -> const json& {
    static const json null;
    const auto found = file.find(name);
    return found == file.end() ? null : *found;
  };
  Spec spec;
  Ids ids;
  LZ_RETURN_IF_ERROR(ReadModel(part("model"), &ids, &spec));
  LZ_RETURN_IF_ERROR(ReadAdded(part("added_tokens"), ids, &spec));
  LZ_RETURN_IF_ERROR(ReadNormalizer(part("normalizer"), &spec));
  LZ_RETURN_IF_ERROR(ReadPreTokenizer(part("pre_tokenizer"), &spec));
  LZ_RETURN_IF_ERROR(ReadPostProcessor(part("post_processor"), &spec));
  LZ_RETURN_IF_ERROR(ReadDecoder(part("decoder"), &spec));
  LZ_RETURN_IF_ERROR(CheckTogether(spec));
  for (int32_t id : spec.before) {
    if (size_t(id) >= spec.tokens.size()) return Unsupported("post_processor", "known ids", std::to_string(id));
  }
  for (int32_t id : spec.after) {
    if (size_t(id) >= spec.tokens.size()) return Unsupported("post_processor", "known ids", std::to_string(id));
  }
  return spec;
}

}  // namespace lz::tokenize
