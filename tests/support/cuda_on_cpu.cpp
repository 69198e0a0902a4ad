// Runs backends/rope_xp_backends/gpu/rotate.cu on a CPU: one thread of a block after the other,
// as coroutines where the kernel has them wait for each other.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <vector>

#undef __global__
#undef __device__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#undef __shared__
#define __shared__ static

struct Index {
  unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static ucontext_t scheduler;
static std::vector<ucontext_t> threads;
static std::vector<char> finished;
static unsigned running;

// What a GPU would refuse: an access, which the CPU does as -fsanitize=alignment calls this, or to
// wait for a thread that is not there.
static bool refused = false;
extern "C" void __ubsan_handle_type_mismatch_v1(void *, void *) { refused = true; }

static void __syncthreads() { swapcontext(&threads[running], &scheduler); }

template <typename C> static C __shfl_xor_sync(unsigned mask, C value, unsigned apart) {
  static C values[1024];
  const unsigned first = running / 32 * 32, from = running ^ apart;
  refused |= !(mask >> running % 32 & mask >> from % 32 & 1) || from / 32 != running / 32;
  for (unsigned i = 0; i < 32; ++i) {
    refused |= (mask >> i & 1) && (first + i >= finished.size() || finished[first + i]);
  }
  values[running] = value;
  __syncthreads();
  value = values[from];
  __syncthreads();
  return value;
}

#include "rotate.cu"

using Kernel = void (*)(const void *);
static Kernel kernel;
static const void *arguments;

template <auto KERNEL> static void call(const void *words) {
  KERNEL(*static_cast<const Arguments *>(words));
}

static void run_thread() {
  kernel(arguments);
  finished[running] = 1;
}

static Index index_of(unsigned thread) {
  return {thread % blockDim.x, thread / blockDim.x % blockDim.y,
          thread / blockDim.x / blockDim.y};
}

static void run_block_together() {
  const unsigned count = blockDim.x * blockDim.y * blockDim.z, stack = 1 << 16;
  static std::vector<char> stacks;
  stacks.resize(static_cast<size_t>(count) * stack);
  threads.resize(count);
  finished.assign(count, 0);
  for (unsigned i = 0; i < count; ++i) {
    getcontext(&threads[i]);
    threads[i].uc_stack.ss_sp = &stacks[static_cast<size_t>(i) * stack];
    threads[i].uc_stack.ss_size = stack;
    threads[i].uc_link = &scheduler;
    makecontext(&threads[i], run_thread, 0);
  }
  while (std::count(finished.begin(), finished.end(), 0) > 0) {
    // From the last to the first: were there no barrier, this order would show it too.
    for (unsigned i = count; i-- > 0;) {
      if (finished[i]) continue;
      running = i;
      threadIdx = index_of(i);
      swapcontext(&scheduler, &threads[i]);
    }
  }
}

static bool run(Kernel which, bool together, const unsigned *grid, const unsigned *block,
                const void *words) {
  kernel = which;
  arguments = words;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  refused = false;
  for (unsigned i = 0; i < grid[0] * grid[1]; ++i) {
    blockIdx = {i % grid[0], i / grid[0], 0};
    if (together) {
      run_block_together();
      continue;
    }
    for (unsigned j = 0; j < blockDim.x * blockDim.y * blockDim.z; ++j) {
      threadIdx = index_of(j);
      kernel(arguments);
    }
  }
  return !refused;
}
