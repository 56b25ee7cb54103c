// Bulk copies between global and shared memory (sm_90), issued by one thread; tensor maps matrix_descriptor matrices.
#pragma once
#include "vector.cuh"
#include "ptx/fence_proxy_async.cuh"
#include "shared.cuh"

struct alignas(64) TensorMap {  // made by ops/_cuda/tensor_map.py
  unsigned long long words[16];
};

#if __CUDA_ARCH__ >= 900

// Prefetches a map: loading it takes as long as loading the data that it describes.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads the box at (column, row); elements outside the matrix are zero. `barrier` counts the bytes. L2 evict_last.
__device__ __forceinline__ void cp_async_bulk_tensor_load(
    unsigned int to, const TensorMap& map, int column, int row, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(evict_last_policy())
               : "memory");
}

// Loads a box of one of several matrices.
__device__ __forceinline__ void cp_async_bulk_tensor_load(
    unsigned int to, const TensorMap& map, int column, int row, int matrix, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(shared_address(barrier)), "l"(evict_last_policy())
               : "memory");
}

// Loads a box of pixels of several images, of which `column` is the first channel.
__device__ __forceinline__ void cp_async_bulk_tensor_load(
    unsigned int to, const TensorMap& map, int column, int x, int y, int image, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
               "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
               "l"(&map), "r"(column), "r"(x), "r"(y), "r"(image), "r"(shared_address(barrier)), "l"(evict_last_policy())
               : "memory");
}

// Loads contiguous bytes; their number and both addresses are multiples of 16.
__device__ __forceinline__ void cp_async_bulk_load(
    unsigned int to, const void* from, unsigned int bytes, unsigned long long* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Stores a box at (column, row); elements outside the matrix are left out.
__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap& map, int column, int row, unsigned int from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Stores a box of one of several matrices.
__device__ __forceinline__ void cp_async_bulk_tensor_store(const TensorMap& map, int column, int row, int matrix, unsigned int from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(matrix), "r"(from)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Stores contiguous bytes.
__device__ __forceinline__ void cp_async_bulk_store(void* to, unsigned int from, unsigned int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores have read their sources, which may then be overwritten.
__device__ __forceinline__ void cp_async_bulk_wait_group_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Prefetches this thread block's share of `bytes` that all blocks read into L2. Addresses and bytes are multiples of 16.
__device__ __forceinline__ void prefetch_part(const void* all, unsigned int bytes) {
  const unsigned int blocks = gridDim.x * gridDim.y, part = (bytes / 16 + blocks - 1) / blocks * 16;
  const unsigned int begin = (blockIdx.y * gridDim.x + blockIdx.x) * part;
  if (begin >= bytes) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(static_cast<const char*>(all) + begin),
               "r"(min(part, bytes - begin))
               : "memory");
}

#endif
