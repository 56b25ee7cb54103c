// cp.async: asynchronous copies from global to shared memory by the threads of a block (sm_80).
#pragma once
#include "shared.cuh"

// Copies 4, 8 or 16 bytes, bypassing the registers; those of 16 bypass L1. Before sm_80 by an ordinary copy.
template <int BYTES = 16>
__device__ __forceinline__ void cp_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES) : "memory");
  }
#else
  memcpy(to, from, BYTES);
#endif
}

#if __CUDA_ARCH__ >= 800
// Copies 4, 8 or 16 bytes, or stores zeros if not `valid`; those of 16 bypass L1.
template <int BYTES>
__device__ __forceinline__ void cp_async_zfill(void* to, const void* from, bool valid) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                 "r"(valid ? BYTES : 0)
                 : "memory");
  }
}
#endif

// The copies started since the last call become one group.
__device__ __forceinline__ void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING groups of this thread are in flight.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Waits for all copies of this thread.
__device__ __forceinline__ void cp_async_wait_all() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

#if __CUDA_ARCH__ >= 800
// One arrival at a barrier of mbarrier.cuh, once every cp.async of this thread has completed.
__device__ __forceinline__ void cp_async_mbarrier_arrive(unsigned long long* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
#endif
