// in_0 + in_1: flat packs of V elements, two under way per thread, and a tail.
#include "pack.cuh"

template <typename T, int V>
__global__ void __launch_bounds__(256) add_n(
    const T* __restrict__ first, const T* __restrict__ second, T* __restrict__ out, long long packs, long long size) {
  const long long stride = static_cast<long long>(gridDim.x) * 256;
  const long long start = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  for (long long pack = start; pack < packs; pack += 2 * stride) {
    const bool more = pack + stride < packs;
    const long long at = pack * V, next = (pack + stride) * V;
    Pack<T, V> a = load<T, V>(first + at), b = load<T, V>(second + at), c{}, d{};
    if (more) {
      c = load<T, V>(first + next);
      d = load<T, V>(second + next);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) a.at[i] = narrow<T>(widen(a.at[i]) + widen(b.at[i]));
    store<T, V>(out + at, a);
    if (more) {
#pragma unroll
      for (int i = 0; i < V; ++i) c.at[i] = narrow<T>(widen(c.at[i]) + widen(d.at[i]));
      store<T, V>(out + next, c);
    }
  }
  const long long tail = packs * V + start;
  if (tail < size) out[tail] = narrow<T>(widen(first[tail]) + widen(second[tail]));
}
