// The scheduler of emulation.h. A thread of a block is a stack of its own; _setjmp and _longjmp change between them
// without a system call.
#include "tests/cuda_emulation/emulation.h"

#include "tests/cuda_emulation/device.h"

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

enum class State : uint8_t { kReady, kAtBlock, kAtCluster, kAtLanes, kAtPhase, kDone };

struct Copy {
  void* to;
  const void* from;
  size_t bytes, real;
};
void Make(const std::vector<Copy>& copies) {
  for (const Copy& c : copies) {
    std::memset(c.to, 0, c.bytes);
    std::memcpy(c.to, c.from, c.real);
  }
}

// The bits of an mbarrier.
struct Phase {
  uint16_t expected, missing;  // arrivals of each phase; of this one
  uint32_t number;
};
Phase PhaseOf(const uint64_t* barrier) { return std::bit_cast<Phase>(*barrier); }
bool HasEnded(const uint64_t* barrier, uint32_t parity) { return PhaseOf(barrier).number % 2 != parity; }

// Copies of a thread after which a barrier has an arrival more.
struct Arrival {
  std::vector<Copy> copies;
  uint64_t* barrier;
};

using Work = std::vector<std::function<void()>>;

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
  const uint64_t* barrier = nullptr;        // with kAtPhase
  uint32_t parity = 0;
  Work open_work;
  std::deque<Work> committed_work;
  char* stack = nullptr;
};

struct Machine {
  std::vector<Thread> threads{kMaxThreads * kMaxCluster};  // a block's follow those of the one before
  int of_block = 0, blocks = 0, count = 0, current = 0;    // threads; blocks: of the cluster
  uint3 first_block{};
  jmp_buf home;
  ucontext_t first;  // where a thread begins
  const std::function<void()>* kernel = nullptr;
  std::map<char*, size_t> shared;  // what the cluster has declared: bytes of each block
  int alive[kMaxCluster] = {};     // threads of each block that have not ended
  size_t static_bytes = 0, dynamic_bytes = 0;
  std::deque<Arrival> arrivals;
  alignas(1024) char dynamic[kMaxCluster][kMaxDynamic];
  bool clusters = true;
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

// Shared memory of a block that does not run yet, or no longer.
void Forget(int block) {
  Machine& m = M();
  for (const auto& [memory, bytes] : m.shared) std::memset(memory + size_t(block) * bytes, 0xff, bytes);
  std::memset(m.dynamic[block], 0xff, m.dynamic_bytes);
}

void Begin() {
  (*M().kernel)();
  if (!Current().open.empty()) Fail("a thread ended with an asynchronous copy that no group holds");
  if (!Current().open_work.empty() || !Current().committed_work.empty()) {
    Fail("a thread ended with products that it did not wait for");
  }
  Current().state = State::kDone;
  _longjmp(M().home, 1);
}

void Resume(int i) {
  Machine& m = M();
  m.current = i;
  Thread& t = m.threads[size_t(i)];
  threadIdx = t.index;
  blockIdx = m.first_block;
  blockIdx.x += unsigned(i / m.of_block);
  if (_setjmp(m.home) != 0) return;
  if (t.started) _longjmp(t.at, 1);
  t.started = true;
  if (m.alive[i / m.of_block]++ == 0) Forget(i / m.of_block);
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

// The first thread of i's warp, and that after its last one.
std::pair<int, int> WarpOf(int i) {
  const int block = i / M().of_block * M().of_block, first = block + (i - block) / warpSize * warpSize;
  return {first, std::min(first + warpSize, block + M().of_block)};
}

// Whether the lanes of thread i's mask all wait with it. A lane that has ended is waited for by nobody.
bool LanesComplete(int i) {
  const Machine& m = M();
  const Thread& t = m.threads[size_t(i)];
  const auto [first, end] = WarpOf(i);
  for (int at = first; at < end; ++at) {
    const Thread& other = m.threads[size_t(at)];
    if (!(t.mask >> (at - first) & 1) || other.state == State::kDone) continue;
    if (other.state != State::kAtLanes || other.mask != t.mask) return false;
    if (std::strcmp(other.what, t.what) != 0) Fail(std::string(other.what) + " meets " + t.what);
  }
  return true;
}

// Whether the threads [first, end) all wait at a barrier, or have ended.
bool AllAt(State barrier, int first, int end) {
  for (int i = first; i < end; ++i) {
    const State state = M().threads[size_t(i)].state;
    if (state != barrier && state != State::kDone) return false;
  }
  return true;
}

// The oldest of the copies that barriers wait for.
void MakeCopies() {
  Arrival& arrival = M().arrivals.front();
  Make(arrival.copies);
  Arrive(arrival.barrier);
  M().arrivals.pop_front();
}

// Sets ready whoever need not wait any longer; false: nobody.
bool Release() {
  Machine& m = M();
  const bool cluster = AllAt(State::kAtCluster, 0, m.count);
  bool block = false;
  std::vector<int> complete;
  uint32_t mask = 0;  // of the lanes that `known` is about
  bool known = false;
  for (int i = 0; i < m.count; ++i) {
    const Thread& t = m.threads[size_t(i)];
    if (i % m.of_block == 0) block = AllAt(State::kAtBlock, i, i + m.of_block);
    if (i == WarpOf(i).first) mask = 0;
    if (t.state == State::kAtLanes && t.mask != mask) {
      mask = t.mask;
      known = LanesComplete(i);
    }
    if ((block && t.state == State::kAtBlock) || (cluster && t.state == State::kAtCluster) ||
        (t.state == State::kAtLanes && known) || (t.state == State::kAtPhase && HasEnded(t.barrier, t.parity))) {
      complete.push_back(i);
    }
  }
  for (const int i : complete) m.threads[size_t(i)].state = State::kReady;
  return !complete.empty();
}

// Warps, or blocks of a cluster, that stay where they are for a while, while the others get ahead.
struct Held {
  uint32_t warps = 0, blocks = 0;

  bool Has(int thread) const {
    const int block = thread / M().of_block;
    return (warps >> (thread - block * M().of_block) / warpSize | blocks >> block) & 1;
  }
  void Draw() {
    const uint32_t drawn = uint32_t(M().random()) * 2 + (M().random() & 1);
    const bool of_blocks = M().blocks > 1 && M().random() % 2 == 0;
    warps = of_blocks ? 0 : drawn;
    blocks = of_blocks ? drawn >> 8 : 0;
  }
};

void RunCluster() {
  Machine& m = M();
  m.shared.clear();
  m.static_bytes = 0;
  m.arrivals.clear();
  std::fill(std::begin(m.alive), std::end(m.alive), 0);
  std::vector<int> order(static_cast<size_t>(m.count));
  for (int i = 0; i < m.count; ++i) {
    Thread& t = m.threads[size_t(i)];
    t.state = State::kReady;
    t.started = false;
    t.open.clear();
    t.committed.clear();
    t.open_work.clear();
    t.committed_work.clear();
    const unsigned u = unsigned(i % m.of_block);
    t.index = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
    order[size_t(i)] = i;
  }
  Held held;
  for (int live = m.count; live > 0;) {
    std::shuffle(order.begin(), order.end(), m.random);
    bool ready = false, ran = false;
    for (const int i : order) {
      if (m.threads[size_t(i)].state != State::kReady) continue;
      ready = true;
      if (held.Has(i)) continue;
      ran = true;
      Resume(i);
      if (m.threads[size_t(i)].state != State::kDone) continue;
      --live;
      if (--m.alive[i / m.of_block] == 0) Forget(i / m.of_block);
    }
    while (!m.arrivals.empty() && m.random() % 4 != 0) MakeCopies();
    bool released = live > 0 && Release();
    while (!released && !ready && !m.arrivals.empty()) {
      MakeCopies();
      released = Release();
    }
    if (live > 0 && !released && !ready) {
      Fail("threads wait for others that do not come: a barrier or warp operation diverges");
    }
    if (!ran || m.random() % 32 == 0) held.Draw();
  }
}

bool Fits(unsigned cluster, dim3 grid, dim3 block, size_t dynamic_bytes) {
  const size_t threads = size_t(block.x) * block.y * block.z;
  return threads >= 1 && threads <= kMaxThreads && block.z <= 64 && grid.x >= 1 && grid.x <= 0x7fffffffu &&
         grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 && dynamic_bytes <= kMaxDynamic &&
         cluster >= 1 && cluster <= kMaxCluster && (cluster & (cluster - 1)) == 0 && grid.x % cluster == 0;
}

}  // namespace

void LaunchClusters(unsigned cluster, dim3 grid, dim3 block, size_t dynamic_bytes, void*,
                    const std::function<void()>& kernel) {
  Machine& m = M();
  const std::lock_guard lock(m.mutex);
  if (!Fits(cluster, grid, block, dynamic_bytes)) {
    m.error = cudaErrorInvalidConfiguration;
    return;
  }
  gridDim = grid;
  blockDim = block;
  m.of_block = int(block.x * block.y * block.z);
  m.blocks = int(cluster);
  m.count = m.of_block * m.blocks;
  m.kernel = &kernel;
  m.dynamic_bytes = dynamic_bytes;
  const uint64_t clusters = uint64_t(grid.x) * grid.y * grid.z / cluster;
  const bool backwards = m.random() & 1;
  for (uint64_t i = 0; i < clusters; ++i) {
    const uint64_t at = (backwards ? clusters - 1 - i : i) * cluster;
    m.first_block = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
    RunCluster();
  }
}

void UseClusters(bool use) { M().clusters = use; }

void WaitForBlock() { Wait(State::kAtBlock); }
void WaitForCluster() { Wait(State::kAtCluster); }
void WaitForLanes(uint32_t mask, const char* what) {
  Thread& t = Current();
  if (!(mask >> Lane() & 1)) Fail(std::string(what) + " by a lane outside its mask");
  t.mask = mask;
  t.what = what;
  Wait(State::kAtLanes);
}
int Lane() { return M().current % M().of_block % warpSize; }
int ThreadsOfBlock() { return M().of_block; }
int BlockOfCluster() { return M().current / M().of_block; }
int BlocksOfCluster() { return M().blocks; }
void Publish(uint64_t bits) { Current().published = bits; }
uint64_t PublishedByThread(int thread) {
  return M().threads[size_t(BlockOfCluster() * M().of_block + thread)].published;
}
uint64_t PublishedBy(int lane, uint32_t mask) {
  const Machine& m = M();
  const auto [first, end] = WarpOf(m.current);
  const int thread = first + lane;
  const bool there = lane >= 0 && lane < warpSize && mask >> lane & 1 && thread < end &&
                     m.threads[size_t(thread)].state != State::kDone;
  return there ? m.threads[size_t(thread)].published : ~uint64_t{0};
}

void BeginShared(void* memory, size_t bytes) {
  Machine& m = M();
  const auto first = static_cast<char*>(memory);
  if (!m.shared.emplace(first, bytes).second) return;
  std::memset(first, 0xff, bytes * size_t(m.blocks));
  m.static_bytes += bytes;
  if (m.static_bytes > kMaxStatic) Fail("more than 48 KiB of static shared memory");
}
void* DynamicShared() { return M().dynamic[BlockOfCluster()]; }
const void* SharedOf(const void* memory, int block) {
  Machine& m = M();
  const auto at = static_cast<char*>(const_cast<void*>(memory));
  if (block < 0 || block >= m.blocks) Fail("shared memory of block " + std::to_string(block) + " of the cluster");
  const ptrdiff_t blocks = block - BlockOfCluster();
  if (at >= m.dynamic[0] && at < m.dynamic[m.blocks]) return at + blocks * ptrdiff_t(kMaxDynamic);
  const auto after = m.shared.upper_bound(at);
  if (after == m.shared.begin() || at >= std::prev(after)->first + std::prev(after)->second * size_t(m.blocks)) {
    Fail("an address of a cluster that is not of shared memory");
  }
  return at + blocks * ptrdiff_t(std::prev(after)->second);
}

void CopyLater(void* to, const void* from, size_t bytes, size_t real) {
  Current().open.push_back({to, from, bytes, real});
}
void CommitCopies() {
  Current().committed.push_back(std::move(Current().open));
  Current().open.clear();
}
void WaitForCopies(int groups_left) {
  auto& groups = Current().committed;
  for (; groups.size() > size_t(groups_left); groups.pop_front()) Make(groups.front());
}

void MakePhases(uint64_t* barrier, uint32_t arrivals) {
  *barrier = std::bit_cast<uint64_t>(Phase{uint16_t(arrivals), uint16_t(arrivals), 0});
}
void Arrive(uint64_t* barrier) {
  Phase phase = PhaseOf(barrier);
  if (--phase.missing == 0) phase = {phase.expected, phase.expected, phase.number + 1};
  *barrier = std::bit_cast<uint64_t>(phase);
}
void ArriveAfterCopies(uint64_t* barrier) {
  Thread& t = Current();
  Arrival arrival = {{}, barrier};
  t.committed.push_back(std::move(t.open));
  for (const auto& group : t.committed) {
    arrival.copies.insert(arrival.copies.end(), group.begin(), group.end());
  }
  t.committed.clear();
  t.open.clear();
  M().arrivals.push_back(std::move(arrival));
}
void WaitForPhase(const uint64_t* barrier, uint32_t parity) {
  if (HasEnded(barrier, parity)) return;
  Current().barrier = barrier;
  Current().parity = parity;
  Wait(State::kAtPhase);
}

void WorkLater(std::function<void()> work) { Current().open_work.push_back(std::move(work)); }
void CommitWork() {
  Current().committed_work.push_back(std::move(Current().open_work));
  Current().open_work.clear();
}
void WaitForWork(int groups_left) {
  auto& groups = Current().committed_work;
  while (groups.size() > size_t(groups_left)) {
    for (const auto& work : groups.front()) work();
    groups.pop_front();
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
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};  // static shared memory is not counted
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; return cudaSuccess;
    case cudaDevAttrClusterLaunch: *value = lz::emulation::M().clusters; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(lz::emulation::kMaxDynamic); return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  return cudaSuccess;
}
}
