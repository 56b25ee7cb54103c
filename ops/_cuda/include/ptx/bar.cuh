// bar.sync, bar.arrive: named barriers among some warps of a thread block.
#pragma once

#if __CUDA_ARCH__ >= 800

// A barrier among THREADS threads of the block, in whole warps; NUMBER is 1 to 15.
template <int NUMBER, int THREADS>
__device__ __forceinline__ void bar_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void bar_sync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// Arrives without waiting for the other threads.
template <int NUMBER, int THREADS>
__device__ __forceinline__ void bar_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

#endif
