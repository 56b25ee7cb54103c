// Reductions element by element: few elements, short sums in unaligned rows, and any set of axes.
#pragma once
#include "reduce.cuh"

// DIGITS is defined by ops/_cuda/reduction/elements.py.

// Conversion of an index over several axes to an offset, innermost axis first; the outermost of the `count` axes needs no
// length.
DEFINE_Digits;  // of ops/_cuda/reduction/elements.py

__device__ __forceinline__ long long offset_of(unsigned int index, const Digits& digits) {
  long long offset = 0;
#pragma unroll
  for (int axis = 0; axis < DIGITS - 1; ++axis) {
    if (axis == digits.count - 1) return offset + digits.stride[axis] * index;
    const unsigned int outer = quotient(index, digits.length[axis]);
    offset += digits.stride[axis] * remainder(index, outer, digits.length[axis]);
    index = outer;
  }
  return offset + digits.stride[DIGITS - 1] * index;
}

// x as rows (results, length), as columns (results / columns, length, columns), as (a, r1, b, r2, c) reduced over r1 and r2,
// or with axes of both kinds in any order.
enum Pattern { BY_ROW, BY_COLUMN, TWO_GROUPS, ANY_AXES };

template <Pattern P>
struct Elements;
DEFINE_Elements;

// Offset of the first element of a result.
__device__ __forceinline__ unsigned int first_of(const Elements<BY_ROW>& x, int result) {
  return static_cast<unsigned int>(result) * x.length;
}
__device__ __forceinline__ unsigned int first_of(const Elements<BY_COLUMN>& x, int result) {
  const unsigned int outer = quotient(result, x.columns);
  return result + outer * (x.length - 1) * x.columns.value;
}
__device__ __forceinline__ long long first_of(const Elements<TWO_GROUPS>& x, int result) {
  const unsigned int outer = quotient(result, x.c), a = quotient(outer, x.b);
  return a * x.stride_a + static_cast<long long>(remainder(outer, a, x.b) * x.c.value) * x.r2.value +
         remainder(result, outer, x.c);
}
__device__ __forceinline__ long long first_of(const Elements<ANY_AXES>& x, int result) { return offset_of(result, x.kept); }

// Offset of element `index` of a result from its first one.
__device__ __forceinline__ unsigned int offset_in(const Elements<BY_ROW>&, int index) { return index; }
__device__ __forceinline__ unsigned int offset_in(const Elements<BY_COLUMN>& x, int index) {
  return index * x.columns.value;
}
__device__ __forceinline__ long long offset_in(const Elements<TWO_GROUPS>& x, int index) {
  const unsigned int outer = quotient(index, x.r2);
  return outer * x.stride_r1 + static_cast<long long>(remainder(index, outer, x.r2)) * x.c.value;
}
__device__ __forceinline__ long long offset_in(const Elements<ANY_AXES>& x, int index) { return offset_of(index, x.reduced); }

// Whether the last axis is reduced.
__device__ __forceinline__ bool reduces_last(const Elements<BY_ROW>&) { return true; }
__device__ __forceinline__ bool reduces_last(const Elements<BY_COLUMN>&) { return false; }
template <Pattern P>
__device__ __forceinline__ bool reduces_last(const Elements<P>& x) {
  return x.innermost != 0;
}

// reduce_elements_lanes: 2^bits lanes of a block reduce one result.
// Layout   x by Elements<P>; results and length below 2^31      Grid  results / (threads / lanes) × splits
// Block    a power of two of threads, or whole warps for BY_ROW   Needs  length ≤ EACH · lanes for BY_ROW and BY_COLUMN
// Writes   out[results]; with splits, partials[splits][results] and counters[grid x], which it leaves zero
// Why      all EACH loads of a lane are in flight together, without masks of vectors
template <typename F, Pattern P, int EACH, bool STREAM>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_elements_lanes(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, Elements<P> elements, int results, int bits, int share,
    unsigned int* counters, typename F::Acc* partials) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  constexpr bool LOOPS = P == TWO_GROUPS || P == ANY_AXES;
  const int lanes = 1 << bits, groups = blockDim.x >> bits;
  const int shift = 31 - __clz(groups);
  // Neighbouring threads read neighbouring elements: lanes of one result, or results of one lane.
  const int lane = reduces_last(elements) ? threadIdx.x & (lanes - 1) : threadIdx.x >> shift;
  const int group = reduces_last(elements) ? threadIdx.x >> bits : threadIdx.x & (groups - 1);
  const int result = blockIdx.x * groups + group, own = min(result, results - 1);
  const T* const from = x + first_of(elements, own);
  const T* const other = F::TWO ? second + first_of(elements, own) : from;
  Acc mine = f.identity(), apart = f.identity();  // two independent chains of additions
  const auto take = [&](int first, int end) {
    const int count = ((end - 1 - first) >> bits) + 1;  // of this lane, 0 or less for none
    const auto at = [&](const T* base, int j) {
      if constexpr (LOOPS) {
        return base + offset_in(elements, first + (j << bits));
      } else {  // one multiplication per address
        const unsigned int step = offset_in(elements, static_cast<unsigned int>(sizeof(T))) << bits;
        const char* const bytes = reinterpret_cast<const char*>(base + offset_in(elements, first));
        return reinterpret_cast<const T*>(bytes + static_cast<unsigned long long>(step) * j);
      }
    };
    T one[EACH], two[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) one[j] = j < count ? load<T, 1, STREAM>(at(from, j)).at[0] : f.neutral();
    if constexpr (F::TWO) {
#pragma unroll
      for (int j = 0; j < EACH; ++j) two[j] = j < count ? load<T, 1, STREAM>(at(other, j)).at[0] : f.neutral();
    }
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      Acc& sum = j % 2 == 0 ? mine : apart;
      sum = f.take(sum, one[j], F::TWO ? two[j] : one[j]);
      if constexpr (WRITES_BESIDE<F>) {
        if (j < count && result < results) f.template beside<true>(at(from, j) - x, Vector<T, 1>{{one[j]}});
      }
    }
  };
  if constexpr (LOOPS) {
    const int begin = share * blockIdx.y, end = min(elements.length, begin + share);
    for (int first = begin + lane; first < end; first += EACH << bits) take(first, end);
  } else {
    take(lane, elements.length);
  }
  typename F::Output* const to = early(out + own);
  // The first lane of each result has the sum over its lanes.
  const auto merge_group = [&](Acc sum) {
    if (P == BY_ROW || (LOOPS && reduces_last(elements)) || groups == 1) return lanes <= 32 ? merge_lanes(f, sum, lanes) : merge_warps(f, sum, lanes);
    if (lanes == 1) return sum;
    __shared__ __align__(16) unsigned char memory[REDUCE_THREADS * sizeof(Acc)];
    Acc* const slots = reinterpret_cast<Acc*>(memory) + group;
    slots[lane * groups] = sum;
    for (int half = lanes / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half) slots[lane * groups] = f.merge(slots[lane * groups], slots[(lane + half) * groups]);
    }
    return slots[lane * groups];
  };
  mine = merge_group(f.merge(mine, apart));
  const int splits = gridDim.y;
  if (!LOOPS || splits == 1) {
    store_where<typename F::Output, 1, false>(to, {f.finish(mine)}, lane == 0 && result < results);
    return;
  }
  if (lane == 0 && result < results) partials[static_cast<long long>(blockIdx.y) * results + result] = mine;
  if (!arrive_last(&counters[blockIdx.x], splits)) return;
  Acc total = f.identity();
#pragma unroll 4
  for (int split = lane; split < splits; split += lanes) {
    total = f.merge(total, read_partial(&partials[static_cast<long long>(split) * results + own]));
  }
  total = merge_group(total);
  if (lane == 0 && result < results) *to = f.finish(total);
}
