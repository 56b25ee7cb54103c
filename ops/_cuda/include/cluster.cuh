// Thread-block clusters, by PTX. Empty before the architectures that have them.
#pragma once
#include "ptx/mbarrier.cuh"
#include "shared.cuh"

#if __CUDA_ARCH__ >= 900
#define CLUSTER(BLOCKS) __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER(BLOCKS)
#endif

__device__ __forceinline__ void prefetch_to_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

__device__ __forceinline__ unsigned int cluster_rank() {
  unsigned int rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// Makes previous stores visible to the other blocks after their `cluster_wait`. The arrival therefore waits for every
// store of the thread, also to global memory.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}

// Like `cluster_arrive`, but makes only initialized barriers visible, and waits for no store.
__device__ __forceinline__ void cluster_arrive_with_barriers() {
#if __CUDA_ARCH__ >= 900
  mbarrier_init_fence();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ unsigned int remote_address(const void* ours, unsigned int rank) {
  unsigned int offset = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(offset) : "r"(shared_address(ours)), "r"(rank));
#endif
  return offset;
}

// Reads another block's copy of a shared variable of ours.
template <typename T>
__device__ __forceinline__ T read_remote(const T* ours, unsigned int rank) {
  T value = *ours;
#if __CUDA_ARCH__ >= 900
  const unsigned int offset = remote_address(ours, rank);
  if constexpr (sizeof(T) == 8) {
    unsigned long long bits;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(bits) : "r"(offset) : "memory");
    value = *reinterpret_cast<T*>(&bits);
  } else {
    unsigned int bits;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(bits) : "r"(offset) : "memory");
    value = *reinterpret_cast<T*>(&bits);
  }
#endif
  return value;
}

// Stores to another block's copy of a shared variable of ours; that block's barrier counts the bytes.
template <typename T>
__device__ __forceinline__ void publish(T* ours, T value, unsigned long long* barrier, unsigned int rank) {
#if __CUDA_ARCH__ >= 900
  const unsigned int to = remote_address(ours, rank), counter = remote_address(barrier, rank);
  if constexpr (sizeof(T) == 8) {
    const unsigned long long bits = *reinterpret_cast<const unsigned long long*>(&value);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to), "l"(bits),
                 "r"(counter)
                 : "memory");
  } else {
    const unsigned int bits = *reinterpret_cast<const unsigned int*>(&value);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(bits),
                 "r"(counter)
                 : "memory");
  }
#endif
}
