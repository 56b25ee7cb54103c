// flatten: copies of contiguous tensors by 16-byte vectors, of strided ones by index arithmetic.
#include "flat.cuh"
#include "strides.cuh"

// copy: 16 bytes per thread, and a byte per thread after them; APART, words of an element's width.
// Layout   x, out contiguous                          Grid, Block  as in flat.cuh
// Needs    EXTENT, vectors, threads and evict_last_blocks as in flat.cuh; both aligned unless APART      Writes  out
template <typename W, int V, Extent EXTENT>
__global__ void __launch_bounds__(FLAT_THREADS) copy(
    const W* __restrict__ x, W* __restrict__ out, long long vectors, long long threads,
    unsigned int evict_last_blocks) {
  const VectorAccess<V, EXTENT> access(vectors, threads, blockIdx.x < evict_last_blocks);
  access.store(out, access.load(x));
}

// gather: an element per thread, by index arithmetic.
// Layout   x by Axes and Strides, out flat; W: unsigned word of an element's width; A: most axes
// Grid, Block  as in flat.cuh      Writes  out[size]
template <typename W, int A>
__global__ void __launch_bounds__(SINGLE_THREADS) gather(
    const W* __restrict__ x, W* __restrict__ out, unsigned int size, Axes<A> axes, Strides<A> strides) {
  const VectorAccess<1> access(size, size);
  access.store(out, Vector<W, 1>{x[strided_offsets(access.at, axes, strides).at[0]]});
}
