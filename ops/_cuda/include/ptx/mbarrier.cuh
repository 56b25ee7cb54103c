// mbarrier: barriers in shared memory, for producer and consumer warps and for asynchronous copies.
#pragma once
#include "shared.cuh"

#if __CUDA_ARCH__ >= 800

// A phase ends with its `count`-th arrival; the next one begins by itself.
__device__ __forceinline__ void mbarrier_init(unsigned long long* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned long long* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(barrier))
               : "memory");
}

#if __CUDA_ARCH__ >= 900
// Makes initialized barriers visible to asynchronous copies and to the other blocks of a cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival; the phase also waits for `bytes` of asynchronous copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned long long* barrier, unsigned int bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
#endif

// Waits until the phase of this parity has ended: 0 for the first, 1 for the second, 0 for the third ...
__device__ __forceinline__ void mbarrier_wait(unsigned long long* barrier, unsigned int parity) {
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

#endif
