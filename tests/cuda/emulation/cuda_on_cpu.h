// Runs CUDA kernels on the CPU, so that what they compute can be tested where there is no GPU.
//
// The threads of a block are fibers of one CPU thread; they change over at barriers only, in the order of their
// numbers, or in the opposite one (`reversed`). If threads wait for one that has left, or at different barriers, that is a deadlock, and
// the run ends with a message.
//
// All memory accesses of a kernel are checked (watched_memory.h), so that a missing barrier is found in any order.
//
// Forced in front of a .cu file (g++ -include). Shared memory is what `shared_memory` in block.cuh returns.
#pragma once

// With glibc's checks, longjmp refuses to jump to another stack.
#undef _FORTIFY_SOURCE

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

#include "watched_memory.h"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emulation {

constexpr int kWarp = 32;
constexpr std::size_t kStackBytes = 64 * 1024;

struct Barrier {
  int waiting = 0;
  unsigned generation = 0;
};

struct Warp {
  Barrier barrier;
  int live = 0;
  unsigned fences = 0;  // how often the lanes have met at __syncwarp
  std::uint64_t slots[2][kWarp];  // two buffers in turns: a lane that is late still finds the value of the last exchange
};

// A context starts a fiber. After that longjmp is enough; unlike swapcontext it makes no system call for the signal mask.
struct Fiber {
  ucontext_t context;
  jmp_buf place;
  bool started = false;
  dim3 index;
  unsigned number = 0;
  bool done = false;
  const Barrier* waits_at = nullptr;
  unsigned generation = 0;  // number of the barrier at which this thread waits
  const int* live = nullptr;
};

// What a thread runs: a std::function without its header, which takes longer to compile than most kernels.
struct Body {
  void (*call)(const void* object);
  const void* object;
};

struct Block {
  unsigned threads = 0;
  std::vector<Warp> warps;
  Barrier barrier;
  int live = 0;
  jmp_buf scheduler;
  Fiber* running = nullptr;
  bool progress = false;
  Body body;
  dim3 index, block_size, grid_size;
};

inline Block* block = nullptr;
inline std::vector<Fiber*> fibers;  // fibers are reused from block to block, each with a new body

[[noreturn]] inline void fail(const char* message) {
  std::fprintf(stderr, "emulation: %s\n", message);
  std::abort();
}

inline void yield() {
  if (!_setjmp(block->running->place)) _longjmp(block->scheduler, 1);
}

// `clock` goes on when all have come: what was done before is ordered before what is done after. Null where threads only
// exchange values: shuffles and votes order nothing.
inline void wait(Barrier& barrier, const int& live, unsigned* clock) {
  const unsigned mine = barrier.generation;
  const auto open = [&] {
    barrier.waiting = 0;
    ++barrier.generation;
    if (clock) ++*clock;
  };
  ++barrier.waiting;
  block->progress = true;
  if (barrier.waiting == live) return open();
  Fiber& self = *block->running;
  self.waits_at = &barrier;
  self.generation = mine;
  self.live = &live;
  yield();
  self.waits_at = nullptr;
  if (barrier.generation != mine) return;
  open();  // the last thread that was missing has left the kernel
  block->progress = true;
}

inline bool has_to_wait(const Fiber& fiber) {
  const Barrier* const barrier = fiber.waits_at;
  return barrier && barrier->generation == fiber.generation && barrier->waiting != *fiber.live;
}

inline void fiber_main() {
  for (;;) {
    block->body.call(block->body.object);
    Fiber& self = *block->running;
    self.done = true;
    --block->live;
    --block->warps[self.number / kWarp].live;
    block->progress = true;
    yield();
  }
}

inline Fiber* new_fiber() {
  Fiber* const fiber = new Fiber;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = new char[kStackBytes];
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
  return fiber;
}

inline void resume(Block& it, Fiber& fiber) {
  if (_setjmp(it.scheduler)) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  setcontext(&fiber.context);
}

inline void run_block(Block& it, bool reversed) {
  block = &it;
  const unsigned count = it.block_size.x * it.block_size.y * it.block_size.z;
  it.threads = count;
  while (fibers.size() < count) fibers.push_back(new_fiber());
  it.warps = std::vector<Warp>((count + kWarp - 1) / kWarp);
  it.live = static_cast<int>(count);
  for (unsigned number = 0; number < count; ++number) {
    Fiber& fiber = *fibers[number];
    fiber.done = false;
    fiber.number = number;
    fiber.index = {number % it.block_size.x, number / it.block_size.x % it.block_size.y,
                   number / (it.block_size.x * it.block_size.y)};
    ++it.warps[number / kWarp].live;
  }
  while (it.live > 0) {
    it.progress = false;
    for (unsigned step = 0; step < count; ++step) {
      Fiber& fiber = *fibers[reversed ? count - 1 - step : step];
      if (fiber.done || has_to_wait(fiber)) continue;
      it.running = &fiber;
      watch.thread = fiber.number;
      watch.fences = &it.warps[fiber.number / kWarp].fences;
      resume(it, fiber);
      watch.fences = nullptr;
    }
    if (!it.progress && it.live > 0) fail("deadlock: threads wait at different barriers");
  }
}

inline void launch(dim3 grid, dim3 size, std::size_t dynamic_shared, bool reversed, Body body) {
  if (dynamic_shared > kSharedBytes) fail("more shared memory than a block may have");
  if (size.x * size.y * size.z > 1024) fail("more than 1024 threads in a block");
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        std::memset(lapgrad_shared_bytes, 0xff, dynamic_shared);  // what a kernel did not write is NaN
        watch.begin_block(dynamic_shared);
        Block it;
        it.body = body;
        it.index = {x, y, z};
        it.block_size = size;
        it.grid_size = grid;
        run_block(it, reversed);
      }
}

template <typename... P, std::size_t... I>
void invoke(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_const_t<std::remove_reference_t<P>>*>(arguments[I])...);
}

// Returns what a kernel did wrong first, or null.
template <typename... P>
const char* run(void (*kernel)(P...), const int* geometry, void** arguments, const Unwritten* unwritten) {
  watch.begin_launch(unwritten);
  const auto at = [&](int i) { return static_cast<unsigned>(geometry[i]); };
  const auto body = [&] { invoke(kernel, arguments, std::index_sequence_for<P...>{}); };
  const auto call = [](const void* object) { (*static_cast<const decltype(body)*>(object))(); };
  launch({at(0), at(1), at(2)}, {at(3), at(4), at(5)}, at(6), geometry[7] != 0, {call, &body});
  return watch.complaint;
}

template <typename T>
T exchange(T value, int source_lane) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  Fiber& self = *block->running;
  Warp& warp = block->warps[self.number / kWarp];
  std::uint64_t* const slots = warp.slots[warp.barrier.generation % 2];
  std::memcpy(&slots[self.number % kWarp], &value, sizeof(T));
  wait(warp.barrier, warp.live, nullptr);
  T result = value;
  if (source_lane >= 0 && source_lane < kWarp) std::memcpy(&result, &slots[source_lane], sizeof(T));
  return result;
}

inline int lane() { return static_cast<int>(block->running->number % kWarp); }

}  // namespace emulation

#define threadIdx (emulation::block->running->index)
#define blockIdx (emulation::block->index)
#define blockDim (emulation::block->block_size)
#define gridDim (emulation::block->grid_size)

inline void __syncthreads() {
  emulation::wait(emulation::block->barrier, emulation::block->live, &emulation::watch.epoch);
}

inline void __syncwarp(unsigned = 0xffffffffu) {
  auto& warp = emulation::block->warps[emulation::block->running->number / emulation::kWarp];
  emulation::wait(warp.barrier, warp.live, &warp.fences);
}

// `width` splits the warp into groups of that many lanes, as on the device.
template <typename T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  const int lane = emulation::lane();
  return emulation::exchange(value, lane / width * width + (source & (width - 1)));
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  const int lane = emulation::lane(), source = lane ^ mask;
  return emulation::exchange(value, source / width == lane / width ? source : lane);
}

template <typename T>
T __shfl_down_sync(unsigned, T value, int delta, int width = 32) {
  const int lane = emulation::lane(), source = lane + delta;
  return emulation::exchange(value, source / width == lane / width ? source : lane);
}

template <typename T>
T __shfl_up_sync(unsigned, T value, int delta, int width = 32) {
  const int lane = emulation::lane(), source = lane - delta;
  return emulation::exchange(value, source >= lane / width * width ? source : lane);
}

inline unsigned __ballot_sync(unsigned, int predicate) {
  auto& self = *emulation::block->running;
  auto& warp = emulation::block->warps[self.number / emulation::kWarp];
  std::uint64_t* const slots = warp.slots[warp.barrier.generation % 2];
  slots[self.number % emulation::kWarp] = predicate != 0;
  emulation::wait(warp.barrier, warp.live, nullptr);
  unsigned result = 0;
  const unsigned first = self.number / emulation::kWarp * emulation::kWarp;
  for (unsigned bit = 0; bit < emulation::kWarp && first + bit < emulation::block->threads; ++bit)
    if (!emulation::fibers[first + bit]->done && slots[bit]) result |= 1u << bit;
  emulation::wait(warp.barrier, warp.live, nullptr);
  return result;
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

template <typename Reduce>
int emulation_reduce_block(int value, int start, Reduce reduce) {
  static int total;
  __syncthreads();
  total = start;
  __syncthreads();
  total = reduce(total, value);
  __syncthreads();
  const int result = total;
  __syncthreads();
  return result;
}

inline int __syncthreads_or(int predicate) {
  return emulation_reduce_block(predicate, 0, [](int a, int b) { return a || b; });
}
inline int __syncthreads_and(int predicate) {
  return emulation_reduce_block(predicate, 1, [](int a, int b) { return a && b; });
}
inline int __syncthreads_count(int predicate) {
  return emulation_reduce_block(predicate, 0, [](int a, int b) { return a + (b != 0); });
}

template <typename T>
UNWATCHED __attribute__((noinline)) T atomicAdd(T* target, T value) {
  const T before = *target;
  *target += value;
  return before;
}
template <typename T>
UNWATCHED __attribute__((noinline)) T atomicMax(T* target, T value) {
  const T before = *target;
  *target = before < value ? value : before;
  return before;
}
template <typename T>
UNWATCHED __attribute__((noinline)) T atomicMin(T* target, T value) {
  const T before = *target;
  *target = value < before ? value : before;
  return before;
}
template <typename T>
UNWATCHED __attribute__((noinline)) T atomicCAS(T* target, T compare, T value) {
  const T before = *target;
  if (before == compare) *target = value;
  return before;
}

inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }

inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
using std::abs, std::copysign, std::fabs, std::fma, std::fmax, std::fmin, std::hypot, std::isfinite, std::isinf,
    std::isnan, std::nan, std::ilogb, std::ldexp, std::log, std::log1p, std::exp, std::max, std::min, std::sqrt;
