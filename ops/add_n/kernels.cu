// in_0 + in_1: flat packs of V elements, P under way per thread, and a tail.
#include "span.cuh"

template <typename T, int V, int P>
__global__ void __launch_bounds__(SPAN_THREADS) add_n(
    const T* __restrict__ in_0, const T* __restrict__ in_1, T* __restrict__ out, long long packs, long long size) {
  const long long first = first_pack<P>(), tail = packs * V + first;
  Span<T, V, P> a, b;
  a.load(in_0, first, packs);
  b.load(in_1, first, packs);
#pragma unroll
  for (int i = 0; i < P * V; ++i) {
    T& element = a.at[i / V].at[i % V];
    element = narrow<T>(widen(element) + widen(b.at[i / V].at[i % V]));
  }
  a.store(out, first, packs);
  if (tail < size) out[tail] = narrow<T>(widen(in_0[tail]) + widen(in_1[tail]));
}
