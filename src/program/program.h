// A fixed list of operations that one call runs over one arena; it replaces a block of a model, or all of its blocks.
// Every step is a call of the engine like any other (contract, policy, plan, fallback). The program saves the overhead
// between them: no outputs are allocated, nothing is selected twice for the same sizes, and the threads stay together.
//
//   auto program = Program::Make(engine, std::move(values), std::move(steps));
//   LZ_RETURN_IF_ERROR(program->Run(arguments));
//
// Rows: every position of every sequence of a run is one row, [batch, length]. A value is the content of the rows at
// one point of the program (`width` elements per row), a weight, a tensor that each run supplies, or a KV cache.
// Immutable and re-entrant: any number of threads may run one program, each with its own caches.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace lz {

struct ProgramValue {
  enum class Kind : uint8_t {
    kWeight,  // fixed; the caller owns its memory
    kInput,   // a tensor of each run, passed on unchanged; may be absent. Operations that write their operands may
              // write it
    kRows,    // [batch, length, width], in the arena
    kOutput,  // [batch, length, width], in the caller's memory
    kCache,   // [batch, capacity, width] of each run, in the caller's memory: rows of this run are written after `past`
  };
  Kind kind = Kind::kRows;
  int64_t width = 0;  // elements per row; for rows and outputs
  DType dtype = DType::kUnknown;
  lz_tensor weight{.ndim = -1};  // shape and strides point into the two members below
  std::vector<int64_t> shape, strides;
};

// How a step reads or writes a value.
struct Operand {
  int32_t value = -1;         // -1: absent
  int64_t column = 0;         // first element within a row
  std::vector<int64_t> axes;  // the axes of its elements, e.g. {heads, head_dim}; not for weights and inputs
  bool past = false;          // caches: all positions so far, otherwise those of this run
  int64_t step = 0;           // elements of a row between entries of the first axis; 0: dense
  bool packed = false;        // rows: batch and length are one axis, as operations on packed sequences expect it
};

struct ProgramStep {
  const Operation* op = nullptr;
  std::vector<Operand> inputs, outputs;  // in the operation's order
  std::vector<lz_scalar> scalars;
};

// How to keep the tensors of a run alive: host kernels may keep what they borrow. Called from any thread.
struct RunOwner {
  void (*retain)(void* owner);
  void (*release)(void* owner);
};

struct RunArguments {
  int64_t batch = 0, length = 0, past = 0;
  std::span<const lz_tensor> inputs;   // by kInput value; ndim -1: absent
  std::span<const lz_tensor> outputs;  // by kOutput value: dense
  std::span<const lz_tensor> caches;   // by kCache value; any strides
  const lz_parallel* parallel = nullptr;
  int64_t policy = 0;
  void* owner = nullptr;
  const RunOwner* owner_calls = nullptr;  // nullptr: no host kernel keeps a tensor
  const RunListener* listener = nullptr;
};

class ProgramRun;

class LZ_OWN Program {
 public:
  // Refuses steps that read values that no step wrote, overwrite what they read, or do not fit their
  // operations' parameters.
  static Result<std::unique_ptr<Program>> Make(Engine& engine, std::vector<ProgramValue> values,
                                               std::vector<ProgramStep> steps);
  ~Program();

  Status Run(const RunArguments& arguments);
  // The plans that would run; data pointers are not read.
  Result<std::vector<const Plan*>> Plans(const RunArguments& arguments);
  Result<std::string> Explain(const RunArguments& arguments, size_t step);  // JSON, as Engine::Explain

  const std::vector<ProgramValue>& values() const { return values_; }
  const std::vector<ProgramStep>& steps() const { return steps_; }
  int64_t ArenaBytes(int64_t rows) const { return rows * row_bytes_; }
  // Room for the outputs of one step, wherever the step writes them.
  int64_t SpareBytes(int64_t rows) const { return rows * spare_row_bytes_; }
  // Place of a kRows value in the arena: bytes before it, per row of the run.
  int64_t place(int32_t value) const { return places_[size_t(value)]; }
  // True if a step writes the tensor that a run passes as this input.
  bool WritesInput(size_t index) const { return index < written_inputs_.size() && written_inputs_[index]; }
  int32_t index_of_kind(int32_t value) const { return index_of_kind_[size_t(value)]; }
  Engine& engine() const { return engine_; }

 private:
  Program(Engine& engine, std::vector<ProgramValue> values, std::vector<ProgramStep> steps);
  void PlaceRows();
  void FindCacheAxes();
  void FindWrittenInputs();
  Status CheckSizes(const RunArguments& arguments) const;
  Status CheckArguments(const RunArguments& arguments) const;
  Status CheckInput(const RunArguments& arguments, size_t index) const;
  Status CheckOutput(const RunArguments& arguments, size_t index, const ProgramValue& value) const;
  Status CheckCache(const RunArguments& arguments, size_t index, const ProgramValue& value) const;
  std::unique_ptr<ProgramRun> Take();
  void Return(std::unique_ptr<ProgramRun> run);

  Engine& engine_;
  std::vector<ProgramValue> values_;
  std::vector<ProgramStep> steps_;
  std::vector<int64_t> places_;
  std::vector<int32_t> index_of_kind_;
  std::array<size_t, 5> count_of_kind_{};
  std::vector<std::vector<int64_t>> cache_axes_;  // by kCache value; none: no step uses it
  std::vector<bool> written_inputs_;              // by kInput value
  int64_t row_bytes_ = 0, spare_row_bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ProgramRun>> idle_;  // with the plans of their last sizes
};

}  // namespace lz
