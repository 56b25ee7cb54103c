// in_0 + in_1: flat packs of V elements, P under way per thread, and a tail.
#include "span.cuh"

template <typename T, int V, int P>
__global__ void __launch_bounds__(SPAN_THREADS<P>) add_n(
    const T* __restrict__ in_0, const T* __restrict__ in_1, T* __restrict__ out, long long packs, long long size) {
  const Share share = share_of(packs);
  const long long tail = tail_of<V>(packs, size);
  Span<T, V, P> a, b;
  a.load(in_0, share);
  b.load(in_1, share);
#pragma unroll
  for (int i = 0; i < P * V; ++i) {
    T& element = a.at[i / V].at[i % V];
    element = narrow<T>(widen(element) + widen(b.at[i / V].at[i % V]));
  }
  a.store(out, share);
  if (tail < size) out[tail] = narrow<T>(widen(in_0[tail]) + widen(in_1[tail]));
}
