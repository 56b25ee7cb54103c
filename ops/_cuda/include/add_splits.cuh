// The second pass of sums whose terms are divided among `splits`.
#pragma once
#include "vector.cuh"

// add_splits: threads add the partial results of all splits, in order, and the addend unless it is null.
// Layout   partial[splits][size], addend[size]          Grid  any          Block  256          Writes  to[size]
template <typename O>
__global__ void add_splits(
    const Wide<O>* __restrict__ partial, const O* __restrict__ addend, O* __restrict__ to, long long size, int splits) {
  for (long long index = blockIdx.x * 256LL + threadIdx.x; index < size; index += gridDim.x * 256LL) {
    Wide<O> total = partial[index];
#pragma unroll 8
    for (int split = 1; split < splits; ++split) total += partial[split * size + index];
    if (addend != nullptr) total += widen(addend[index]);
    to[index] = narrow<O>(total);
  }
}
