// wgmma: order and completion of asynchronous matrix products of a warpgroup (sm_90a).
#pragma once

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The products issued since the last call become one group.
__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <int PENDING = 0>
__device__ __forceinline__ void wgmma_commit_and_wait() {
  wgmma_commit_group();
  wgmma_wait_group<PENDING>();
}

// The same; the compiler may not read the sums before.
template <int SIZE>
__device__ __forceinline__ void wgmma_commit_and_wait(float (&sum)[SIZE]) {
  wgmma_commit_and_wait<0>();
#pragma unroll
  for (int i = 0; i < SIZE; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

#endif
