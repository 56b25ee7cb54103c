// Gradient of p_norm along columns for porder +-inf.
#pragma once
#include "ties.cuh"

// INF_RESIDENT, resident blocks per multiprocessor, MOST_LANES, threads along columns, and COLUMNS_EACH, maximum rows per
// thread, are defined by ops/p_norm/cuda.py.

// grad_inf_columns_grid: threads follow columns; splits of a column exchange their number of ties.
// Layout   x, dx[a][r1][b][r2][c] by Columns; y, dy[a][b][c]      Grid  a b column blocks × splits      Block  (lanes, rows)
// Needs    with splits, at most INF_RESIDENT blocks per multiprocessor
// Writes   dx; counts[a][b][c], a word for sum_over_blocks(), which it leaves zero
// Waits    blocks that find ties wait for all splits of their columns
// Why      any layout, with one read of x
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS, INF_RESIDENT) grad_inf_columns_grid(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Layout layout,
    unsigned long long* counts) {
  using W = VectorWord<T, V>;
  __shared__ unsigned int found[MOST_LANES * V];
  __shared__ Wide<T> totals[MOST_LANES * V];
  __shared__ W norms[MOST_LANES], grads[MOST_LANES];
  const int threads = blockDim.x * blockDim.y, slot = threadIdx.y * blockDim.x + threadIdx.x;
  const int columns = blockDim.x * V, splits = gridDim.y;
  for (int column = slot; column < columns; column += threads) found[column] = 0;
  Columns<V> at(layout, blockIdx.y);
  Vector<T, V> thresholds;
  const auto prepare = [&] {
    if (at.ours) {
      const W norm = fetch<T, V>(y + at.result), grad = fetch<T, V>(dy + at.result);
      norms[threadIdx.x] = norm;
      grads[threadIdx.x] = grad;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        thresholds.at[i] = narrow<T>(TieShare<T>(as_vector<T, V>(norm).at[i], as_vector<T, V>(grad).at[i]).threshold());
      }
    }
    __syncthreads();
  };
  // Writes a vector, whose elements share with those counted. Returns whether any may tie.
  const auto write = [&](const Vector<T, V>& vector, long long place, bool counted) {
    Vector<T, V> given = as_vector<T, V>(W{});
    const bool any = any_may_tie(vector, thresholds);
    if (any) {
      const Vector<T, V> norm = as_vector<T, V>(norms[threadIdx.x]), grad = as_vector<T, V>(grads[threadIdx.x]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int column = threadIdx.x * V + i;
        const TieShare<T> shares(norm.at[i], grad.at[i], counted ? totals[column] : Wide<T>(1));
        given.at[i] = shares.of(vector.at[i]);
        if (!counted && shares.tie(vector.at[i])) atomicAdd(&found[column], 1u);
      }
    }
    store_evict_last<T, V>(dx + place, given);
    return any;
  };
  bool several = false;
  long long last = -1;  // index of a vector in which some stand out
  for_each_vector<T, V>(x, at, prepare, [&](const Vector<T, V>& vector, long long place, long long index) {
    if (!write(vector, place, false)) return;
    several = last >= 0;
    last = index;
  });
  __syncthreads();
  for (int column = slot; column < columns; column += threads) {
    const int further = column - static_cast<int>(threadIdx.x) * V;
    unsigned long long count = found[column];
    if (splits > 1 && at.column + further < layout.c) count = sum_over_blocks(&counts[at.result + further], count, splits);
    totals[column] = static_cast<Wide<T>>(count);
  }
  __syncthreads();
  if (last < 0) return;
  bool shared = false;
#pragma unroll
  for (int i = 0; i < V; ++i) shared = shared || totals[threadIdx.x * V + i] > 1;
  if (!shared) return;
  const long long origin = (at.start - at.column) * layout.r2 + at.column;
#pragma unroll 1
  for (long long index = several ? layout.share * blockIdx.y + threadIdx.y : last; index <= last; index += blockDim.y) {
    const long long outward = layout.r2 == 1 ? index : index / layout.r2, inward = index - outward * layout.r2;
    const long long place = origin + outward * at.stride + inward * layout.c;
    write(load<T, V>(x + place), place, true);
  }
}

template <int V>
constexpr int COLUMNS_RESIDENT = V == 8 ? 2 : V == 2 ? 3 : 4;

// grad_inf_columns_block: one thread block computes its columns, whose vectors stay in registers.
// Layout   x, dx[a][r1][c]; y, dy[a][c]      Grid  a column blocks      Block  (lanes, rows)
// Needs    at most COLUMNS_EACH rows per thread, fewer than 256 in all      Writes  dx
// Why      ties are counted, in a byte per column, before anything is written
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS, COLUMNS_RESIDENT<V>) grad_inf_columns_block(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Layout layout) {
  using A = Wide<T>;
  using W = VectorWord<T, V>;
  constexpr int WORDS = (V + 3) / 4;
  __shared__ unsigned int found[WORDS][MOST_LANES];
  const Columns<V> at(layout, 0);
  const int left = static_cast<int>(at.end - at.index), rows = blockDim.y;
  W held[COLUMNS_EACH];
#pragma unroll
  for (int h = 0; h < COLUMNS_EACH; ++h) held[h] = fetch_evict_last<T, V>(x + at.place + h * at.step, h * rows < left);
  Vector<T, V> norms = as_vector<T, V>(W{}), dues = norms;  // dues: share of a tie, dy until ties are counted
  if (at.ours) {
    norms = load<T, V>(y + at.result);
    dues = load<T, V>(dy + at.result);
  }
  bool all = false;  // zero times some dy is no zero: all elements get something
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const TieShare<T> alone(norms.at[i], dues.at[i]);
    norms.at[i] = narrow<T>(alone.norm);
    all |= alone.threshold() != alone.norm;
  }
  if (threadIdx.y == 0) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) found[w][threadIdx.x] = 0;
  }
  __syncthreads();
  unsigned int given_some = 0, tied[WORDS] = {};  // a bit per vector, a byte per column
#pragma unroll
  for (int h = 0; h < COLUMNS_EACH; ++h) {
    const Vector<T, V> vector = as_vector<T, V>(held[h]);
    if (h * rows >= left || !(all || any_may_tie(vector, norms))) continue;
    given_some |= 1u << h;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      tied[i / 4] += static_cast<unsigned int>(may_tie(vector.at[i], widen(norms.at[i]))) << i % 4 * 8;
    }
  }
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    if (tied[w] > 0) atomicAdd(&found[w][threadIdx.x], tied[w]);
  }
  __syncthreads();
  if (given_some > 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const unsigned int count = found[i / 4][threadIdx.x] >> i % 4 * 8 & 0xffu;
      if (count > 1) dues.at[i] = narrow<T>(widen(dues.at[i]) / static_cast<A>(count));
    }
  }
#pragma unroll
  for (int h = 0; h < COLUMNS_EACH; ++h) {
    if (h * rows >= left) continue;
    Vector<T, V> given = as_vector<T, V>(W{});
    if (given_some >> h & 1) {
      const Vector<T, V> vector = as_vector<T, V>(held[h]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A value = widen(vector.at[i]), due = widen(dues.at[i]);
        given.at[i] = narrow<T>(!may_tie(vector.at[i], widen(norms.at[i])) ? A(0) * due
                                : value != value                           ? value
                                                                           : (value > 0 ? due : -due));
      }
    }
    store_evict_last<T, V>(dx + at.place + h * at.step, given);
  }
}
