// Boxes of matrices from global to shared memory (sm_90): one thread asks, tensor maps say how the matrices lie.
#pragma once
#include "pack.cuh"
#include "shared.cuh"

struct alignas(64) TensorMap {  // made by ops/_cuda/tensor_map.py
  unsigned long long words[16];
};

#if __CUDA_ARCH__ >= 900

// Soon to be used: reading a map takes as long as reading what it maps.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box at this place, of 16s of bytes in its row; what lies outside arrives as zeros. `barrier` counts the bytes.
// Lines are kept, as in `fetch_kept`.
__device__ __forceinline__ void bring_box(
    unsigned int to, const TensorMap& map, int column, int row, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(kept_policy())
               : "memory");
}

// As `bring_box` of a matrix of several that lie apart; what lies outside of its matrix arrives as zeros too.
__device__ __forceinline__ void bring_box(
    unsigned int to, const TensorMap& map, int column, int row, int matrix, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(shared_address(barrier)), "l"(kept_policy())
               : "memory");
}

// Bytes that lie together, of 16s, to shared memory; both addresses are multiples of 16.
__device__ __forceinline__ void bring_bytes(
    unsigned int to, const void* from, unsigned int bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// What was written to shared memory, for what is sent from there.
__device__ __forceinline__ void show_to_copying_unit() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A box to its place in a matrix, but for what lies outside.
__device__ __forceinline__ void send_box(const TensorMap& map, int column, int row, unsigned int from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// As `send_box`, to a matrix of several that lie apart.
__device__ __forceinline__ void send_box(const TensorMap& map, int column, int row, int matrix, unsigned int from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(matrix), "r"(from)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// As `bring_bytes` the other way.
__device__ __forceinline__ void send_bytes(void* to, unsigned int from, unsigned int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until what this thread has sent may be written over.
__device__ __forceinline__ void wait_until_sent() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// This block's part of what all blocks are going to read, into the L2 cache. Addresses and bytes are 16s.
__device__ __forceinline__ void prefetch_part(const void* all, unsigned int bytes) {
  const unsigned int blocks = gridDim.x * gridDim.y, part = (bytes / 16 + blocks - 1) / blocks * 16;
  const unsigned int begin = (blockIdx.y * gridDim.x + blockIdx.x) * part;
  if (begin >= bytes) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(all) + begin),
               "r"(min(part, bytes - begin))
               : "memory");
}

#endif
