// Warps that bring and warps that multiply hand stages of shared memory to each other: barriers in shared memory, by PTX.
#pragma once
#include "shared.cuh"

#if __CUDA_ARCH__ >= 800

// A phase ends with its `count`-th arrival; the next one begins by itself.
__device__ __forceinline__ void barrier_init(unsigned long long* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned long long* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
               : "memory");
}

#if __CUDA_ARCH__ >= 900
// One arrival; the barrier's phase also waits for `bytes` to be copied or sent.
__device__ __forceinline__ void barrier_arrive_and_expect(unsigned long long* barrier, unsigned int bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
#endif

// One arrival, once all that this thread has begun to copy by cp.async is there.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned long long* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Until the phase of this parity has ended: 0 for the first, 1 for the second, 0 for the third ...
__device__ __forceinline__ void barrier_wait(unsigned long long* barrier, unsigned int parity) {
  unsigned int done;
  do {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#endif
  } while (done == 0);
}

// Among `THREADS` threads of the block, whole warps: `NUMBER` is 1 to 15.
template <int NUMBER, int THREADS>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

template <int THREADS>
__device__ __forceinline__ void meet(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

#endif
