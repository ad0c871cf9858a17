// 2 context: the machine. The devices of the process, real and simulated, by index: the index is a fact.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "pipeline/request.h"
#include "platform/device.h"

namespace lz {

class Context {
 public:
  Context();
  // Returns the index of a DLPack device; -1 for an unknown type of device. CUDA is probed at first use.
  int32_t IndexOf(lz_device device);
  const Device& device(int32_t index) const;
  // Stage 2 of a call: the index and the description of its device. Error: tensors on an unknown one.
  Status Place(BoundCall& call);
  // Finds a simulated device by name ("h100"), or a real one ("cpu", "cuda:0").
  Result<int32_t> FindByName(std::string_view name);
  int32_t AddSimulated(Device device);
  // Sets the policy's maps of SM versions; devices that are known already are described again.
  void SetGenerations(std::vector<GenerationRange> ranges);
  std::string why_no_cuda() const;
  int32_t num_devices() const { return size_.load(std::memory_order_acquire); }

 private:
  int32_t Add(Device device);
  void ProbeCuda();

  mutable std::mutex mutex_;
  std::array<std::atomic<const Device*>, 256> devices_{};
  std::atomic<int32_t> size_{0};
  std::deque<Device> storage_;  // replaced descriptions stay: a selection may be reading them
  std::deque<std::string> generation_names_;
  std::vector<GenerationRange> generations_{kDefaultGenerations.begin(), kDefaultGenerations.end()};
  std::atomic<bool> cuda_probed_{false};  // after it is set, the two numbers are constant
  int32_t first_cuda_ = 0, num_cuda_ = 0;
  std::string why_no_cuda_;
};

}  // namespace lz
