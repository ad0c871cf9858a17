#include "pipeline/context.h"

namespace lz {

Context::Context() { Add(HostCpu()); }

int32_t Context::Add(Device device) {
  const int32_t index = size_.load(std::memory_order_relaxed);
  if (size_t(index) >= devices_.size()) return -1;
  if (device.platform == Platform::kCuda) ApplyGenerations(generations_, &device);
  storage_.push_back(std::move(device));
  devices_[size_t(index)].store(&storage_.back(), std::memory_order_release);
  size_.store(index + 1, std::memory_order_release);
  return index;
}

void Context::ProbeCuda() {
  if (cuda_probed_.load(std::memory_order_relaxed)) return;
  first_cuda_ = size_.load(std::memory_order_relaxed);
  for (Device& d : ProbeCudaDevices(&why_no_cuda_)) {
    if (Add(std::move(d)) >= 0) ++num_cuda_;
  }
  cuda_probed_.store(true, std::memory_order_release);
}

int32_t Context::IndexOf(lz_device device) {
  if (IsCpu(device)) return 0;
  if (device.type != 2) return -1;
  if (!cuda_probed_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    ProbeCuda();
  }
  return device.id >= 0 && device.id < num_cuda_ ? first_cuda_ + device.id : -1;
}

const Device& Context::device(int32_t index) const { return *devices_[size_t(index)].load(std::memory_order_acquire); }

Status Context::Place(BoundCall& call) {
  if (call.device < 0) call.device = IndexOf(call.where);
  if (call.device < 0) {
    const std::string why = why_no_cuda();
    return Status(StatusCode::kInvalidRequest,
                  {.field = std::string(call.op->name()) + ": device",
                   .wanted = "tensors on a device that LayerZero knows (cpu, cuda)",
                   .got = "device type " + std::to_string(call.where.type) + (why.empty() ? "" : "; CUDA: " + why),
                   .fix = "move the tensors, or call torch's function"});
  }
  call.machine = &device(call.device);
  return {};
}

Result<int32_t> Context::FindByName(std::string_view name) {
  std::lock_guard lock(mutex_);
  if (name.starts_with("cuda")) ProbeCuda();  // not before a caller needs it: see ProbeCudaDevices
  std::string known;
  for (int32_t i = 0; i < num_devices(); ++i) {
    if (device(i).name == name) return i;
    if (!device(i).simulated) known += device(i).name + ", ";
  }
  if (const Device* simulated = FindSimulatedDevice(name)) return Add(*simulated);
  for (const Device& d : SimulatedDevices()) known += (d.name == SimulatedDevices().front().name ? "" : ", ") + d.name;
  return Status(StatusCode::kUnknownName,
                {.field = "device", .wanted = "one of " + known, .got = "'" + std::string(name) + "'"});
}

void Context::SetGenerations(std::vector<GenerationRange> ranges) {
  std::lock_guard lock(mutex_);
  if (ranges == generations_) return;
  for (GenerationRange& r : ranges) r.generation = generation_names_.emplace_back(r.generation);
  generations_ = std::move(ranges);
  for (int32_t i = 0; i < num_devices(); ++i) {
    if (device(i).platform != Platform::kCuda) continue;
    Device changed = device(i);
    ApplyGenerations(generations_, &changed);
    storage_.push_back(std::move(changed));
    devices_[size_t(i)].store(&storage_.back(), std::memory_order_release);
  }
}

int32_t Context::AddSimulated(Device device) {
  std::lock_guard lock(mutex_);
  device.simulated = true;
  return Add(std::move(device));
}

std::string Context::why_no_cuda() const {
  std::lock_guard lock(mutex_);
  return why_no_cuda_;
}

}  // namespace lz
