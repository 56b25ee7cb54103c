// Fills by element width: out is filled with one 16-byte pattern, unaligned ends element by element.
#include "flat.cuh"

// fill: a vector per thread, and an element per thread before and after the vectors.
// Layout   out flat: `head` elements, vectors, and the rest; W: unsigned word of an element's width; pattern: of equal ones
// Grid     threads / 256      Block  256      Writes  out[size]
// Why      LARGE: every `every`-th block stores with L2 evict_last, so that fewer lines wait for write-back
template <typename W, Extent EXTENT>
__global__ void __launch_bounds__(FLAT_THREADS) fill(
    W* __restrict__ out, long long vectors, long long threads, int head, unsigned int every, uint4 pattern) {
  using Index = typename Indexed<EXTENT>::type;
  const Index index = static_cast<Index>(blockIdx.x) * FLAT_THREADS + threadIdx.x, whole = static_cast<Index>(vectors);
  const Index end = index - whole, at = end < static_cast<Index>(head) ? end : end + whole * static_cast<Index>(16 / sizeof(W));
  uint4* const to = reinterpret_cast<uint4*>(out + head) + index;
  if (EXTENT == LARGE && blockIdx.x % every == 0) {
    store_where<uint4, 1, true>(to, {pattern}, index < whole);
  } else {
    store_where<uint4, 1, false>(to, {pattern}, index < whole);
  }
  store_where<W, 1, false>(out + at, {*reinterpret_cast<const W*>(&pattern)}, index >= whole && index < static_cast<Index>(threads));
}

// fill_exact: an element per thread, or 16 bytes.
// Layout   out flat      Grid · Block  size      Writes  out[size]
// Why      without a comparison, the store is issued earliest; blockDim.x would come from one more line of constants
template <typename W>
__global__ void __launch_bounds__(1024) fill_exact(W* __restrict__ out, int block, W value) {
  out[blockIdx.x * block + threadIdx.x] = value;
}
