// Fill with one pattern of 16 bytes; the ends that are not aligned element by element.
#include "vector.cuh"

// W: an unsigned word as wide as an element. KEPT: each `every`-th block writes lines that the cache keeps, for a stream
// is written the faster the fewer lines wait for others to be written back.
template <typename W, bool KEPT>
__global__ void __launch_bounds__(256) fill(
    W* __restrict__ out, W value, uint4 pattern, int head, long long vectors, long long size, unsigned int every) {
  const long long index = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  if (index < vectors) {
    uint4* const to = reinterpret_cast<uint4*>(out + head) + index;
    if (KEPT && blockIdx.x % every == 0) {
      store_evict_last<uint4, 1>(to, Vector<uint4, 1>{pattern});
    } else {
      *to = pattern;
    }
  }
  if (index < head) out[index] = value;
  const long long tail = head + vectors * (16 / sizeof(W)) + index;
  if (tail < size) out[tail] = value;
}

// A block of as many threads as there are elements: nothing to compare, and nothing else to wait for.
template <typename W>
__global__ void __launch_bounds__(1024) fill_few(W* __restrict__ out, W value) {
  out[threadIdx.x] = value;
}
