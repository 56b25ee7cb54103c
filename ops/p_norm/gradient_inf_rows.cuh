// Gradient of p_norm along rows for porder +-inf.
#pragma once
#include "ties.cuh"

// SHORT_EACH and PART_EACH, vectors per thread, are defined by ops/p_norm/cuda.py.

constexpr int MOST_ROWS = ROW_THREADS;  // maximum rows of a block

// grad_inf_short_rows: one thread block computes several consecutive rows, whose vectors stay in registers.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows / most      Block  ROW_THREADS
// Needs    rows no shorter than a vector; all rows of a block at most SHORT_EACH vectors per thread      Writes  dx
// Why      few threads per row; a vector may span two rows
template <typename T, int V>
__global__ void __launch_bounds__(ROW_THREADS) grad_inf_short_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long rows,
    int most, int shift, Divisor length) {
  constexpr int HELD = SHORT_EACH;
  using At = Part<T, V, int>;
  __shared__ unsigned int counts[MOST_ROWS];
  __shared__ T thresholds[MOST_ROWS + 1];
  const long long first = static_cast<long long>(blockIdx.x) * most;
  const int ours = static_cast<int>(min(static_cast<long long>(most), rows - first));
  const At at = part_from<T, V>(x, dx, first * length.value, ours * static_cast<int>(length.value), shift);
  y += first;
  dy += first;
  typename At::W held[HELD];
#pragma unroll
  for (int h = 0; h < HELD; ++h) held[h] = at.fetch(threadIdx.x + h * ROW_THREADS);
  if (threadIdx.x < ours) {
    counts[threadIdx.x] = 0;
    thresholds[threadIdx.x] = narrow<T>(TieShare<T>(y[threadIdx.x], dy[threadIdx.x]).threshold());
  }
  __syncthreads();
  unsigned int out = 0;  // a bit for each element that may tie
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    const int index = threadIdx.x + h * ROW_THREADS, element = index * V - at.low;
    if (index >= at.vectors) continue;
    const int row = quotient(max(element, 0), length);
    const int left = (row + 1) * static_cast<int>(length.value) - element;  // elements until the next row
    const T threshold = thresholds[row], next = thresholds[row + 1];
    unsigned int bits = 0;
    if constexpr (V == 8) {
      const unsigned int ours = (1u << min(left, V)) - 1;
      bits = (tie_bits<T>(held[h], threshold) & ours) | (tie_bits<T>(held[h], next) & ~ours);
    } else {
      const Vector<T, V> vector = as_vector<T, V>(held[h]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        bits |= static_cast<unsigned int>(may_tie(vector.at[i], widen(i < left ? threshold : next))) << i;
      }
    }
    out |= bits << h * V;
    at.write(as_vector<T, V>(typename At::W{}), index);
  }
  // Sets elements that may tie to their share, as if unique unless ties are counted.
  const auto fix_up = [&](bool counted) {
    for (unsigned int bits = out; bits != 0;) {
      const int bit = 31 - __clz(bits), place = (threadIdx.x + bit / V * ROW_THREADS) * V + bit % V;
      bits ^= 1u << bit;
      if (!at.ours(place)) continue;
      const int row = quotient(place - at.low, length);
      if (counted && counts[row] <= 1) continue;
      const TieShare<T> shares(y[row], dy[row], counted ? static_cast<Wide<T>>(counts[row]) : Wide<T>(1));
      if (!counted && shares.tie(at.from[place])) atomicAdd(&counts[row], 1u);
      at.to[place] = shares.of(at.from[place]);
    }
  };
  fix_up(false);
  __syncthreads();
  fix_up(true);
}

// A row's blocks in grad_inf_rows: one that holds it in registers, one that computes part after part, or one for each part.
enum Scope { BLOCK, LOOP, GRID };

// Minimum resident blocks per multiprocessor: as many as the registers allow without spills.
constexpr int PARTS_RESIDENT = 5;
static_assert(PARTS_RESIDENT >= INF_RESIDENT, "blocks of a split row that wait are resident");
template <int V, Scope SCOPE>
constexpr int ROWS_RESIDENT = SCOPE == GRID   ? PARTS_RESIDENT
                              : SCOPE == LOOP ? (V == 8 ? 3 : V == 1 ? 6 : 4)
                                              : (V == 4 ? 6 : V == 2 ? 5 : 4);

template <Scope SCOPE>
struct Ties {  // number of a row's; in GRID, and in registers, fewer than 2^32
  using type = unsigned int;
};
template <>
struct Ties<LOOP> {
  using type = unsigned long long;
};

// Parts of a row: `share` aligned vectors, at most PART_EACH per thread.
template <typename T, int V, bool WHOLE>
struct RowParts {
  using At = Part<T, V, int, WHOLE>;
  const T* x;
  T* dx;
  long long length;
  int shift, share;

  __device__ __forceinline__ At of(long long row, unsigned int part) const {
    const long long start = row * length, past = static_cast<long long>(part) * share * V;
    const int ahead = WHOLE ? 0 : static_cast<int>((start + shift) & (V - 1));
    const long long first = start - ahead + past, left = length + ahead - past;
    return At(x + first, dx + first, part == 0 ? ahead : 0, static_cast<int>(min(left, static_cast<long long>(share) * V)));
  }
};

// A thread's vectors of a part.
template <typename T, int V, bool WHOLE>
struct PartVectors {
  using At = Part<T, V, int, WHOLE>;
  typename At::W words[PART_EACH];

  __device__ __forceinline__ void load(const At& at) {
#pragma unroll
    for (int h = 0; h < PART_EACH; ++h) words[h] = at.fetch(threadIdx.x + h * GRAD_THREADS);
  }

  // Returns the number of ties.
  __device__ __forceinline__ int count(const At& at, const TieShare<T>& shares, Wide<T> threshold) const {
    int tied = 0;
#pragma unroll
    for (int h = 0; h < PART_EACH; ++h) {
      const int index = threadIdx.x + h * GRAD_THREADS;
      const Vector<T, V> vector = as_vector<T, V>(words[h]);
      bool any = false;
#pragma unroll
      for (int i = 0; i < V; ++i) any |= may_tie(vector.at[i], threshold);
      if (!any || index >= at.vectors) continue;
#pragma unroll
      for (int i = 0; i < V; ++i) tied += at.ours(index * V + i) && shares.tie(vector.at[i]);
    }
    return tied;
  }

  // Writes the gradient and returns the number of ties. AGAIN: rewrites vectors with elements that may tie.
  template <bool AGAIN>
  __device__ __forceinline__ int write(const At& at, const TieShare<T>& shares, Wide<T> threshold) const {
    int tied = 0;
#pragma unroll
    for (int h = 0; h < PART_EACH; ++h) {
      const int index = threadIdx.x + h * GRAD_THREADS;
      if (index >= at.vectors) continue;
      const Vector<T, V> vector = as_vector<T, V>(words[h]);
      Vector<T, V> given = as_vector<T, V>(typename At::W{});
      bool any = false;
#pragma unroll
      for (int i = 0; i < V; ++i) any |= may_tie(vector.at[i], threshold);
      if (any) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          given.at[i] = shares.of(vector.at[i]);
          tied += at.ours(index * V + i) && shares.tie(vector.at[i]);
        }
      }
      if (any || !AGAIN) at.write(given, index);
    }
    return tied;
  }
};

// Rewrites a row's ties if there are several, in parts from number `first` on, `fixups` apart, that are marked.
template <typename T, int V, bool WHOLE>
__device__ __forceinline__ void fix_up(
    const RowParts<T, V, WHOLE>& row_parts, long long row, unsigned int first, const Divisor& parts, const Divisor& fixups,
    const TieShare<T>& shares, unsigned char* marked) {
  __shared__ unsigned int several[GRAD_THREADS], many;
  const Wide<T> threshold = shares.threshold();
  for (; first < parts.value; first += GRAD_THREADS * fixups.value) {
    if (threadIdx.x == 0) many = 0;
    __syncthreads();
    const unsigned int mine = first + threadIdx.x * fixups.value;
    if (mine < parts.value && marked[mine] != 0) {
      several[atomicAdd(&many, 1u)] = mine;
      marked[mine] = 0;
    }
    __syncthreads();
    for (unsigned int i = 0; i < many; ++i) {
      const auto at = row_parts.of(row, several[i]);
      PartVectors<T, V, WHOLE> vectors;
      vectors.load(at);
      vectors.template write<true>(at, shares, threshold);
    }
    __syncthreads();
  }
}

// grad_inf_rows: thread blocks compute rows of at least a few vectors per thread, in parts.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows; GRID: rows · parts + rows · fixups      Block  GRAD_THREADS
// Needs    BLOCK: one part; GRID: fewer than 2^32 elements per row; WHOLE: aligned rows of vectors
// Writes   dx; arrived[rows] counts arrivals, seen[rows][fixups] what fix-ups have read, marked[rows][parts] parts with ties
// Waits    GRID: fix-up blocks wait for all parts of their row. They start last, and ops/p_norm/cuda.py limits their number
//          to the resident blocks, so that every part makes progress
// Why      BLOCK: ties are counted before anything is written. LOOP: enough rows to fill the device. GRID: parts end after one
//          load, so that memory is read in order; ties across parts are rare
template <typename T, int V, Scope SCOPE, bool WHOLE>
__global__ void __launch_bounds__(GRAD_THREADS, ROWS_RESIDENT<V, SCOPE>) grad_inf_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long length,
    int shift, int share, Divisor parts, unsigned int blocks, Divisor fixups, unsigned long long* arrived,
    unsigned long long* seen, unsigned char* marked) {
  __shared__ typename Ties<SCOPE>::type found;
  const RowParts<T, V, WHOLE> row_parts{x, dx, length, shift, share};
  if (SCOPE == GRID && blockIdx.x >= blocks) {
    const unsigned int fixup = blockIdx.x - blocks, row = quotient(fixup, fixups);
    if (threadIdx.x == 0) found = wait_for_arrivals(arrived + row, seen + fixup, parts.value);
    __syncthreads();
    if (found <= 1) return;
    const TieShare<T> shares(y[row], dy[row], static_cast<Wide<T>>(found));
    marked += static_cast<long long>(row) * parts.value;
    return fix_up(row_parts, row, remainder(fixup, row, fixups), parts, fixups, shares, marked);
  }
  const unsigned int row = SCOPE == GRID ? quotient(blockIdx.x, parts) : blockIdx.x;
  auto at = row_parts.of(row, SCOPE == GRID ? remainder(blockIdx.x, row, parts) : 0);
  PartVectors<T, V, WHOLE> vectors;
  vectors.load(at);
  const T norm = y[row], grad = dy[row];
  if (threadIdx.x == 0) found = 0;
  if constexpr (SCOPE != GRID) __syncthreads();
  const TieShare<T> alone(norm, grad);
  const Wide<T> threshold = alone.threshold();
  const auto add = [&](typename Ties<SCOPE>::type tied) {
    if (tied > 0) atomicAdd(&found, tied);
    __syncthreads();
  };
  if constexpr (SCOPE == BLOCK) {
    add(vectors.count(at, alone, threshold));
    vectors.template write<false>(at, TieShare<T>(norm, grad, static_cast<Wide<T>>(found)), threshold);
  } else if constexpr (SCOPE == GRID) {
    const unsigned int tied = vectors.template write<false>(at, alone, threshold);
    if (__syncthreads_or(tied)) {
      if (threadIdx.x == 0) marked[blockIdx.x] = 1;
      add(tied);
    }
    if (threadIdx.x == 0) arrive(arrived + row, found);
  } else {
    unsigned long long mine = 0;
    unsigned int first = 0, last = 0;  // part in which elements may tie
    for (unsigned int part = 0; part < parts.value; ++part) {
      const auto next = row_parts.of(row, part + 1);  // loaded before this one is written
      const PartVectors<T, V, WHOLE> now = vectors;
      vectors.load(next);
      const int tied = now.template write<false>(at, alone, threshold);
      at = next;
      if (tied == 0) continue;
      if (mine == 0) first = part;
      last = part;
      mine += tied;
    }
    add(mine);
    if (found <= 1 || mine == 0) return;
    const TieShare<T> shares(norm, grad, static_cast<Wide<T>>(found));
    for (unsigned int part = first; part <= last; ++part) {
      at = row_parts.of(row, part);
      vectors.load(at);
      vectors.template write<true>(at, shares, threshold);
    }
  }
}
