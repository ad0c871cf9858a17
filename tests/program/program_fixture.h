// Programs in few words: values and steps by operation name, tensors with memory of their own.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/view.h"
#include "program/program.h"
#include "verify/case.h"

namespace lz {

using verify::OwnedTensor;

inline void Fill(OwnedTensor& tensor, uint32_t seed) {
  const lz_tensor t = tensor.tensor();
  const View view(t);
  tensor.ForEach([&](int64_t, int64_t at) {
    seed = seed * 1664525u + 1013904223u;
    view.Store(at, double(seed >> 16) / 32768.0 - 1.0);
  });
}
inline std::vector<double> Values(OwnedTensor& tensor) {
  std::vector<double> values;
  const lz_tensor t = tensor.tensor();
  const View view(t);
  tensor.ForEach([&](int64_t, int64_t at) { values.push_back(view.Load(at)); });
  return values;
}

class ProgramFixture : public testing::Test {
 protected:
  using Scalars = std::vector<std::pair<const char*, double>>;

  OwnedTensor& Tensor(std::vector<int64_t> shape, uint32_t seed = 0, DType dtype = DType::kF32) {
    tensors.push_back(OwnedTensor::RowMajor(dtype, std::move(shape)));
    if (seed) Fill(tensors.back(), seed);
    return tensors.back();
  }
  OwnedTensor& Strided(std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return tensors.emplace_back(DType::kF32, std::move(shape), std::move(strides));
  }

  int32_t Value(ProgramValue::Kind kind, int64_t width = 0, DType dtype = DType::kF32) {
    values.emplace_back();
    values.back().kind = kind;
    values.back().width = width;
    values.back().dtype = dtype;
    return int32_t(values.size()) - 1;
  }
  Operand Input() { return {.value = Value(ProgramValue::Kind::kInput)}; }
  Operand Rows(int64_t width) { return {.value = Value(ProgramValue::Kind::kRows, width), .axes = {width}}; }
  Operand Output(int64_t width) { return {.value = Value(ProgramValue::Kind::kOutput, width), .axes = {width}}; }
  Operand Cache(std::vector<int64_t> axes) {
    return {.value = Value(ProgramValue::Kind::kCache), .axes = std::move(axes)};
  }
  Operand Weight(OwnedTensor& tensor) {
    const Operand operand{.value = Value(ProgramValue::Kind::kWeight)};
    values.back().weight = tensor.tensor();
    values.back().shape = tensor.shape();
    values.back().strides = tensor.strides();
    return operand;
  }
  static Operand Part(Operand of, int64_t column, std::vector<int64_t> axes) {
    of.column = column;
    of.axes = std::move(axes);
    return of;
  }
  static Operand Apart(Operand of, int64_t column, std::vector<int64_t> axes, int64_t step) {
    of = Part(std::move(of), column, std::move(axes));
    of.step = step;
    return of;
  }
  static Operand Past(Operand cache) {
    cache.past = true;
    return cache;
  }

  void Step(const char* name, std::vector<Operand> inputs, std::vector<Operand> outputs, const Scalars& scalars = {}) {
    const Operation& op = *engine.Find(name);
    ProgramStep& step = steps.emplace_back(ProgramStep{&op, std::move(inputs), std::move(outputs), {}});
    step.inputs.resize(op.num_inputs());
    step.outputs.resize(op.num_outputs());
    step.scalars.resize(op.num_scalars());
    for (const auto& [scalar, value] : scalars) {
      const size_t i = *op.ScalarIndex(scalar);
      step.scalars[i].given = 1;
      if (op.scalar(i).kind == ParamKind::kFloat) {
        step.scalars[i].value.f = value;
      } else {
        step.scalars[i].value.i = int64_t(value);
      }
    }
  }

  Result<std::unique_ptr<Program>> TryMake() { return Program::Make(engine, values, steps); }
  std::unique_ptr<Program> Make() {
    auto program = TryMake();
    EXPECT_TRUE(program.ok()) << program.status().Text();
    return program.ok() ? std::move(*program) : nullptr;
  }
  std::string WhyNot() {
    auto program = TryMake();
    return program.ok() ? "it is a program" : program.status().Text();
  }

  static std::vector<lz_tensor> Given(std::vector<OwnedTensor*> tensors) {
    std::vector<lz_tensor> given;
    for (OwnedTensor* t : tensors) given.push_back(t ? t->tensor() : AbsentTensor());
    return given;
  }
  // Runs with the sizes of the first output.
  static Status Run(Program& program, std::vector<OwnedTensor*> inputs, std::vector<OwnedTensor*> outputs,
                    std::vector<OwnedTensor*> caches = {}, int64_t past = 0, int64_t policy = 0,
                    const lz_parallel* parallel = nullptr) {
    const auto in = Given(std::move(inputs)), cached = Given(std::move(caches));
    RunArguments arguments{.batch = outputs[0]->shape()[0], .length = outputs[0]->shape()[1], .past = past};
    const auto out = Given(std::move(outputs));
    arguments.inputs = in, arguments.outputs = out, arguments.caches = cached, arguments.policy = policy;
    arguments.parallel = parallel;
    return program.Run(arguments);
  }
  static std::vector<std::string> Kernels(Program& program, std::vector<OwnedTensor*> inputs,
                                          std::vector<OwnedTensor*> outputs, int64_t policy = 0) {
    RunArguments arguments{.batch = outputs[0]->shape()[0], .length = outputs[0]->shape()[1]};
    const auto in = Given(std::move(inputs)), out = Given(std::move(outputs));
    arguments.inputs = in, arguments.outputs = out, arguments.policy = policy;
    auto plans = program.Plans(arguments);
    EXPECT_TRUE(plans.ok()) << plans.status().Text();
    std::vector<std::string> ids;
    if (plans.ok()) {
      for (const Plan* plan : *plans) ids.push_back(plan->kernel->id);
    }
    return ids;
  }
  int64_t Scope(const std::string& json) {
    auto scope = engine.PolicyScope(0, json);
    EXPECT_TRUE(scope.ok()) << scope.status().Text();
    return scope.ok() ? *scope : 0;
  }
  void Register(KernelSpec spec) {
    if (spec.dtypes == 0) spec.dtypes = kFloats;
    if (spec.accepts.empty()) spec.accepts = kAcceptsAll;
    const Registry::Registration one{&spec, {}, {}};
    Status status = engine.selector().registry().Register({&one, 1});
    ASSERT_TRUE(status.ok()) << status.Text();
    engine.Invalidate();
  }

  Engine& engine = Engine::Get();
  std::vector<ProgramValue> values;
  std::vector<ProgramStep> steps;
  std::deque<OwnedTensor> tensors;
};

}  // namespace lz
