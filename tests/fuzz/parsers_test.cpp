// The fuzz targets of every parser of texts from outside: whatever the text, it is read or refused with a reason, and
// what was read can be written and read again.
//   LZ_FUZZ_EXECUTIONS=10000000   texts per parser (default 2,000)      LZ_FUZZ_SEED=7   another sequence
//   LZ_FUZZ_SECONDS=300           ends each parser's loop after this time
// scripts/fuzz_parsers.sh runs them under sanitizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json_reader.h"
#include "base/signature.h"
#include "base/trusted_file.h"
#include "health/mark_file.h"
#include "health/markers.h"
#include "health/quarantine.h"
#include "mutate.h"
#include "perfdb/record.h"
#include "platform/device.h"
#include "policy/policy.h"
#include "registry/descriptor.h"
#include "registry/expression.h"
#include "registry/registry.h"
#include "test_paths.h"
#include "tokenize/tokenizer.h"
#include "worker/message.h"

namespace lz {
namespace {

const std::filesystem::path kRoot = LZ_SOURCE_DIR;

std::string Text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

uint64_t FromEnvironment(const char* name, uint64_t absent) {
  const char* value = std::getenv(name);
  return value && *value ? std::strtoull(value, nullptr, 10) : absent;
}

const Registry& Operations() {
  static const Registry registry;
  return registry;
}

// Parses changed texts; `parse` returns the status. A refusal has a code of files, a field and what was wanted.
void Fuzz(std::vector<std::string> seeds, const std::function<Status(const std::string&)>& parse,
          StatusCode code = StatusCode::kConfig, uint64_t least = 1000) {
  for (const std::string& seed : seeds) ASSERT_TRUE(parse(seed).ok()) << parse(seed).Text() << "\n" << seed;
  const uint64_t executions = FromEnvironment("LZ_FUZZ_EXECUTIONS", 2000);
  fuzz::Mutator mutator(std::move(seeds), FromEnvironment("LZ_FUZZ_SEED", 1));
  // Stops after LZ_FUZZ_SECONDS (default: never), and says how far it came.
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(FromEnvironment("LZ_FUZZ_SECONDS", 1u << 30));
  uint64_t accepted = 0, done = 0;
  for (; done < executions && (done % 256 || std::chrono::steady_clock::now() < end); ++done) {
    const std::string text = mutator.Next();
    const Status status = parse(text);
    if (status.ok()) {
      ++accepted;
      mutator.Keep(text);
      continue;
    }
    ASSERT_EQ(int(status.code()), int(code)) << status.Text() << "\n" << text;
    ASSERT_FALSE(status.parts().wanted.empty()) << text;
    ASSERT_LT(status.Text().size(), 20000u) << text.size();
  }
  std::cout << done << " texts (" << accepted << " accepted)\n";
  EXPECT_GE(accepted, least ? done / least : 0);  // the loop reaches what follows the first checks
  EXPECT_LT(accepted, done);
}

TEST(Parsers, Policy) {
  Fuzz({Text(kRoot / "policies/default.yaml"),
        "version: 1\nprefer_sources: [hwy, torch]\nlocks:\n  attention.causal: a.b\ncache: {enabled: true, max_size: "
        "12}\n",
        "rules:\n- match: {sm: \">=90\", operation: \"attention.*\", dtype: [a, b]}\n  prefer: \"flash_attn.v3.*\"\n"
        "- match:\n    seq_len: \">16384\"\n  avoid_sources:\n    - xformers\n",
        "security: {require_signatures: all, trusted_keys: [" + std::string(64, 'a') + "]}\ntp: {size: 8}\n"},
       [](const std::string& text) {
         const std::vector<PolicyLayer> layers = {{.name = "file", .yaml = text, .is_scope = false}};
         auto policy = ParsePolicy(layers);
         if (!policy.ok()) return policy.TakeStatus();
         EXPECT_TRUE(nlohmann::json::accept(PolicyJson(*policy))) << text;
         return Status();
       });
}

TEST(Parsers, Environment) {
  Fuzz({"LAYERZERO_PREFER=hwy,torch", "LAYERZERO_DISABLED=1", "LAYERZERO_LOCK_NORM_RMS=a.b", "LAYERZERO_VERBOSE=2",
        "LAYERZERO_LIBRARIES=openblas=libopenblas.so.0,onednn=/opt/lib/libdnnl.so.3",
        "LAYERZERO_METRICS=127.0.0.1:9464"},
       [](const std::string& text) {
         const size_t equals = text.find('=');
         const std::vector<std::pair<std::string, std::string>> variables = {
             {text.substr(0, equals), equals == text.npos ? "" : text.substr(equals + 1)}};
         auto layer = EnvironmentLayer(variables);
         if (!layer.ok()) return layer.TakeStatus();
         auto policy = ParsePolicy(std::vector<PolicyLayer>{*layer});
         return policy.ok() ? Status() : policy.TakeStatus();
       });
}

TEST(Parsers, Json) {
  Fuzz({R"({"a": [1, -2.5, "text", null, true], "b": {"c": {}}})", "[[[[1]]]]", R"("é\u00e9")"},
       [](const std::string& text) {
         auto value = ReadJson(text, {.what = "file"});
         if (!value.ok()) return value.TakeStatus();
         EXPECT_TRUE(ReadJson(value->dump(), {.what = "again"}).ok()) << text;
         return Status();
       });
}

TEST(Parsers, Descriptor) {
  std::vector<std::string> seeds = {Text(kRoot / "examples/plugin/capabilities.json")};
  for (const char* name : {"liger", "flash_attn", "quack"}) {
    seeds.push_back(Text(kRoot / "python/layerzero/backends" / name / "capabilities.json"));
  }
  std::erase_if(seeds, [](const std::string& text) { return text.size() > 8192; });
  Fuzz(std::move(seeds), [](const std::string& text) {
    auto descriptor = ParseDescriptor(text, "file", Operations());
    if (!descriptor.ok()) return descriptor.TakeStatus();
    EXPECT_EQ(descriptor->hash, Sha256Hex(text));
    return Status();
  });
}

TEST(Parsers, Records) {
  Fuzz({Text(kRoot / "tests/perfdb/records/valid.json"), R"({"schema_version": "1.0", "records": []})"},
       [](const std::string& text) {
         auto records = perfdb::ReadRecords(text, "file");
         if (!records.ok()) return records.TakeStatus();
         const std::string written = perfdb::WriteRecords(*records);
         auto again = perfdb::ReadRecords(written, "again");
         EXPECT_TRUE(again.ok() && perfdb::WriteRecords(*again) == written) << text;
         return Status();
       });
}

TEST(Parsers, Quarantine) {
  Fuzz({Text(kRoot / "src/health/known_wrong.json"),
        R"({"version": 1, "rows": [{"kernel": "a.k", "operation": "norm.rms", "outcome": "crashed", "since": 5,
            "until": 7, "strikes": 2, "device": "d", "version": "1", "driver": "580.65", "driver_versions":
            {"min": "1", "below": "2"}, "when": [{"field": "dtype", "relation": "==", "value": 2}]}]})"},
       [](const std::string& text) {
         auto rows = ReadQuarantine(text, "file");
         if (!rows.ok()) return rows.TakeStatus();
         for (const QuarantineRow& row : *rows) {
           const auto again = ReadQuarantine(nlohmann::json{{"version", 1}, {"rows", {RowToJson(row)}}}.dump(
                                                 -1, ' ', false, nlohmann::json::error_handler_t::replace),
                                             "again");
           EXPECT_TRUE(again.ok() && (*again)[0].IsSame(row)) << text;
           (void)row.library_versions.Holds(row.version);
         }
         return Status();
       });
}

// The file of a process's marks, and each mark as the rows that it becomes.
TEST(Parsers, Marks) {
  const std::string row =
      R"({"version": 1, "rows": [{"kernel": "a.k", "operation": "norm.rms", "outcome": "crashed", "since": 5}]})";
  const auto file = [&](std::initializer_list<size_t> slots) {
    std::string bytes;
    for (size_t slot : slots) {
      bytes.resize((slot + 1) * Markers::kSlotBytes);
      const auto length = uint32_t(row.size());
      std::memcpy(&bytes[slot * Markers::kSlotBytes], &length, sizeof(length));
      row.copy(&bytes[slot * Markers::kSlotBytes + sizeof(length)], row.size());
    }
    return bytes;
  };
  Fuzz({file({0}), file({0, 1, 3})}, [](const std::string& bytes) {
    std::string whole = bytes;
    whole.resize(Markers::kSlots * Markers::kSlotBytes);
    const std::vector<std::string> marks = MarksIn(whole, Markers::kSlots, Markers::kSlotBytes);
    EXPECT_TRUE(MarksIn(std::string_view(whole).substr(1), Markers::kSlots, Markers::kSlotBytes).empty());
    for (const std::string& mark : marks) {
      if (auto rows = ReadQuarantine(mark, "a mark"); !rows.ok()) return rows.TakeStatus();
    }
    return marks.empty() ? Status(StatusCode::kConfig, {.field = "marks", .wanted = "some"}) : Status();
  });
}

namespace {

worker::Value Tensor(lz_dtype dtype, std::initializer_list<int64_t> shape, uint64_t offset) {
  worker::Value value{.tag = worker::Value::Tag::kHost};
  value.place = {.dtype = dtype, .ndim = int32_t(shape.size()), .offset = offset};
  std::copy(shape.begin(), shape.end(), value.place.shape);
  std::copy(shape.begin(), shape.end(), value.place.strides);
  return value;
}
template <class Message>
std::string Written(const Message& message) {
  std::string memory(worker::kMaxMessage, '\0');
  worker::Writer writer(memory.data());
  EXPECT_TRUE(writer.Put(message).ok());
  memory.resize(writer.size());
  return memory;
}
// What was read is written as the same bytes, and its tensors are within the memory or refused.
template <class Message>
Status ReadAgain(const std::string& bytes, std::vector<worker::Value> Message::*values) {
  Message message;
  LZ_RETURN_IF_ERROR(worker::Read(bytes, &message));
  const std::string written = Written(message);
  Message again;
  EXPECT_TRUE(worker::Read(written, &again).ok());
  EXPECT_EQ((again.*values).size(), (message.*values).size());
  for (size_t i = 0; i < (message.*values).size(); ++i) {
    const worker::Place& place = (message.*values)[i].place;
    EXPECT_TRUE((again.*values)[i].place == place);
    constexpr uint64_t kEnd = uint64_t{1} << 30;
    const auto taken = worker::BytesWithin(place, worker::kDataAt, kEnd);
    if (taken.ok() && *taken > 0) {
      EXPECT_LE(place.offset + *taken, kEnd);
    }
  }
  return {};
}

}  // namespace

TEST(Parsers, WorkerCall) {
  worker::Call call{.function = 3, .threads = 2, .room = {worker::kDataAt, 65536}};
  call.arguments = {Tensor({2, 32, 1}, {4, 8}, worker::kDataAt),
                    {.tag = worker::Value::Tag::kFloat, .real = 1e-6},
                    {.tag = worker::Value::Tag::kInt, .integer = -1},
                    {.tag = worker::Value::Tag::kBool, .integer = 1},
                    {.tag = worker::Value::Tag::kText, .text = "exact"},
                    {},
                    Tensor({17, 4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}, worker::kDataAt + 64)};
  worker::Value device = Tensor({4, 16, 1}, {16}, 128);
  device.tag = worker::Value::Tag::kDevice;
  device.text = "handle";
  call.arguments.push_back(device);
  Fuzz(
      {Written(call), Written(worker::Call{})},
      [](const std::string& text) { return ReadAgain(text, &worker::Call::arguments); }, StatusCode::kInvalidRequest);
}

TEST(Parsers, WorkerAnswer) {
  worker::Answer answer{.is_tuple = true, .warnings = R"([{"text": "t"}])"};
  answer.results = {Tensor({2, 32, 1}, {4, 8}, worker::kDataAt), {}, Tensor({6, 8, 1}, {}, worker::kDataAt)};
  Fuzz(
      {Written(answer), Written(worker::Answer{.results = {{}}})},
      [](const std::string& text) { return ReadAgain(text, &worker::Answer::results); }, StatusCode::kInvalidRequest);
}

TEST(Parsers, WorkerRoom) {
  std::string memory(worker::kMaxMessage, '\0');
  worker::Writer room(memory.data()), need(memory.data() + 17);
  ASSERT_TRUE(room.PutRoom({worker::kDataAt, 1}).ok() && need.PutNeed(7).ok());
  Fuzz(
      {memory.substr(0, 17), memory.substr(17, 9)},
      [](const std::string& text) {
        worker::Room found;
        uint64_t bytes;
        const Status status = worker::Read(text, &found);
        return status.ok() ? Status() : worker::ReadNeed(text, &bytes);
      },
      StatusCode::kInvalidRequest);
}

TEST(Parsers, Signature) {
  const KeyPair pair = NewKeyPair();
  const std::vector<std::string> trusted = {pair.public_key};
  Fuzz(
      {*Sign("bytes", pair.pem, "key")},
      [&](const std::string& text) { return CheckSignature("file", "bytes", text, trusted); },
      StatusCode::kUntrustedFile, 0);
}

TEST(Parsers, PrivateKey) {
  Fuzz(
      {NewKeyPair().pem},
      [](const std::string& text) {
        auto made = Sign("bytes", text, "key");
        return made.ok() ? Status() : made.TakeStatus();
      },
      StatusCode::kConfig, 0);
}

TEST(Parsers, Device) {
  std::vector<std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "devices")) {
    if (entry.path().extension() == ".json") seeds.push_back(Text(entry.path()));
  }
  Fuzz(std::move(seeds), [](const std::string& text) {
    auto device = ParseDevice(text);
    return device.ok() ? Status() : device.TakeStatus();
  });
}

// What was read also encodes and decodes texts, whatever its vocabulary and merges are.
TEST(Parsers, Tokenizer) {
  const std::string marked = R"({"added_tokens": [{"id": 0, "content": "<unk>", "special": true, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": null, "post_processor": {"type": "BertProcessing", "cls": ["<unk>", 0], "sep": ["a", 1]},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "\u2581ab": 5},
      "merges": [["a", "b"], "\u2581 ab"]}})";
  const std::string byte_level = R"({"added_tokens": [{"id": 9, "content": "<s>", "lstrip": true, "special": true}],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false}]},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [9]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "layerzero_ranks": true, "ignore_merges": true, "ranks": [0, 1, 2, 3, 5],
      "vocab": {"a": 0, "\u0120": 1, "\u0120a": 2, "aa": 3, "aaa": 4}}})";
  Fuzz({marked, byte_level}, [](const std::string& text) {
    auto made = tokenize::Tokenizer::Make(text);
    if (!made.ok()) return made.TakeStatus();
    std::vector<int32_t> ids;
    for (const std::string& one : {std::string("ab a<s> aaaa 12\xC3\xA9 <unk>"), std::string(200, 'a'), text}) {
      std::vector<tokenize::Span> spans;
      const bool offsets = (*made)->has_offsets();
      const bool served = (*made)->Encode(one, true, &ids, offsets ? &spans : nullptr);
      EXPECT_LE(spans.size(), served ? ids.size() : 0);
      for (const tokenize::Span& span : spans) EXPECT_LE(span.start, span.end);
    }
    for (int32_t id : ids) EXPECT_LT(size_t(id), (*made)->num_ids());
    std::string decoded;
    (*made)->Decode(std::vector<int64_t>(ids.begin(), ids.end()), true, &decoded);
    return Status();
  });
}

TEST(Parsers, Expression) {
  Fuzz(
      {"b * h_q", "(hidden + 127) / 128", "n / format[1, 2]", "4 * (a + b) * c - 1"},
      [](const std::string& text) {
        auto expression = Expression::Parse(text, [](std::string_view name) {
          return name.size() < 8 ? std::optional<int>(int(name.size()) % 4) : std::nullopt;
        });
        if (!expression.ok()) return expression.TakeStatus();
        for (const auto& values :
             {std::array<int64_t, 8>{1, 2, 3, 4}, std::array<int64_t, 8>{INT64_MAX, INT64_MIN, -1, 0}}) {
          (void)expression->Evaluate(values.data());
        }
        return Status();
      },
      StatusCode::kInternal);
}

}  // namespace
}  // namespace lz
