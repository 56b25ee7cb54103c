// Reductions element by element: few elements, short sums in unaligned rows, and any set of axes.
#pragma once
#include "reduce.cuh"

// DIGITS, FEW_DIGITS and LANE_BITS are defined by ops/_cuda/reduction/elements.py.

// Conversion of an index over several axes to an offset. Each quotient of the index, innermost axis first, has a jump: the
// stride of its axis less that of the axis before times its length, so that no remainders are needed. That of an absent axis
// is 0. MOST: axes at most.
DEFINE_Digits;  // of ops/_cuda/reduction/elements.py

template <int MOST>
__device__ __forceinline__ long long offset_of(unsigned int index, const Digits& digits) {
  long long offset = digits.jump[0] * index;
#pragma unroll
  for (int axis = 1; axis < MOST; ++axis) {
    index = quotient(index, digits.length[axis - 1]);
    offset += digits.jump[axis] * index;
  }
  return offset;
}

// x as rows (results, length), as columns (results / columns, length, columns), as (a, r1, b, r2, c) reduced over r1 and r2,
// or with axes of both kinds in any order. Offsets of the first three have 32 bits, and differences wrap.
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
__device__ __forceinline__ unsigned int first_of(const Elements<TWO_GROUPS>& x, unsigned int result) {
  const unsigned int outer = quotient(result, x.c);
  return result + outer * x.jump_b + quotient(outer, x.b) * x.jump_a;
}
__device__ __forceinline__ long long first_of(const Elements<ANY_AXES>& x, int result) {
  return x.kept.count <= FEW_DIGITS ? offset_of<FEW_DIGITS>(result, x.kept) : offset_of<DIGITS>(result, x.kept);
}

// Offset of element `index` of a result from its first one. MOST: reduced axes at most.
template <int MOST>
__device__ __forceinline__ unsigned int offset_in(const Elements<BY_ROW>&, int index) { return index; }
template <int MOST>
__device__ __forceinline__ unsigned int offset_in(const Elements<BY_COLUMN>& x, int index) {
  return index * x.columns.value;
}
template <int MOST>
__device__ __forceinline__ unsigned int offset_in(const Elements<TWO_GROUPS>& x, unsigned int index) {
  return x.c.value * index + quotient(index, x.r2) * x.jump_r1;
}
template <int MOST>
__device__ __forceinline__ long long offset_in(const Elements<ANY_AXES>& x, int index) {
  return offset_of<MOST>(index, x.reduced);
}

template <Pattern P>
__device__ __forceinline__ bool has_few_axes(const Elements<P>&) { return true; }
template <>
__device__ __forceinline__ bool has_few_axes(const Elements<ANY_AXES>& x) {
  return x.reduced.count <= FEW_DIGITS;
}

template <int A>
struct Most {
  static constexpr int VALUE = A;
};

// Whether neighbouring threads are lanes of one result, as the last axis is reduced; else they are results of one lane.
__device__ __forceinline__ bool has_lanes_beside(const Elements<BY_ROW>&) { return true; }
__device__ __forceinline__ bool has_lanes_beside(const Elements<BY_COLUMN>&) { return false; }
template <Pattern P>
__device__ __forceinline__ bool has_lanes_beside(const Elements<P>& x) {
  return x.innermost != 0;
}

// Merges over the 2^bits lanes of each of a block's `groups` results. The sums are then in neighbouring lanes, and that of a
// result in the first of them.
template <typename F>
__device__ __forceinline__ typename F::Acc merge_results(const F& f, typename F::Acc mine, int bits, int groups, bool beside) {
  using Acc = typename F::Acc;
  const int lanes = 1 << bits;
  if (!beside && lanes > 1 && groups > 1) {
    __shared__ __align__(16) unsigned char memory[REDUCE_THREADS * sizeof(Acc)];
    Acc* const slots = reinterpret_cast<Acc*>(memory);
    slots[threadIdx.x] = mine;
    __syncthreads();
    mine = slots[(threadIdx.x & (lanes - 1)) * groups + (threadIdx.x >> bits)];
  }
  return lanes <= 32 ? merge_lanes(f, mine, lanes) : merge_warps(f, mine, lanes);
}

// reduce_elements_lanes: 2^bits lanes of a block reduce one result, `groups` results per block (groups << LANE_BITS | bits).
// What every sum needs comes first: other lines of 64 bytes of the arguments arrive 30 ns later.
// Layout   x by Elements<P>; results and length below 2^31      Grid  results / groups × splits
// Block    groups · 2^bits threads: a power of two, or whole warps for BY_ROW
// Needs    length ≤ EACH · lanes for BY_ROW and BY_COLUMN
// Writes   out[results], through flagged partials (splits, results), which are zero between launches, if there are splits
// Waits    the last split merges those before it
// Why      all EACH loads of a lane are in flight together, without masks of vectors
template <typename F, Pattern P, int EACH, bool STREAM>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_elements_lanes(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, Elements<P> elements, int results,
    int groups_and_bits, int share, const typename F::Input* __restrict__ second, unsigned long long* flagged) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  constexpr bool LOOPS = P == TWO_GROUPS || P == ANY_AXES;
  const int bits = groups_and_bits & ((1 << LANE_BITS) - 1), groups = groups_and_bits >> LANE_BITS;
  const int lanes = 1 << bits, shift = 31 - __clz(groups);
  const bool beside = has_lanes_beside(elements);
  const int lane = beside ? threadIdx.x & (lanes - 1) : threadIdx.x >> shift;
  const int result = blockIdx.x * groups + (beside ? threadIdx.x >> bits : threadIdx.x & (groups - 1));
  const int own = min(result, results - 1);
  const T* const from = x + first_of(elements, own);
  const T* const other = F::TWO ? second + first_of(elements, own) : from;
  Acc mine = f.identity(), apart = f.identity();  // two independent chains of additions
  const auto take = [&](auto most, int first, int end) {
    constexpr int MOST = decltype(most)::VALUE;
    const int count = ((end - 1 - first) >> bits) + 1;  // of this lane, 0 or less for none
    const auto at = [&](const T* base, int j) {
      if constexpr (LOOPS) {
        return base + offset_in<MOST>(elements, first + (j << bits));
      } else {  // one multiplication per address
        const unsigned int step = offset_in<MOST>(elements, static_cast<unsigned int>(sizeof(T))) << bits;
        const char* const bytes = reinterpret_cast<const char*>(base + offset_in<MOST>(elements, first));
        return reinterpret_cast<const T*>(bytes + static_cast<unsigned long long>(step) * j);
      }
    };
    const auto load_or_neutral = [&](const T* base, int j) {
      if constexpr (P == BY_ROW) {
        return j < count ? load<T, 1, STREAM>(at(base, j)).at[0] : f.neutral();
      } else {  // the address does not depend on the predicate, or its parameters would be read again for each load
        const VectorWord<T, 1> word = fetch_where<T, 1, STREAM>(at(base, j), j < count);
        return j < count ? as_vector<T, 1>(word).at[0] : f.neutral();
      }
    };
    T one[EACH], two[EACH];
#pragma unroll
    for (int j = 0; j < EACH; ++j) one[j] = load_or_neutral(from, j);
    if constexpr (F::TWO) {
#pragma unroll
      for (int j = 0; j < EACH; ++j) two[j] = load_or_neutral(other, j);
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
    const auto take_all = [&](auto most) {
      for (int first = begin + lane; first < end; first += EACH << bits) take(most, first, end);
    };
    if (has_few_axes(elements)) {
      take_all(Most<FEW_DIGITS>());
    } else {
      take_all(Most<DIGITS>());
    }
  } else {
    take(Most<1>(), lane, elements.length);
  }
  const int merged = blockIdx.x * groups + (threadIdx.x >> bits);  // the result in whose lanes merge_results leaves its sum
  const bool leader = merged < results && (threadIdx.x & (lanes - 1)) == 0;
  typename F::Output* const to = early(out + merged);
  mine = merge_results(f, f.merge(mine, apart), bits, groups, beside);
  const int splits = gridDim.y;
  if (!LOOPS || splits == 1) {
    store_where<typename F::Output, 1, false>(to, {f.finish(mine)}, leader);
    return;
  }
  unsigned long long* const words = flagged + merged * WORDS<Acc>;
  if (blockIdx.y + 1 < splits) {
    if (leader) publish(words + static_cast<long long>(blockIdx.y) * results * WORDS<Acc>, mine);
    return;
  }
  const int before = merged < results ? splits - 1 : 0;
  mine = leader ? mine : f.identity();
  mine = collect<4>(f, mine, words, before, threadIdx.x & (lanes - 1), lanes, results);
  __syncthreads();
  mine = merge_results(f, mine, bits, groups, true);
  if (leader) *to = f.finish(mine);
}
