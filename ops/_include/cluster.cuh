// Thread-block clusters and bulk copies, by PTX. Empty before the architectures that have them.
#pragma once
#include "pipeline.cuh"

#if __CUDA_ARCH__ >= 900
#define CLUSTER(BLOCKS) __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER(BLOCKS)
#endif

__device__ __forceinline__ unsigned int cluster_rank() {
  unsigned int rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// To the place that our own shared variable has in another block of the cluster.
template <typename T>
__device__ __forceinline__ void write_remote(T* ours, unsigned int rank, T value) {
#if __CUDA_ARCH__ >= 900
  const unsigned int here = static_cast<unsigned int>(__cvta_generic_to_shared(ours));
  unsigned int place;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(here), "r"(rank));
  if constexpr (sizeof(T) == 8) {
    asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(place), "l"(*reinterpret_cast<unsigned long long*>(&value))
                 : "memory");
  } else {
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(place), "r"(*reinterpret_cast<unsigned int*>(&value))
                 : "memory");
  }
#endif
}

#if __CUDA_ARCH__ >= 900

// What was initialized so far is seen by copies and by the other blocks of the cluster.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// One arrival, after which the phase also waits for that many bytes.
__device__ __forceinline__ void barrier_expect(unsigned long long* barrier, unsigned int bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   barrier_address(barrier)),
               "r"(bytes)
               : "memory");
}

// From global to shared memory, counted by the barrier; addresses and bytes are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned int bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   static_cast<unsigned int>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes), "r"(barrier_address(barrier))
               : "memory");
}

__device__ __forceinline__ void prefetch_bulk(const void* from, unsigned int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

#endif
