// LayerZero from C++ alone: RMSNorm and one step of grouped attention, selected and run without Python or torch.
#include <layerzero/layerzero.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace lz = layerzero;

namespace {

bool Ok(const lz::Status& status) {
  if (!status.ok()) std::printf("%s\n", status.text().c_str());
  return status.ok();
}

// One call: arguments by the names of the contract, the output is the caller's memory.
bool Norm(const lz::Api& api, float* result) {
  std::vector<float> x(2 * 64, 3), weight(64, 2), normed(2 * 64);
  auto rms = api.Find("rms_norm");
  if (!Ok(rms.status())) return false;
  const lz::TensorRef input(x.data(), {2, 64}), gain(weight.data(), {64}), output(normed.data(), {2, 64});
  if (!Ok((*rms)({{"input", input}, {"weight", gain}, {"eps", 1e-6}, {"output", output}}))) return false;
  *result = normed[0];

  // What does not fit is refused with what was wanted, what was got and what to do.
  const lz::TensorRef wrong(weight.data(), {32});
  const lz::Status refused = (*rms)({{"input", input}, {"weight", wrong}, {"output", output}});
  std::printf("refused   %s\n", refused.text().c_str());
  return refused.code() == LZ_INVALID_REQUEST;
}

// A prepared call: names and kernel are settled once, then the keys grow by one position in every step.
bool Attend(const lz::Api& api, float* result) {
  constexpr int64_t kHeads = 4, kHeadDim = 64, kSteps = 8;
  std::vector<float> q(kHeads * kHeadDim, 1), k(kSteps * kHeadDim, 1), v(kSteps * kHeadDim), o(kHeads * kHeadDim);
  for (size_t i = 0; i < v.size(); ++i) v[i] = float(i / kHeadDim);
  auto attention = api.Find("attention");
  if (!Ok(attention.status())) return false;
  auto call = attention->Prepare({{"query", lz::TensorRef(q.data(), {1, 1, kHeads, kHeadDim})},
                                  {"scale", 0.125},
                                  {"output", lz::TensorRef(o.data(), {1, 1, kHeads, kHeadDim})}});
  if (!Ok(call.status())) return false;
  for (int64_t length = 1; length <= kSteps; ++length) {
    if (!Ok(call->Set("key", lz::TensorRef(k.data(), {1, length, 1, kHeadDim})))) return false;
    if (!Ok(call->Set("value", lz::TensorRef(v.data(), {1, length, 1, kHeadDim})))) return false;
    if (!Ok(call->Run())) return false;
  }
  if (auto kernel = call->KernelId(); Ok(kernel.status())) std::printf("attention ran %s\n", kernel->c_str());
  *result = o[0];  // all keys are alike: the mean of the values
  return true;
}

}  // namespace

int main() {
  auto api = lz::Api::Get();
  if (!Ok(api.status())) return 1;
  std::printf("LayerZero %s\n", api->version());
  float norm = 0, attention = 0;
  if (!Norm(*api, &norm) || !Attend(*api, &attention)) return 1;
  std::printf("rms_norm  %.4f (2 is right)\nattention %.4f (3.5 is right)\n", norm, attention);
  return std::fabs(norm - 2) < 1e-5 && std::fabs(attention - 3.5f) < 1e-5 ? 0 : 1;
}
