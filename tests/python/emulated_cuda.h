// Enough of CUDA to run a kernel on a CPU: the threads of a block are coroutines that take turns.
//
// A thread runs until it waits for others, so that results repeat; what a race would do is not
// seen.

#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __CUDA_ARCH__ 900

using std::exp;
using std::fma;
using std::fmax;
using std::sqrt;

struct Dim3 {
  unsigned x, y, z;
};
struct float2 {
  float x, y;
};
struct double2 {
  double x, y;
};

static Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

constexpr unsigned WARP_SIZE = 32;
constexpr size_t STACK_BYTES = 256 * 1024;

/// Threads that wait for each other.
struct Meeting {
  unsigned members = 0, arrived = 0, rounds = 0;

  void open_if_complete() {
    if (arrived == 0 || arrived < members) return;
    arrived = 0;
    ++rounds;
  }
};

struct Warp : Meeting {
  alignas(16) unsigned char values[WARP_SIZE][16];
};

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool ended;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Meeting all;
  ucontext_t scheduler;
  void (*body)(void*);
  void* kernel;
  bool moved; /* whether a thread has come further since all were asked last */
};

static Block block;

inline Warp& own_warp() { return block.warps[threadIdx.x / WARP_SIZE]; }

inline void pause() { swapcontext(&block.threads[threadIdx.x].context, &block.scheduler); }

inline void meet(Meeting& meeting) {
  const unsigned round = meeting.rounds;
  ++meeting.arrived;
  meeting.open_if_complete();
  block.moved = true;
  while (meeting.rounds == round) pause();
  block.moved = true;
}

/// Everyone of the warp gives a value and looks at those of all.
template <typename T, typename Look>
auto exchange(const T& value, const Look& look) {
  Warp& warp = own_warp();
  std::memcpy(warp.values[threadIdx.x % WARP_SIZE], &value, sizeof(T));
  meet(warp);
  const auto found = look([&warp](unsigned lane) {
    T other;
    std::memcpy(&other, warp.values[lane], sizeof(T));
    return other;
  });
  meet(warp);
  return found;
}

static void thread_main() {
  block.body(block.kernel);
  block.threads[threadIdx.x].ended = true;
  block.moved = true;
  for (Meeting* meeting : {&block.all, static_cast<Meeting*>(&own_warp())}) {
    --meeting->members;
    meeting->open_if_complete();
  }
  pause();
}

inline void start_threads() {
  const unsigned n = blockDim.x;
  block.threads.resize(n);
  block.warps.assign((n + WARP_SIZE - 1) / WARP_SIZE, Warp());
  block.all = Meeting();
  block.all.members = n;
  for (unsigned k = 0; k < n; ++k) {
    Thread& thread = block.threads[k];
    ++block.warps[k / WARP_SIZE].members;
    thread.ended = false;
    thread.stack.resize(STACK_BYTES);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, thread_main, 0);
  }
}

/// Runs one block; false where threads wait for others that never come.
inline bool run_block() {
  start_threads();
  for (unsigned alive = blockDim.x; alive > 0;) {
    block.moved = false;
    alive = 0;
    for (unsigned k = 0; k < blockDim.x; ++k) {
      if (block.threads[k].ended) continue;
      threadIdx = {k, 0, 0};
      swapcontext(&block.scheduler, &block.threads[k].context);
      alive += !block.threads[k].ended;
    }
    if (alive > 0 && !block.moved) return false;
  }
  return true;
}

template <typename... Arguments, size_t... I>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<Arguments*>(arguments[I])...);
}

/// Runs all blocks in turn; 0, or 1 where one of them does not come to an end.
template <typename... Arguments>
int run(void (*kernel)(Arguments...), unsigned grid_x, unsigned grid_y, unsigned n_threads,
        void** arguments) {
  auto bound = [&] { call(kernel, arguments, std::index_sequence_for<Arguments...>{}); };
  block.kernel = &bound;
  block.body = [](void* body) { (*static_cast<decltype(bound)*>(body))(); };
  gridDim = {grid_x, grid_y, 1};
  blockDim = {n_threads, 1, 1};
  for (unsigned y = 0; y < grid_y; ++y)
    for (unsigned x = 0; x < grid_x; ++x) {
      blockIdx = {x, y, 0};
      if (!run_block()) return 1;
    }
  return 0;
}

}  // namespace emulation

inline void __syncthreads() { emulation::meet(emulation::block.all); }
inline void __syncwarp() { emulation::meet(emulation::own_warp()); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const unsigned lane = threadIdx.x % emulation::WARP_SIZE ^ unsigned(mask);
  return emulation::exchange(value, [&](const auto& of) { return of(lane); });
}

inline unsigned __ballot_sync(unsigned, bool vote) {
  return emulation::exchange(vote, [](const auto& of) {
    unsigned votes = 0;
    for (unsigned lane = 0; lane < emulation::WARP_SIZE; ++lane)
      votes |= unsigned(of(lane)) << lane;
    return votes;
  });
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <typename A, typename B>
constexpr auto min(A a, B b) {
  return a < b ? a : b;
}

template <typename A, typename B>
constexpr auto max(A a, B b) {
  return a < b ? b : a;
}

template <typename T>
void __stcs(T* target, T value) {
  *target = value;
}

template <typename T>
T atomicAdd(T* target, T value) {
  const T before = *target;
  *target = before + value;
  return before;
}

inline float2 atomicAdd(float2* target, float2 value) {
  const float2 before = *target;
  *target = {before.x + value.x, before.y + value.y};
  return before;
}

template <typename T>
T atomicMin(T* target, T value) {
  const T before = *target;
  *target = std::min(before, value);
  return before;
}
