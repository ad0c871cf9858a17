// A kernel of norm.rms in a library of its own: float32, contiguous. Its rules stand in capabilities.json.
#include <layerzero/c_abi.h>

#include <cmath>

namespace {

// In the order of the contract: input, weight (may be absent), output; eps, weight_offset.
int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[0];
  const lz_tensor& weight = args->tensors[1];
  const lz_tensor& output = args->tensors[2];
  const auto data = [](const lz_tensor& t) {
    return reinterpret_cast<float*>(static_cast<char*>(t.data) + t.byte_offset);
  };
  const float eps = float(args->scalars[0].value.f), offset = float(args->scalars[1].value.f);
  const int64_t hidden = input.shape[input.ndim - 1];
  int64_t rows = 1;
  for (int32_t i = 0; i + 1 < input.ndim; ++i) rows *= input.shape[i];
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = data(input) + r * hidden;
    float* y = data(output) + r * hidden;
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += double(x[i]) * x[i];
    const float scale = float(1 / std::sqrt(sum / double(hidden) + eps));
    for (int64_t i = 0; i < hidden; ++i) y[i] = x[i] * scale * ((weight.ndim < 0 ? 1 : data(weight)[i]) + offset);
  }
  return 0;
}

const lz_plugin_kernel kKernels[] = {
    {sizeof(lz_plugin_kernel), 1, "example.norm.rms", "norm.rms", &Launch, nullptr},
};
const lz_plugin kPlugin = {sizeof(lz_plugin), LZ_ABI_MAJOR, "example", "1.0", kKernels, 1};

}  // namespace

extern "C" __attribute__((visibility("default"))) const lz_plugin* lz_plugin_descriptor(void) { return &kPlugin; }
