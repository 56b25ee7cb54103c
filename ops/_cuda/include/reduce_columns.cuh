// Reductions along outer axes, by vectors of V elements along the inner one.
#pragma once
#include "reduce.cuh"

// COLUMN_THREADS, SLAB_THREADS and SLAB_BYTES are defined by ops/_cuda/reduction/columns.py.
// Vectors in flight per thread: vectors of eight half or two double elements leave fewer registers.
template <typename T>
constexpr int COLUMN_IN_FLIGHT = sizeof(T) == 4 ? 8 : 4;
template <typename T, int V>
constexpr int COLUMN_IN_FLIGHT_BESIDE = V == 1 && sizeof(T) == 2 ? 8 : 4;  // of the same vectors that are also written
template <typename A>
constexpr int PARTIALS_IN_FLIGHT = sizeof(A) == 4 ? 8 : 4;
// Minimum resident blocks per multiprocessor for __launch_bounds__: the power of a double is a call.
template <typename F>
constexpr int COLUMN_RESIDENT = sizeof(typename F::Input) < 8 || WRITES_BESIDE<F> ? 1024 / COLUMN_THREADS : 1;

DEFINE_ColumnLayout;  // of ops/_cuda/reduction/columns.py
DEFINE_SlabLayout;

// reduce_columns_grid: threads along c with V columns each, `blockDim.y` of them along the rows.
// Layout   x by ColumnLayout          Grid  outer / blockDim.z × splits          Block  (lanes, rows, tiles) ≤ COLUMN_THREADS
// Needs    WHOLE: every row begins and ends with a vector, width = lanes · V. Otherwise blockDim.y rows are whole vectors,
//          so that a thread has the same columns in each of its rows, and width ≤ (lanes - 1) · V.
// Writes   out[a][b][kept]; with splits, through flagged partials (splits, a b kept), which are zero between launches
// Waits    the last split of each column, which starts last, waits for the others
// Why      loads are 16 bytes wide wherever rows begin; blocks of many tiles serve short columns, splits few columns;
//          blocks of a column take rows in turn, so that memory is read in order
template <typename F, int V, bool STREAM, bool WHOLE>
__global__ void __launch_bounds__(COLUMN_THREADS, COLUMN_RESIDENT<F>) reduce_columns_grid(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, ColumnLayout layout, int shift,
    unsigned long long* flagged) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  __shared__ __align__(16) unsigned char memory[V * COLUMN_THREADS * sizeof(Acc)];
  Acc* const slots = reinterpret_cast<Acc*>(memory);
  const int lanes = blockDim.x, rows = blockDim.y, splits = gridDim.y;
  const int before = threadIdx.z * rows * lanes, slot = before + threadIdx.y * lanes + threadIdx.x;
  const int outer = blockIdx.x * blockDim.z + threadIdx.z, own = min(outer, layout.outer - 1);
  const unsigned int result_row = quotient(own, layout.tiles), tile = remainder(own, result_row, layout.tiles);
  const unsigned int a = quotient(result_row, layout.b), b = remainder(result_row, a, layout.b);
  const int first_column = tile * layout.width, columns = min(layout.width, layout.c - first_column);
  const int stride = rows * splits, first_row = rows * blockIdx.y + threadIdx.y;
  const auto offset = [&](int row) {
    if (layout.r2.value == 1) return row * layout.stride_r1;
    const unsigned int group = quotient(row, layout.r2);
    return group * layout.stride_r1 + static_cast<long long>(remainder(row, group, layout.r2)) * layout.c;
  };
  const long long begin = a * layout.stride_a + b * layout.stride_b + first_column;
  const int past = WHOLE ? 0 : static_cast<int>(begin + offset(first_row) + shift) & (V - 1);
  const int column = static_cast<int>(threadIdx.x) * V - past;  // of the tile; may begin before it
  const long long step = stride * layout.stride_r1;
  int end = layout.rows;
  if (!WHOLE && layout.rest > max(first_column + column, 0)) ++end;
  const auto fetch_row = [](const T* from, bool there) {
    if constexpr (WRITES_BESIDE<F>) return fetch_evict_last<T, V>(from, there);
    return fetch_where<T, V, STREAM>(from, there);
  };
  Acc mine[V];
#pragma unroll
  for (int i = 0; i < V; ++i) mine[i] = f.identity();
  // Adds the rows of this thread; place(row, j): of the row j strides after `row`.
  const auto add_rows = [&](auto&& place) {
    constexpr int IN_FLIGHT = WRITES_BESIDE<F> ? COLUMN_IN_FLIGHT_BESIDE<T, V> : COLUMN_IN_FLIGHT<T>;
    for (int row = first_row; row < end; row += IN_FLIGHT * stride) {
      VectorWord<T, V> words[IN_FLIGHT];
#pragma unroll
      for (int j = 0; j < IN_FLIGHT; ++j) words[j] = fetch_row(x + place(row, j), row + j * stride < end);
#pragma unroll
      for (int j = 0; j < IN_FLIGHT; ++j) {
        if (row + j * stride >= end) continue;
        const Vector<T, V> vector = as_vector<T, V>(words[j]);
        if (!WHOLE && row + j * stride == layout.rows) {  // the row with a rest
#pragma unroll
          for (int i = 0; i < V; ++i) {
            if (first_column + column + i < layout.rest) mine[i] = f.take(mine[i], vector.at[i], vector.at[i]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < V; ++i) mine[i] = f.take(mine[i], vector.at[i], vector.at[i]);
        }
        if constexpr (WRITES_BESIDE<F>) f.template beside<WHOLE>(place(row, j), vector);
      }
    }
  };
  if (outer < layout.outer && column < columns) {
    if (!WHOLE || layout.r2.value == 1) {
      add_rows([&](int row, int j) { return begin + column + row * layout.stride_r1 + j * step; });
    } else {
      add_rows([&](int row, int j) { return begin + column + offset(row + j * stride); });
    }
  }
  const long long result = static_cast<long long>(result_row) * layout.kept + first_column;
  if (WHOLE && rows == 1 && splits == 1) {
    if (outer >= layout.outer || column >= columns) return;
    Vector<typename F::Output, V> vector;
#pragma unroll
    for (int i = 0; i < V; ++i) vector.at[i] = f.finish(mine[i]);
    store<typename F::Output, V>(out + result + column, vector);
    return;
  }
  if (layout.in_warp > 1) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      for (int distance = lanes; distance < 32; distance *= 2) mine[i] = f.merge(mine[i], shuffle_xor(mine[i], distance));
    }
  }
  const int row_of_block = threadIdx.y / layout.in_warp;
  // Column q of row y is in slots[q % V][y][q / V]: neighbouring threads write neighbouring slots.
  const auto place = [&](int q, int y) { return (q & (V - 1)) * COLUMN_THREADS + before + y * lanes + q / V; };
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int q = column + i;
    if (q >= 0 && q < columns && threadIdx.y % layout.in_warp == 0) slots[place(q, row_of_block)] = mine[i];
  }
  for (int left = rows / layout.in_warp, half; left > 1; left = half) {
    __syncthreads();
    half = (left + 1) / 2;
    if (threadIdx.y + half < left) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        Acc* const at = slots + i * COLUMN_THREADS + slot;
        *at = f.merge(*at, at[half * lanes]);
      }
    }
  }
  __syncthreads();
  const int results = min(columns, layout.kept), lane = threadIdx.y * lanes + threadIdx.x;
  const int all = layout.outer / layout.tiles.value * layout.kept;
  const auto words = [&](int split, int q) { return flagged + (static_cast<long long>(split) * all + result + q) * WORDS<Acc>; };
  for (int q = lane; outer < layout.outer && q < results; q += lanes * rows) {
    Acc total = slots[place(q, 0)];
    for (int again = q + layout.kept; again < columns; again += layout.kept) total = f.merge(total, slots[place(again, 0)]);
    if (splits == 1) {
      out[result + q] = f.finish(total);
    } else {
      publish(words(blockIdx.y, q), total);
    }
  }
  if (blockIdx.y + 1 < splits || splits == 1) return;
  // Threads share the splits of a column, and the first of them has their sum.
  const int threads = lanes * rows, groups = max(1, threads / results), group = groups > 1 ? lane / results : 0;
  const auto sum_of = [&](int q) {
    return collect<PARTIALS_IN_FLIGHT<Acc>>(f, f.identity(), words(0, q), group < groups ? splits : 0, group, groups, all);
  };
  if (groups == 1) {
    for (int q = lane; q < results; q += threads) out[result + q] = f.finish(sum_of(q));
    return;
  }
  const Acc part = sum_of(lane - group * results);
  __syncthreads();
  slots[lane] = part;
  __syncthreads();
  if (lane >= results) return;
  Acc total = slots[lane];
  for (int other = 1; other < groups; ++other) total = f.merge(total, slots[lane + other * results]);
  out[result + lane] = f.finish(total);
}

// reduce_slabs_block: one thread block adds the r1 slabs (r2, c) of its (a, b), then the rows of c in their sum.
// Layout   x[a][r1][b][r2][c], reduced over r1 and r2                 Grid  a b                   Block  ≤ SLAB_THREADS
// Needs    r2 c ≤ SLAB; c ≤ block; all slabs of a block begin equally far past an aligned address
// Writes   out[a][b][c]           shift: elements from the start of a cache line to x
// Why      both groups of axes are summed in one read, by vectors whatever c is
template <typename F>
constexpr int SLAB = SLAB_BYTES / sizeof(typename F::Acc);
template <typename F>
constexpr int SLAB_RESIDENT = sizeof(typename F::Input) == 8 ? 2 : (sizeof(typename F::Input) == 4 ? 4 : 3);

template <typename F, int V, bool STREAM>
__global__ void __launch_bounds__(SLAB_THREADS, SLAB_RESIDENT<F>) reduce_slabs_block(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, SlabLayout layout, int shift) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  constexpr int IN_FLIGHT = 6;
  __shared__ __align__(16) unsigned char memory[SLAB<F> * sizeof(Acc)];
  Acc* const slots = reinterpret_cast<Acc*>(memory);
  const unsigned int b_count = layout.b, a = blockIdx.x / b_count, b = blockIdx.x - a * b_count;
  const int slabs = layout.r1, rows = layout.r2, columns = layout.c, slab = rows * columns;
  constexpr int LINE = LINE_VECTORS * V;
  const long long begin = (static_cast<long long>(a) * slabs * b_count + b) * slab, first = (begin + shift) / LINE * LINE - shift;
  const long long stride = static_cast<long long>(b_count) * slab;
  const int low = static_cast<int>(begin - first), high = low + slab;
  for (int at = threadIdx.x * V; at < high; at += blockDim.x * V) {
    const T* from = x + first + at;
    Acc mine[V];
#pragma unroll
    for (int i = 0; i < V; ++i) mine[i] = f.identity();
#pragma unroll 1
    for (int done = 0; done < slabs; done += IN_FLIGHT) {
      VectorWord<T, V> words[IN_FLIGHT];
#pragma unroll
      for (int j = 0; j < IN_FLIGHT; ++j, from += stride) words[j] = fetch_where<T, V, STREAM>(from, done + j < slabs);
#pragma unroll
      for (int j = 0; j < IN_FLIGHT; ++j) {
        if (done + j >= slabs) continue;
        const Vector<T, V> vector = as_vector<T, V>(words[j]);
#pragma unroll
        for (int i = 0; i < V; ++i) mine[i] = f.take(mine[i], vector.at[i], vector.at[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (at + i >= low && at + i < high) slots[at + i - low] = mine[i];
    }
  }
  __syncthreads();
  const int groups = min(rows, static_cast<int>(blockDim.x) / columns), group = threadIdx.x / columns;
  if (group < groups) {
    Acc mine = slots[threadIdx.x];
    const int step = groups * columns;
    for (int slot = threadIdx.x + step; slot < slab; slot += step) mine = f.merge(mine, slots[slot]);
    slots[threadIdx.x] = mine;  // no other thread has read it
  }
  for (int left = groups, half; left > 1; left = half) {
    __syncthreads();
    half = (left + 1) / 2;
    if (group + half < left) slots[threadIdx.x] = f.merge(slots[threadIdx.x], slots[threadIdx.x + half * columns]);
  }
  if (group == 0) out[static_cast<long long>(blockIdx.x) * columns + threadIdx.x] = f.finish(slots[threadIdx.x]);
}
