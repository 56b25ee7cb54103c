// add_n: out = in_0 + in_1, a vector of V elements per thread, and an element per thread after them.
// Layout   in_0, in_1, out flat                    Grid, Block  as in flat.cuh
// Needs    EXTENT, vectors, threads and evict_last_blocks as in flat.cuh            Writes  out[size]
// Why      two reads and one write of 16 bytes per thread
#include "flat.cuh"

template <typename T, int V, Extent EXTENT>
__global__ void __launch_bounds__(flat_threads<V>()) add_n(
    const T* __restrict__ in_0, const T* __restrict__ in_1, T* __restrict__ out, long long vectors, long long threads,
    unsigned int evict_last_blocks) {
  const VectorAccess<V, EXTENT> access(vectors, threads, blockIdx.x < evict_last_blocks);
  Vector<T, V> sums = access.load(in_0);
  const Vector<T, V> others = access.load(in_1);
#pragma unroll
  for (int i = 0; i < V; ++i) sums.at[i] = narrow<T>(widen(sums.at[i]) + widen(others.at[i]));
  access.store(out, sums);
}
