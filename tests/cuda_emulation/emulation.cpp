// The scheduler of emulation.h. A thread of a block is a stack of its own; _setjmp and _longjmp change between them
// without a system call.
#include "tests/cuda_emulation/emulation.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace lz::emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kMaxThreads = 1024, kMaxStatic = 48 * 1024, kMaxDynamic = 227 * 1024;

enum class State : uint8_t { kReady, kAtBlock, kAtLanes, kDone };

struct Copy {
  void* to;
  const void* from;
  size_t bytes, real;
};

struct Thread {
  jmp_buf at;
  State state = State::kDone;
  bool started = false;
  uint32_t mask = 0;
  const char* what = "";
  uint3 index{};
  uint64_t published = 0;
  std::vector<Copy> open;                   // copies of no group yet
  std::deque<std::vector<Copy>> committed;  // the oldest group first
  char* stack = nullptr;
};

struct Machine {
  std::vector<Thread> threads{kMaxThreads};
  int count = 0, current = 0;
  jmp_buf home;
  ucontext_t first;  // where a thread begins
  const std::function<void()>* kernel = nullptr;
  std::map<void*, size_t> shared;  // what the block has declared
  size_t static_bytes = 0, dynamic_bytes = 0;
  alignas(128) char dynamic[kMaxDynamic];
  std::map<const void*, size_t> dynamic_limits;
  std::minstd_rand random{1};
  cudaError_t error = cudaSuccess;
  std::recursive_mutex mutex;
};
Machine& M() {
  static Machine* const machine = new Machine;
  return *machine;
}
Thread& Current() { return M().threads[size_t(M().current)]; }

[[noreturn]] void Fail(const std::string& text) {
  std::fprintf(stderr, "CUDA emulation, block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, text.c_str());
  std::abort();
}

void Begin() {
  (*M().kernel)();
  if (!Current().open.empty()) Fail("a thread ended with an asynchronous copy that no group holds");
  Current().state = State::kDone;
  _longjmp(M().home, 1);
}

void Resume(int i) {
  Machine& m = M();
  m.current = i;
  Thread& t = m.threads[size_t(i)];
  threadIdx = t.index;
  if (_setjmp(m.home) != 0) return;
  if (t.started) _longjmp(t.at, 1);
  t.started = true;
  if (!t.stack) {
    void* memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) Fail("no memory for a stack");
    t.stack = static_cast<char*>(memory);
  }
  getcontext(&m.first);
  m.first.uc_stack.ss_sp = t.stack;
  m.first.uc_stack.ss_size = kStackBytes;
  m.first.uc_link = nullptr;
  makecontext(&m.first, Begin, 0);
  setcontext(&m.first);
}

void Wait(State state) {
  Thread& t = Current();
  t.state = state;
  if (_setjmp(t.at) == 0) _longjmp(M().home, 1);
}

// Whether the lanes of thread i's mask all wait with it. A lane that has ended is waited for by nobody.
bool LanesComplete(int i) {
  const Machine& m = M();
  const Thread& t = m.threads[size_t(i)];
  const int first = i / warpSize * warpSize;
  for (int lane = 0; lane < warpSize && first + lane < m.count; ++lane) {
    const Thread& other = m.threads[size_t(first + lane)];
    if (!(t.mask >> lane & 1) || other.state == State::kDone) continue;
    if (other.state != State::kAtLanes || other.mask != t.mask) return false;
    if (std::strcmp(other.what, t.what) != 0) Fail(std::string(other.what) + " meets " + t.what);
  }
  return true;
}

// Sets ready whoever need not wait any longer; false: nobody.
bool Release() {
  Machine& m = M();
  bool all = true, any = false;
  for (int i = 0; i < m.count; ++i) {
    all &= m.threads[size_t(i)].state == State::kDone || m.threads[size_t(i)].state == State::kAtBlock;
  }
  std::vector<int> complete;
  uint32_t mask = 0;  // of the lanes that `known` is about
  bool known = false;
  for (int i = 0; i < m.count; ++i) {
    const Thread& t = m.threads[size_t(i)];
    if (i % warpSize == 0) mask = 0;
    if (t.state == State::kAtLanes && t.mask != mask) {
      mask = t.mask;
      known = LanesComplete(i);
    }
    if ((all && t.state == State::kAtBlock) || (t.state == State::kAtLanes && known)) complete.push_back(i);
  }
  for (const int i : complete) {
    m.threads[size_t(i)].state = State::kReady;
    any = true;
  }
  return any;
}

void RunBlock() {
  Machine& m = M();
  m.shared.clear();
  m.static_bytes = 0;
  std::memset(m.dynamic, 0xff, m.dynamic_bytes);
  std::vector<int> order(static_cast<size_t>(m.count));
  for (int i = 0; i < m.count; ++i) {
    Thread& t = m.threads[size_t(i)];
    t.state = State::kReady;
    t.started = false;
    t.open.clear();
    t.committed.clear();
    const unsigned u = unsigned(i);
    t.index = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
    order[size_t(i)] = i;
  }
  for (int live = m.count; live > 0;) {
    std::shuffle(order.begin(), order.end(), m.random);
    for (const int i : order) {
      if (m.threads[size_t(i)].state != State::kReady) continue;
      Resume(i);
      live -= m.threads[size_t(i)].state == State::kDone;
    }
    if (live > 0 && !Release()) Fail("threads wait for others that do not come: a barrier or warp operation diverges");
  }
}

bool Fits(dim3 grid, dim3 block, size_t dynamic_bytes) {
  const size_t threads = size_t(block.x) * block.y * block.z;
  return threads >= 1 && threads <= kMaxThreads && block.z <= 64 && grid.x >= 1 && grid.x <= 0x7fffffffu &&
         grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 && dynamic_bytes <= kMaxDynamic;
}

}  // namespace

void Launch(dim3 grid, dim3 block, size_t dynamic_bytes, void*, const std::function<void()>& kernel) {
  Machine& m = M();
  const std::lock_guard lock(m.mutex);
  if (!Fits(grid, block, dynamic_bytes)) {
    m.error = cudaErrorInvalidConfiguration;
    return;
  }
  gridDim = grid;
  blockDim = block;
  m.count = int(block.x * block.y * block.z);
  m.kernel = &kernel;
  m.dynamic_bytes = dynamic_bytes;
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  const bool backwards = m.random() & 1;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t at = backwards ? blocks - 1 - i : i;
    blockIdx = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
    RunBlock();
  }
}

void WaitForBlock() { Wait(State::kAtBlock); }
void WaitForLanes(uint32_t mask, const char* what) {
  Thread& t = Current();
  if (!(mask >> Lane() & 1)) Fail(std::string(what) + " by a lane outside its mask");
  t.mask = mask;
  t.what = what;
  Wait(State::kAtLanes);
}
int Lane() { return M().current % warpSize; }
int ThreadsOfBlock() { return M().count; }
void Publish(uint64_t bits) { Current().published = bits; }
uint64_t PublishedByThread(int thread) { return M().threads[size_t(thread)].published; }
uint64_t PublishedBy(int lane, uint32_t mask) {
  const Machine& m = M();
  const int thread = m.current / warpSize * warpSize + lane;
  const bool there = lane >= 0 && lane < warpSize && mask >> lane & 1 && thread < m.count &&
                     m.threads[size_t(thread)].state != State::kDone;
  return there ? m.threads[size_t(thread)].published : ~uint64_t{0};
}

void BeginShared(void* memory, size_t bytes) {
  Machine& m = M();
  if (!m.shared.emplace(memory, bytes).second) return;
  std::memset(memory, 0xff, bytes);
  m.static_bytes += bytes;
  if (m.static_bytes > kMaxStatic) Fail("more than 48 KiB of static shared memory");
}
void* DynamicShared() { return M().dynamic; }

void CopyLater(void* to, const void* from, size_t bytes, size_t real) {
  Current().open.push_back({to, from, bytes, real});
}
void CommitCopies() {
  Current().committed.push_back(std::move(Current().open));
  Current().open.clear();
}
void WaitForCopies(int groups_left) {
  auto& groups = Current().committed;
  for (; groups.size() > size_t(groups_left); groups.pop_front()) {
    for (const Copy& c : groups.front()) {
      std::memset(c.to, 0, c.bytes);
      std::memcpy(c.to, c.from, c.real);
    }
  }
}

}  // namespace lz::emulation

// What kernels call of the runtime. A device with few multiprocessors: loops over a grid take more than one turn.
extern "C" {
cudaError_t cudaGetLastError() { return std::exchange(lz::emulation::M().error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return lz::emulation::M().error; }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int value) {
  return value <= int(lz::emulation::kMaxDynamic) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(lz::emulation::kMaxDynamic); return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  return cudaSuccess;
}
}
