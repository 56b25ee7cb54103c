// in_0 + in_1: flat vectors of V elements, and a tail.
#include "flat.cuh"

template <typename T, int V, Extent EXTENT>
__global__ void __launch_bounds__(FLAT_THREADS) add_n(
    const T* __restrict__ in_0, const T* __restrict__ in_1, T* __restrict__ out, long long vectors, long long size,
    unsigned int kept) {
  const Spot<V, EXTENT> spot(vectors, blockIdx.x < kept);
  const long long tail = tail_of<V, EXTENT>(vectors, size);
  Vector<T, V> sums = spot.load(in_0);
  const Vector<T, V> others = spot.load(in_1);
#pragma unroll
  for (int i = 0; i < V; ++i) sums.at[i] = narrow<T>(widen(sums.at[i]) + widen(others.at[i]));
  spot.store(out, sums);
  if (tail < size) out[tail] = narrow<T>(widen(in_0[tail]) + widen(in_1[tail]));
}
