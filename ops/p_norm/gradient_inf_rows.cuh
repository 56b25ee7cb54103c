// Gradient of p_norm along rows for porder +-inf.
#pragma once
#include "ties.cuh"

// SHORT_EACH, ROW_EACH and PART_EACH, vectors per thread, are defined by ops/p_norm/cuda.py.

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

constexpr int PARTS_RESIDENT = 5;           // minimum resident blocks per multiprocessor
static_assert(PARTS_RESIDENT >= INF_RESIDENT, "blocks of a split row that wait are resident");

// grad_inf_rows_block: one thread block computes one row, whose vectors stay in registers.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows      Block  GRAD_THREADS
// Needs    a row of at most ROW_EACH vectors per thread                   Writes  dx
// Why      ties are counted before anything is written
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS) grad_inf_rows_block(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, int length,
    int shift) {
  using At = Part<T, V, int>;
  __shared__ unsigned int found;
  const long long row = blockIdx.x;
  const At at = part_from<T, V>(x, dx, row * length, length, shift);
  typename At::W held[ROW_EACH];
#pragma unroll
  for (int h = 0; h < ROW_EACH; ++h) held[h] = at.fetch(threadIdx.x + h * GRAD_THREADS);
  const T norm = y[row], grad = dy[row];
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const TieShare<T> alone(norm, grad);
  const Wide<T> threshold = alone.threshold();
  bool any[ROW_EACH];  // whether any element of a vector may tie
  unsigned int tied = 0;
#pragma unroll
  for (int h = 0; h < ROW_EACH; ++h) {
    const int index = threadIdx.x + h * GRAD_THREADS;
    const Vector<T, V> vector = as_vector<T, V>(held[h]);
    any[h] = false;
#pragma unroll
    for (int i = 0; i < V; ++i) any[h] |= may_tie(vector.at[i], threshold);
    any[h] &= index < at.vectors;
    if (!any[h]) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) tied += at.ours(index * V + i) && alone.tie(vector.at[i]);
  }
  if (tied > 0) atomicAdd(&found, tied);
  __syncthreads();
  const TieShare<T> shares(norm, grad, static_cast<Wide<T>>(found));
#pragma unroll
  for (int h = 0; h < ROW_EACH; ++h) {
    const int index = threadIdx.x + h * GRAD_THREADS;
    if (index >= at.vectors) continue;
    const Vector<T, V> vector = as_vector<T, V>(held[h]);
    Vector<T, V> given = as_vector<T, V>(typename At::W{});
    if (any[h]) {
#pragma unroll
      for (int i = 0; i < V; ++i) given.at[i] = shares.of(vector.at[i]);
    }
    at.write(given, index);
  }
}

// Writes a vector's gradient and returns the number of ties. AGAIN: rewrites a vector with elements that may tie.
template <bool AGAIN, typename T, int V, typename I, bool WHOLE>
__device__ __forceinline__ int write_ties(
    const Part<T, V, I, WHOLE>& at, const VectorWord<T, V>& word, I index, const TieShare<T>& shares, Wide<T> threshold) {
  const Vector<T, V> vector = as_vector<T, V>(word);
  Vector<T, V> given = as_vector<T, V>(VectorWord<T, V>{});
  bool any = false;
  int tied = 0;
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
  return tied;
}

// grad_inf_rows_loop: one thread block computes one row in several passes over its threads.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows      Block  GRAD_THREADS      Writes  dx
// Why      rows longer than a block's registers, and enough of them to fill the device
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS) grad_inf_rows_loop(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long length,
    int shift) {
  constexpr int TOGETHER = 4, TURN = TOGETHER * GRAD_THREADS;
  using At = Part<T, V, long long>;
  __shared__ unsigned long long found;
  const long long row = blockIdx.x;
  const At at = part_from<T, V>(x, dx, row * length, length, shift);
  const T norm = y[row], grad = dy[row];
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const TieShare<T> alone(norm, grad);
  const Wide<T> threshold = alone.threshold();
  unsigned long long mine = 0;
  long long first = 0, last = -1;  // iteration in which elements may tie, by its first vector
  typename At::W words[TOGETHER];  // of the next iteration, loaded before those of this one are written
  const auto load_next = [&](long long begin) {
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) words[j] = at.fetch(begin + j * GRAD_THREADS);
  };
  load_next(threadIdx.x);
  for (long long begin = threadIdx.x; begin < at.vectors; begin += TURN) {
    typename At::W now[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) now[j] = words[j];
    load_next(begin + TURN);
    int tied = 0;
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      const long long index = begin + j * GRAD_THREADS;
      if (index < at.vectors) tied += write_ties<false>(at, now[j], index, alone, threshold);
    }
    if (tied == 0) continue;
    if (mine == 0) first = begin;
    last = begin;
    mine += tied;
  }
  if (mine > 0) atomicAdd(&found, mine);
  __syncthreads();
  if (found <= 1) return;
  const TieShare<T> shares(norm, grad, static_cast<Wide<T>>(found));
  const long long end = min(at.vectors, last + TURN);
  for (long long index = first; index < end; index += GRAD_THREADS) {
    write_ties<true>(at, at.fetch(index), index, shares, threshold);
  }
}

// grad_inf_rows_grid: each block computes a part of a row; fix-up blocks rewrite ties across parts.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows · parts + rows · fixups      Block  GRAD_THREADS
// Needs    share ≤ PART_EACH · GRAD_THREADS vectors; fewer than 2^32 elements per row; WHOLE: aligned rows of vectors
// Writes   dx; arrived[rows] counts arrivals, seen[rows][fixups] what fix-ups have read, marked[rows][parts] parts with ties
// Waits    fix-up blocks wait for all parts of their row. They start last, and ops/p_norm/cuda.py limits their number to
//          the resident blocks, so that every part makes progress
// Why      parts end after one load, so that memory is read in order; ties across parts are rare
template <typename T, int V, bool WHOLE>
__global__ void __launch_bounds__(GRAD_THREADS, PARTS_RESIDENT) grad_inf_rows_grid(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long length,
    int shift, int share, unsigned int blocks, Divisor parts, Divisor fixups, unsigned long long* arrived,
    unsigned long long* seen, unsigned char* marked) {
  using At = Part<T, V, int, WHOLE>;
  __shared__ unsigned int found, several[GRAD_THREADS], many;
  const auto part_of = [&](long long row, unsigned int part) {
    const long long start = row * length, past = static_cast<long long>(part) * share * V;
    const int ahead = WHOLE ? 0 : static_cast<int>((start + shift) & (V - 1));
    const long long first = start - ahead + past, left = length + ahead - past;
    return At(x + first, dx + first, part == 0 ? ahead : 0, static_cast<int>(min(left, static_cast<long long>(share) * V)));
  };
  typename At::W words[PART_EACH];
  const auto load_next = [&](const At& at) {
#pragma unroll
    for (int h = 0; h < PART_EACH; ++h) words[h] = at.fetch(threadIdx.x + h * GRAD_THREADS);
  };
  if (blockIdx.x < blocks) {
    const unsigned int row = quotient(blockIdx.x, parts), part = remainder(blockIdx.x, row, parts);
    const At at = part_of(row, part);
    load_next(at);
    if (threadIdx.x == 0) found = 0;
    const TieShare<T> alone(y[row], dy[row]);
    const Wide<T> threshold = alone.threshold();
    int tied = 0;
#pragma unroll
    for (int h = 0; h < PART_EACH; ++h) {
      const int index = threadIdx.x + h * GRAD_THREADS;
      if (index < at.vectors) tied += write_ties<false>(at, words[h], index, alone, threshold);
    }
    if (__syncthreads_or(tied)) {
      if (tied > 0) atomicAdd(&found, static_cast<unsigned int>(tied));
      if (threadIdx.x == 0) marked[blockIdx.x] = 1;
      __syncthreads();
    }
    if (threadIdx.x == 0) arrive(arrived + row, found);
    return;
  }
  const unsigned int fixup = blockIdx.x - blocks, row = quotient(fixup, fixups);
  if (threadIdx.x == 0) found = wait_for_arrivals(arrived + row, seen + fixup, parts.value);
  __syncthreads();
  if (found <= 1) return;
  const TieShare<T> shares(y[row], dy[row], static_cast<Wide<T>>(found));
  const Wide<T> threshold = shares.threshold();
  marked += static_cast<long long>(row) * parts.value;
  const unsigned int use = GRAD_THREADS * fixups.value;
  for (unsigned int first = remainder(fixup, row, fixups); first < parts.value; first += use) {
    if (threadIdx.x == 0) many = 0;
    __syncthreads();
    const unsigned int mine = first + threadIdx.x * fixups.value;
    if (mine < parts.value && marked[mine] != 0) {
      several[atomicAdd(&many, 1u)] = mine;
      marked[mine] = 0;
    }
    __syncthreads();
    for (unsigned int i = 0; i < many; ++i) {
      const At at = part_of(row, several[i]);
      load_next(at);
#pragma unroll
      for (int h = 0; h < PART_EACH; ++h) {
        const int index = threadIdx.x + h * GRAD_THREADS;
        if (index < at.vectors) write_ties<true>(at, words[h], index, shares, threshold);
      }
    }
    __syncthreads();
  }
}
