// The state of one run of a program: requests bound to its sizes, and the arena. One thread at a time.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/team.h"
#include "program/program.h"

namespace lz {

// True if the plan's kernel writes outputs with any outer strides; otherwise it gets dense memory, from which they
// are moved.
bool TakesStridedOutputs(const Plan& plan);

class ProgramRun {
 public:
  explicit ProgramRun(const Program& program);

  Status Run(const RunArguments& arguments);
  // Binds without running.
  Status Bind(const RunArguments& arguments);
  const Plan* plan(size_t step) const { return steps_[step].plan; }
  // Returns the request of one step, not prepared.
  Result<Request*> Fill(const RunArguments& arguments, size_t step);

 private:
  struct Step {
    explicit Step(const ProgramStep& what) : request(*what.op) {}
    Request request;
    InlineCache site;
    const Plan* plan = nullptr;
    int64_t policy = -1;
    bool steady = true;   // its tensors depend on the place only
    uint64_t bound = 0;   // the place for which it is bound
    uint32_t copied = 0;  // outputs that the kernel writes densely into `spare`, to be moved from there
    std::array<std::array<int64_t, 2 * kMaxRank>, kMaxTensors> sizes;
  };

  // What a run shares with the previous one: as long as it does not change, steady steps stay bound.
  struct Place {
    char* memory = nullptr;
    int64_t batch = 0, length = 0, policy = -1;
    uint64_t generation = 0;  // generation of registrations, policies and devices
    bool operator==(const Place&) const = default;
  };

  Status Begin(const RunArguments& arguments);
  void Prefetch(size_t step) const;
  bool SetInputs(const ProgramStep& what, Step& step);
  // `select`: chooses a kernel if none is known; otherwise the step is left without a plan.
  Status BindStep(const ProgramStep& what, Step& step, bool select = true);
  Status SetOutputs(const ProgramStep& what, Step& step);
  lz_tensor View(const Operand& operand, int64_t* sizes) const;
  lz_tensor RowsView(const Operand& operand, const ProgramValue& value, size_t index, int64_t* sizes) const;
  lz_tensor CacheView(const Operand& operand, const lz_tensor& given, int64_t* sizes) const;
  template <class Call>
  Status RunStep(Step& step, Call&& call);
  struct StepCaller;
  Status RunTogether(size_t* step, StepCaller& caller);
  Status RunAfterFailure(Step& step, StepCaller& caller, Status first);

  const Program& program_;
  const RunArguments* arguments_ = nullptr;
  std::vector<Step> steps_;
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();  // host kernels may hold it beyond the run
  Team team_;
  char* memory_ = nullptr;
  Place place_;
  Missed missed_;                    // of the last look-up that found nothing
  const Step* missed_by_ = nullptr;  // the step that the team has left without a plan
  uint64_t num_places_ = 0;          // places so far: the number of the current one
};

}  // namespace lz
