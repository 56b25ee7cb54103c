// fill_any_like by element width: out is filled with one 16-byte pattern, unaligned ends element by element.
#include "vector.cuh"

// fill: a vector per thread, and the ends.
// Layout   out flat; W: unsigned word of an element's width      Grid  vectors / 256      Block  256      Writes  out[size]
// Why      EVICT_LAST: every `every`-th block stores with L2 evict_last, so that fewer lines wait for write-back
template <typename W, bool EVICT_LAST>
__global__ void __launch_bounds__(256) fill(
    W* __restrict__ out, W value, uint4 pattern, int head, long long vectors, long long size, unsigned int every) {
  const long long index = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if (index < vectors) {
    uint4* const to = reinterpret_cast<uint4*>(out + head) + index;
    if (EVICT_LAST && blockIdx.x % every == 0) {
      store_evict_last<uint4, 1>(to, Vector<uint4, 1>{pattern});
    } else {
      *to = pattern;
    }
  }
  if (index < head) out[index] = value;
  const long long tail = head + vectors * (16 / sizeof(W)) + index;
  if (tail < size) out[tail] = value;
}

// fill_few: an element per thread.
// Layout   out flat      Grid  1      Block  size      Writes  out[size]
// Why      a one-wave kernel is bound by instruction fetch: there is no bounds check
template <typename W>
__global__ void __launch_bounds__(1024) fill_few(W* __restrict__ out, W value) {
  out[threadIdx.x] = value;
}
