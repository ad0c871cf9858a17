// The parts of a tokenizer.json around its model: normalizer, pre-tokenizer, post-processor, decoder.
#include "tokenize/spec_internal.h"
#include "tokenize/unicode.h"

namespace lz::tokenize {
namespace {

// The members of a Sequence, or the part itself.
template <class Read>
Status EachOf(const json& value, std::string_view field, std::string_view members, Read&& read, int depth = 0) {
  if (value.is_null()) return {};
  Object part(value, std::string(field));
  const std::string type = part.Text("type");
  LZ_RETURN_IF_ERROR(part.TakeStatus());
  if (type != "Sequence") return read(part, type);
  const json* list = part.Find(members);
  if (!list || !list->is_array() || depth > 4) return Unsupported(std::string(field), "a list of parts", "none");
  for (const json& member : *list) LZ_RETURN_IF_ERROR(EachOf(member, field, members, read, depth + 1));
  return {};
}

Status Refused(std::string_view field, std::string_view wanted, const std::string& got) {
  return Unsupported(std::string(field), std::string(wanted), got.empty() ? "a part without a type" : got);
}

// The text that a Replace is about; empty, with an error, for a regular expression.
std::string Replaced(Object& part) {
  const json* pattern = part.Find("pattern");
  if (pattern && pattern->is_object() && pattern->size() == 1) {
    const auto text = pattern->find("String");
    if (text != pattern->end() && text->is_string() && !text->get_ref<const std::string&>().empty()) {
      return text->get<std::string>();
    }
  }
  part.Fail("pattern", "a text, no regular expression");
  return {};
}

Status OneNormalizer(Object& part, const std::string& type, Spec* spec) {
  const auto add = [&](Normalizer step) {
    spec->normalizers.push_back(std::move(step));
    return part.TakeStatus();
  };
  if (type == "NFC") return add({.kind = Normalizer::kStays, .bits = kStaysNfc});
  if (type == "NFKC") return add({.kind = Normalizer::kStays, .bits = kStaysNfkc});
  if (type == "NFD") return add({.kind = Normalizer::kStays, .bits = kStaysNfd});
  if (type == "NFKD") return add({.kind = Normalizer::kStays, .bits = kStaysNfkd});
  if (type == "Lowercase") return add({.kind = Normalizer::kLowercase, .bits = kStaysLower});
  if (type == "Prepend") return add({.kind = Normalizer::kPrepend, .text = part.Text("prepend")});
  if (type == "Replace") {
    return add({.kind = Normalizer::kReplace, .from = Replaced(part), .text = part.Text("content")});
  }
  return Refused("normalizer", "NFC, NFKC, NFD, NFKD, Lowercase, Prepend or Replace", type);
}

Status OnSplit(Object& part, Spec* spec) {
  part.Only({"type", "pattern", "behavior", "invert"});
  const json* pattern = part.Find("pattern");
  const bool one = pattern && pattern->is_object() && pattern->size() == 1 && pattern->front().is_string();
  const bool tiktoken = one && pattern->begin().key() == "Tiktoken";
  if (part.Text("behavior") != "Isolated") part.Fail("behavior", "Isolated");
  if (part.Bool("invert", false)) part.Fail("invert", "false");
  LZ_RETURN_IF_ERROR(part.TakeStatus());
  const bool regex = tiktoken || (one && pattern->begin().key() == "Regex");
  const Splitter splitter =
      regex ? SplitterOf(pattern->front().get_ref<const std::string&>(), tiktoken) : Splitter::kWhole;
  if (splitter == Splitter::kWhole || spec->byte_level || spec->single_digits || spec->splitter != Splitter::kWhole) {
    part.Fail("pattern", "one of the known regular expressions, before ByteLevel, without Digits");
  }
  spec->splitter = splitter;
  return part.TakeStatus();
}

Status OnByteLevel(Object& part, bool alone, Spec* spec) {
  part.Only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  const bool regex = part.Bool("use_regex", true), space = part.Bool("add_prefix_space", true);
  if (spec->byte_level) part.Fail("type", "ByteLevel once");
  if (space && !alone) part.Fail("add_prefix_space", "false with other parts");
  if (regex && spec->splitter != Splitter::kWhole) part.Fail("use_regex", "false after Split");
  if (regex) spec->splitter = Splitter::kGpt2;
  spec->byte_level = true;
  spec->add_prefix_space = space;
  return part.TakeStatus();
}

Status OnDigits(Object& part, Spec* spec) {
  part.Only({"type", "individual_digits"});
  if (!part.Bool("individual_digits", false)) part.Fail("individual_digits", "true");
  if (spec->byte_level || spec->splitter != Splitter::kWhole)
    part.Fail("type", "Digits before ByteLevel, without Split");
  spec->single_digits = true;
  return part.TakeStatus();
}

Status OnMetaspace(Object& part, bool alone, Spec* spec) {
  part.Only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string scheme = part.Text("prepend_scheme", part.Bool("add_prefix_space", true) ? "always" : "never");
  spec->metaspace = true;
  spec->metaspace_split = part.Bool("split", true);
  spec->mark = part.Text("replacement", std::string(kMetaspace));
  spec->prefix = scheme == "always" ? Spec::kAlways : scheme == "first" ? Spec::kFirst : Spec::kNever;
  if (scheme != "always" && scheme != "first" && scheme != "never")
    part.Fail("prepend_scheme", "always, first or never");
  if (!alone) part.Fail("type", "Metaspace alone");
  if (spec->mark != kMetaspace) part.Fail("replacement", "U+2581");
  return part.TakeStatus();
}

// A special token by its name in a template: its ids.
Status IdsOf(const Object& part, const json& special, std::vector<int32_t>* ids) {
  const json* table = part.Find("special_tokens");
  const auto name = special.is_object() ? special.find("id") : special.end();
  if (table && table->is_object() && special.is_object() && name != special.end() && name->is_string()) {
    const auto token = table->find(name->get_ref<const std::string&>());
    if (token != table->end() && token->is_object() && token->contains("ids") && (*token)["ids"].is_array()) {
      for (const json& id : (*token)["ids"]) {
        if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= Object::kMostIds) break;
        ids->push_back(id.get<int32_t>());
      }
      if (!(*token)["ids"].empty()) return {};
    }
  }
  return Unsupported("post_processor.single", "special tokens with ids", "another part");
}

Status OnTemplate(Object& part, Spec* spec) {
  part.Only({"type", "single", "pair", "special_tokens"});
  LZ_RETURN_IF_ERROR(part.TakeStatus());
  const json* single = part.Find("single");
  if (!single || !single->is_array()) return Unsupported("post_processor.single", "a list", "none");
  bool seen = false;
  for (const json& piece : *single) {
    if (piece.is_object() && piece.size() == 1 && piece.contains("Sequence") && !seen) {
      const json& sequence = piece["Sequence"];
      if (!sequence.is_object() || sequence.value("id", json()) != "A") break;
      seen = true;
    } else if (piece.is_object() && piece.size() == 1 && piece.contains("SpecialToken")) {
      LZ_RETURN_IF_ERROR(IdsOf(part, piece["SpecialToken"], seen ? &spec->after : &spec->before));
    } else {
      return Unsupported("post_processor.single", "special tokens around the text", "another part");
    }
  }
  return seen ? Status() : Unsupported("post_processor.single", "the text once", "none");
}

// RobertaProcessing and BertProcessing: "cls" and "sep" are [token, id].
Status OnClsSep(Object& part, Spec* spec) {
  part.Only({"type", "cls", "sep", "trim_offsets", "add_prefix_space"});
  for (const auto& [name, ids] : {std::pair{"cls", &spec->before}, std::pair{"sep", &spec->after}}) {
    const json* pair = part.Find(name);
    if (!pair || !pair->is_array() || pair->size() != 2 || !(*pair)[1].is_number_integer() ||
        (*pair)[1].get<int64_t>() < 0 || (*pair)[1].get<int64_t>() >= Object::kMostIds) {
      part.Fail(name, "a token and its id");
      break;
    }
    ids->push_back((*pair)[1].get<int32_t>());
  }
  return part.TakeStatus();
}

Status OnePostProcessor(Object& part, const std::string& type, Spec* spec) {
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    spec->trim_offsets = part.Bool("trim_offsets", true);
    spec->trim_prefix_space = part.Bool("add_prefix_space", true);
  }
  if (type == "ByteLevel") return part.TakeStatus();
  if (!spec->before.empty() || !spec->after.empty()) return Refused("post_processor", "one template", "two");
  if (type == "TemplateProcessing") return OnTemplate(part, spec);
  if (type == "RobertaProcessing" || type == "BertProcessing") return OnClsSep(part, spec);
  return Refused("post_processor", "ByteLevel, TemplateProcessing, RobertaProcessing or BertProcessing", type);
}

int Count(Object& part, std::string_view name) {
  const json* value = part.Find(name);
  if (value && value->is_number_integer() && value->get<int64_t>() >= 0 && value->get<int64_t>() < 256) {
    return value->get<int>();
  }
  part.Fail(name, "a number below 256");
  return 0;
}

Status OneDecoder(Object& part, const std::string& type, Spec* spec) {
  const auto add = [&](Decoder step) {
    spec->decoders.push_back(std::move(step));
    return part.TakeStatus();
  };
  if (type == "ByteLevel") return add({.kind = Decoder::kBytes});
  if (type == "ByteFallback") return add({.kind = Decoder::kByteFallback});
  if (type == "Fuse") return add({.kind = Decoder::kFuse});
  if (type == "Replace") return add({.kind = Decoder::kReplace, .from = Replaced(part), .text = part.Text("content")});
  if (type == "Metaspace") {
    const bool strips = part.Text("prepend_scheme", "always") != "never";
    return add({.kind = Decoder::kMetaspace,
                .from = part.Text("replacement", std::string(kMetaspace)),
                .start = strips ? 1 : 0});
  }
  if (type == "Strip") {
    std::string content = part.Text("content");
    if (content.empty()) part.Fail("content", "a character");
    return add({.kind = Decoder::kStrip,
                .from = std::move(content),
                .start = Count(part, "start"),
                .stop = Count(part, "stop")});
  }
  return Refused("decoder", "ByteLevel, Replace, ByteFallback, Fuse, Strip or Metaspace", type);
}

}  // namespace

Status ReadNormalizer(const json& value, Spec* spec) {
  return EachOf(value, "normalizer", "normalizers",
                [&](Object& part, const std::string& type) { return OneNormalizer(part, type, spec); });
}

Status ReadPreTokenizer(const json& value, Spec* spec) {
  const bool alone = !value.is_object() || value.value("type", json()) != "Sequence";
  return EachOf(value, "pre_tokenizer", "pretokenizers", [&](Object& part, const std::string& type) {
    if (type == "Split") return OnSplit(part, spec);
    if (type == "ByteLevel") return OnByteLevel(part, alone, spec);
    if (type == "Digits") return OnDigits(part, spec);
    if (type == "Metaspace") return OnMetaspace(part, alone, spec);
    return Refused("pre_tokenizer", "Split, ByteLevel, Digits or Metaspace", type);
  });
}

Status ReadPostProcessor(const json& value, Spec* spec) {
  return EachOf(value, "post_processor", "processors",
                [&](Object& part, const std::string& type) { return OnePostProcessor(part, type, spec); });
}

Status ReadDecoder(const json& value, Spec* spec) {
  LZ_RETURN_IF_ERROR(EachOf(value, "decoder", "decoders",
                            [&](Object& part, const std::string& type) { return OneDecoder(part, type, spec); }));
  for (size_t i = 0; i < spec->decoders.size(); ++i) {
    const Decoder::Kind kind = spec->decoders[i].kind;
    if ((kind == Decoder::kBytes || kind == Decoder::kMetaspace) && spec->decoders.size() > 1) {
      return Unsupported("decoder", "ByteLevel or Metaspace alone", "a sequence with one");
    }
  }
  return {};
}

}  // namespace lz::tokenize
