// LayerZero from C++ alone: RMSNorm and one step of grouped attention, selected and run without Python or torch.
#include <layerzero/c_abi.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

// A contiguous f32 tensor on the CPU that owns its data; Arg() is what the engine sees.
class Tensor {
 public:
  explicit Tensor(std::vector<int64_t> shape, float value = 0) : shape_(shape), strides_(shape.size(), 1) {
    for (size_t i = shape.size(); i-- > 1;) strides_[i - 1] = strides_[i] * shape[i];
    data_.assign(size_t(strides_[0] * shape[0]), value);
  }
  float& operator[](size_t i) { return data_[i]; }
  lz_tensor Arg() {
    return {data_.data(), {1, 0}, int32_t(shape_.size()), {2, 32, 1}, shape_.data(), strides_.data(), 0};
  }

 private:
  std::vector<int64_t> shape_, strides_;
  std::vector<float> data_;
};

lz_tensor Absent() { return {nullptr, {1, 0}, -1, {2, 32, 1}, nullptr, nullptr, 0}; }
lz_scalar Default() { return {}; }  // given = 0: the contract's default
lz_scalar Number(double value) { return {.value = {.f = value}, .given = 1}; }

// Selects, asks which kernel it will be, runs. `tensors` and `scalars` are those of the contract, outputs last.
bool Call(const lz_api* api, const char* name, const std::vector<lz_tensor>& tensors,
          const std::vector<lz_scalar>& scalars) {
  lz_request request = {};
  request.size = sizeof(request);
  request.tensors = tensors.data();
  request.scalars = scalars.data();
  const lz_plan* plan = nullptr;
  std::vector<char> workspace;
  int32_t status = api->find(name, &request.op);
  if (status == LZ_OK) status = api->select(&request, &plan);
  if (status == LZ_OK) {
    workspace.resize(api->workspace_bytes(plan, &request) + 64);
    request.workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
    request.workspace_bytes = workspace.size() - 64;
    status = api->run(&request);
  }
  if (status != LZ_OK) {
    std::printf("%s: %s\n", name, api->last_error()->text);
    return false;
  }
  std::printf("%-12s ran %s\n", name, api->plan_kernel_id(plan));
  return true;
}

}  // namespace

int main() {
  const lz_api* api = lz_get_api(LZ_ABI_MAJOR, sizeof(lz_api));
  if (api == nullptr) return 1;
  std::printf("LayerZero %s\n", api->version);

  Tensor x({2, 64}, 3), weight({64}, 2), normed({2, 64});
  if (!Call(api, "rms_norm", {x.Arg(), weight.Arg(), normed.Arg()}, {Default(), Default()})) return 1;

  // Four query heads share one key head; all keys are alike, so the answer is the mean of the values.
  Tensor query({1, 1, 4, 64}, 1), key({1, 8, 1, 64}, 1), value({1, 8, 1, 64}), out({1, 1, 4, 64});
  for (size_t i = 0; i < 8 * 64; ++i) value[i] = float(i / 64);
  const std::vector<lz_tensor> tensors = {query.Arg(), key.Arg(), value.Arg(), Absent(),
                                          Absent(),    Absent(),  out.Arg(),   Absent()};
  const std::vector<lz_scalar> scalars = {Default(), Number(0.125), Default(), Default(), Default(), Default()};
  if (!Call(api, "attention", tensors, scalars)) return 1;

  std::printf("rms_norm  %.4f (2 is right)\nattention %.4f (3.5 is right)\n", normed[0], out[0]);
  return std::fabs(normed[0] - 2) < 1e-5 && std::fabs(out[0] - 3.5f) < 1e-5 ? 0 : 1;
}
