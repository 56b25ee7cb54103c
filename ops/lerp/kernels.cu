// lerp and its gradient. out = x + w (y - x); dx = (1 - w) dout, dy = w dout, summed where an input is repeated.
#include "flat.cuh"
#include "reduce.cuh"
#include "walk.cuh"

constexpr int THREADS = 256;

template <typename A>
__device__ __forceinline__ A blend(A x, A y, A weight) {
  return x + weight * (y - x);
}

// One shape; the weight is a TENSOR, or `number`. Of larger blocks, for long streams, each KEPT_OF-th keeps its results.
constexpr int KEPT_OF = 16;

template <typename T, int V, bool TENSOR, Extent EXTENT, int THREADS>
__global__ void __launch_bounds__(THREADS) lerp_flat(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ weight, T* __restrict__ out,
    Wide<T> number, long long packs, unsigned int kept) {
  const Spot<V, EXTENT, THREADS> spot(packs, THREADS > FLAT_THREADS ? blockIdx.x % KEPT_OF == 0 : blockIdx.x < kept);
  const Pack<T, V> from = spot.load(x), to = spot.load(y);
  Pack<T, V> parts, result;
  if constexpr (TENSOR) parts = spot.load(weight);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const Wide<T> part = TENSOR ? widen(parts.at[i]) : number;
    result.at[i] = narrow<T>(blend(widen(from.at[i]), widen(to.at[i]), part));
  }
  spot.store(out, result);
}

// Two axes: grid (blocks of a row, rows). x, y and weight begin every row `x_row`, `y_row` and `weight_row` elements
// further on, and are repeated along it where their STEP is 0. The weight is `number` where its STEP is NO_TENSOR.
constexpr int NO_TENSOR = -1;

template <typename T, int V, int X_STEP, int Y_STEP, int WEIGHT_STEP>
__global__ void __launch_bounds__(FLAT_THREADS) lerp_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ weight, T* __restrict__ out,
    Wide<T> number, long long packs, long long x_row, long long y_row, long long weight_row) {
  const Spot<V> spot(packs);
  const T* const x_from = x + blockIdx.y * x_row;
  const T* const y_from = y + blockIdx.y * y_row;
  const T* const weight_from = weight + blockIdx.y * weight_row;
  Pack<T, V> from, to, parts, result;
  T one;
  if constexpr (X_STEP == 1) from = spot.load(x_from);
  if constexpr (Y_STEP == 1) to = spot.load(y_from);
  if constexpr (WEIGHT_STEP == 1) parts = spot.load(weight_from);
  if constexpr (X_STEP == 0 || Y_STEP == 0) one = X_STEP == 0 ? *x_from : *y_from;
  if constexpr (WEIGHT_STEP == 0) number = widen(*weight_from);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const T begin = X_STEP == 0 ? one : from.at[i], end = Y_STEP == 0 ? one : to.at[i];
    result.at[i] = narrow<T>(blend(widen(begin), widen(end), WEIGHT_STEP == 1 ? widen(parts.at[i]) : number));
  }
  spot.store(out + blockIdx.y * packs * V, result);
}

// V elements of an operand that is contiguous or repeated along the innermost axis: then only the first is loaded,
// and `of` gives it for each.
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> gather(const T* from, const Strides& strides, long long at) {
  if (V == 1 || strides.at[0] == 1) return load<T, V>(from + at);
  Pack<T, V> result;
  result.at[0] = from[at];
  return result;
}

template <typename T, int V>
__device__ __forceinline__ T of(const Pack<T, V>& gathered, const Strides& strides, int i) {
  return V == 1 || strides.at[0] == 1 ? gathered.at[i] : gathered.at[0];
}

// Broadcast operands: the innermost axis is a multiple of V, and no operand has a stride but 0 and 1 along it.
template <typename T, int V, int P>
__global__ void __launch_bounds__(THREADS) lerp_broadcast(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ weight, T* __restrict__ out,
    Wide<T> number, unsigned int packs, Axes axes, Strides of_x, Strides of_y, Strides of_weight) {
  const unsigned int first = blockIdx.x * (THREADS * P) + threadIdx.x;
  Pack<T, V> a[P], b[P], w[P];
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const unsigned int pack = first + j * THREADS, at = pack * V;
    if (pack >= packs) break;
    a[j] = gather<T, V>(x, of_x, place(at, axes, of_x));
    b[j] = gather<T, V>(y, of_y, place(at, axes, of_y));
    if (weight != nullptr) w[j] = gather<T, V>(weight, of_weight, place(at, axes, of_weight));
  }
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const unsigned int pack = first + j * THREADS;
    if (pack >= packs) break;
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Wide<T> share = weight != nullptr ? widen(of(w[j], of_weight, i)) : number;
      result.at[i] = narrow<T>(blend(widen(of(a[j], of_x, i)), widen(of(b[j], of_y, i)), share));
    }
    store<T, V>(out + pack * V, result);
  }
}

// Nothing summed: dx and dy have dout's shape, either may be null. SUBTRACT: dx = dout - dy, as the design document.
// The weight is a TENSOR, or `number`, and `rest` is 1 - number.
template <typename T, int V, bool TENSOR, bool SUBTRACT>
__global__ void __launch_bounds__(FLAT_THREADS) grad_flat(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy, Wide<T> number,
    Wide<T> rest, long long packs) {
  using A = Wide<T>;
  const Spot<V> spot(packs);
  const Pack<T, V> given = spot.load(dout);
  Pack<T, V> parts, first, second;
  if constexpr (TENSOR) parts = spot.load(weight);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A value = widen(given.at[i]);
    const A part = TENSOR ? widen(parts.at[i]) : number;
    const A left = TENSOR ? A(1) - part : rest;
    first.at[i] = narrow<T>(SUBTRACT ? value - part * value : left * value);
    second.at[i] = narrow<T>(part * value);
  }
  if (dx != nullptr) spot.store(dx, first);
  if (dy != nullptr) spot.store(dy, second);
}

// The same with a weight that broadcasts: an element a thread.
template <typename T>
__global__ void __launch_bounds__(THREADS) grad_broadcast(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy,
    unsigned int size, Axes axes, Strides of_weight) {
  using A = Wide<T>;
  const unsigned int at = blockIdx.x * THREADS + threadIdx.x;
  if (at >= size) return;
  const A value = widen(dout[at]), share = widen(weight[place(at, axes, of_weight)]);
  if (dx != nullptr) dx[at] = narrow<T>((A(1) - share) * value);
  if (dy != nullptr) dy[at] = narrow<T>(share * value);
}

constexpr int UNDER_WAY = 4;  // packs of a thread that sums, all loaded before the first is used

template <typename A>
struct Add {
  using Acc = A;
  __device__ __forceinline__ A identity() const { return 0; }
  __device__ __forceinline__ A merge(A a, A b) const { return a + b; }
};

// dout (rows, length), weight a number: sum[row] = factor sum dout[row], other = other_factor dout unless null.
// grid: `splits` adjacent blocks a row, of `share` packs each, so that blocks sweep over memory in order, and where they
// are several those that collect what they send, `lanes` threads a row; mail (rows, splits). length is a multiple of V.
template <typename T, int V>
__global__ void __launch_bounds__(REDUCE_THREADS, LONG_RESIDENT) grad_rows(
    const T* __restrict__ dout, T* __restrict__ sum, T* __restrict__ other, Wide<T> factor, Wide<T> other_factor,
    int rows, long long length, int splits, long long share, int lanes, unsigned long long* mail) {
  using A = Wide<T>;
  __shared__ A slots[REDUCE_THREADS / 32];
  const int row = blockIdx.x / static_cast<unsigned int>(splits), split = blockIdx.x - row * splits;
  const auto put = [&](int ours, A all) { sum[ours] = narrow<T>(factor * all); };
  if (row >= rows) {
    collect_rows<REDUCE_THREADS>(Add<A>{}, slots, blockIdx.x - rows * splits, rows, splits, lanes, mail, put);
    return;
  }
  const long long begin = row * length + share * split * V, left = min(share, length / V - share * split);
  A mine = 0;
  for (int start = threadIdx.x; start < left; start += UNDER_WAY * REDUCE_THREADS) {
    PackWord<T, V> loaded[UNDER_WAY];
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      const long long pack = start + j * REDUCE_THREADS;
      loaded[j] = fetch_kept<T, V>(dout + begin + pack * V, pack < left);
    }
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      const long long pack = start + j * REDUCE_THREADS;
      if (pack >= left) break;
      const Pack<T, V> given = unpacked<T, V>(loaded[j]);
      Pack<T, V> result;
      A few = 0;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A value = widen(given.at[i]);
        few += value;
        result.at[i] = narrow<T>(other_factor * value);
      }
      mine += few;
      if (other != nullptr) store_kept<T, V>(other + begin + pack * V, result);
    }
  }
  mine = merge_at_end<REDUCE_THREADS>(Add<A>{}, mine, slots);
  if (threadIdx.x > 0) return;
  if (splits > 1) {
    send(mail + (static_cast<long long>(row) * splits + split) * WORDS<A>, mine);
  } else {
    put(row, mine);
  }
}

// Any pattern: a block sums one element of a gradient over the axes along which its input is repeated.
// kept, summed: the axes of the result and of the sum, each with its strides in dout and in weight. dout counts
// sign weight + offset times, without a weight `offset` times: 1 - weight of a number is more exact on the host.
template <typename T>
__global__ void __launch_bounds__(REDUCE_THREADS) grad_any(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ sum, Wide<T> sign, Wide<T> offset,
    Axes kept, Strides kept_dout, Strides kept_weight, Axes summed, Strides summed_dout,
    Strides summed_weight, unsigned int count) {
  using A = Wide<T>;
  const T* const from = dout + place(blockIdx.x, kept, kept_dout);
  const T* const shares = weight == nullptr ? nullptr : weight + place(blockIdx.x, kept, kept_weight);
  A mine = 0;
  for (unsigned int index = threadIdx.x; index < count; index += REDUCE_THREADS) {
    const A share = shares == nullptr ? A(0) : widen(shares[place(index, summed, summed_weight)]);
    mine += (offset + sign * share) * widen(from[place(index, summed, summed_dout)]);
  }
  mine = merge_block(Add<A>{}, mine);
  if (threadIdx.x == 0) sum[blockIdx.x] = narrow<T>(mine);
}

// dout (batch, rows, C), weight a number: lanes along C, `sum` is (batch, C); other as in grad_rows.
// block (lanes, rows); grid (column blocks, splits, batch); mail (batch, splits - 1, C), as in grad_rows.
template <typename T, int V>
__global__ void __launch_bounds__(REDUCE_THREADS, LONG_RESIDENT) grad_columns(
    const T* __restrict__ dout, T* __restrict__ sum, T* __restrict__ other, Wide<T> factor, Wide<T> other_factor,
    int rows, int channels, unsigned long long* mail) {
  using A = Wide<T>;
  struct Columns {
    A at[V];
  };
  __shared__ A slots[V][REDUCE_THREADS];
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * V, split = blockIdx.y, splits = gridDim.y;
  const int slot = threadIdx.y * blockDim.x + threadIdx.x;
  const bool ours = column < channels;
  const long long batch = blockIdx.z, before = batch * rows * channels + column;
  dout += before;
  if (other != nullptr) other += before;
  mail += (batch * (splits - 1) * channels + column) * WORDS<A>;
  Columns mine{};
  const auto add = [&](const Columns& more) {
#pragma unroll
    for (int i = 0; i < V; ++i) mine.at[i] += more.at[i];
  };
  const int step = splits * blockDim.y, end = ours ? rows : 0;
  for (int start = split * blockDim.y + threadIdx.y; start < end; start += UNDER_WAY * step) {
    PackWord<T, V> loaded[UNDER_WAY];
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      const long long row = start + j * step;
      loaded[j] = fetch_kept<T, V>(dout + row * channels, row < end);
    }
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      const long long row = start + j * step;
      if (row >= end) break;
      const Pack<T, V> given = unpacked<T, V>(loaded[j]);
      Columns values;
      Pack<T, V> result;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        values.at[i] = widen(given.at[i]);
        result.at[i] = narrow<T>(other_factor * values.at[i]);
      }
      add(values);
      if (other != nullptr) store_kept<T, V>(other + row * channels, result);
    }
  }
  const auto letter = [&](int from) { return mail + static_cast<long long>(from) * channels * WORDS<A>; };
  if (split == splits - 1) {
    for (int from = threadIdx.y; ours && from < splits - 1; from += blockDim.y) {
      add(await<Columns>(letter(from)));
      clear<Columns>(letter(from));
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) slots[i][slot] = mine.at[i];
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (threadIdx.y < half) slots[i][slot] += slots[i][slot + half * blockDim.x];
    }
  }
  if (threadIdx.y > 0 || !ours) return;
#pragma unroll
  for (int i = 0; i < V; ++i) mine.at[i] = slots[i][slot];
  if (split < splits - 1) {
    send(letter(split), mine);
    return;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) sum[batch * channels + column + i] = narrow<T>(factor * mine.at[i]);
}

// dout (batch, ...) of two axes and C columns, weight a number: `kept_sums` (batch, rows, C) is summed over the `steps`
// of one axis, `walked_sums` (batch, steps, C) over the rows of the other; from one to the next are `to_step` and
// `to_row` elements. grid (column blocks, batch). A warp keeps the sums of its ROWS rows in registers; what the rows of a step
// give, all warps put together, a step a warp.
constexpr int ROWS = 8;

template <typename T, int V>
__global__ void __launch_bounds__(THREADS) grad_crossed(
    const T* __restrict__ dout, T* __restrict__ kept_sums, T* __restrict__ walked_sums, Wide<T> kept_factor,
    Wide<T> walked_factor, int steps, int rows, int columns, long long to_step, long long to_row) {
  using A = Wide<T>;
  constexpr int WARPS = THREADS / 32, TOGETHER = V == 8 ? 4 : 8;
  __shared__ A slots[TOGETHER][WARPS][V][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = (blockIdx.x * 32 + lane) * V;
  const int end = column < columns ? rows : 0;
  const long long batch = blockIdx.y;
  dout += batch * steps * rows * columns + column;
  kept_sums += batch * rows * columns + column;
  walked_sums += batch * steps * columns + column;
  A kept[ROWS][V] = {};
  const auto put = [](T* to, const A(&sums)[V], A factor) {
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = narrow<T>(factor * sums[i]);
    store<T, V>(to, result);
  };
  for (int first = 0; first < steps; first += TOGETHER) {
    const int count = min(TOGETHER, steps - first);
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      const T* const from = dout + (first + step) * to_step;
      PackWord<T, V> loaded[ROWS] = {};
#pragma unroll
      for (int j = 0; j < ROWS; ++j) {
        const int row = j * WARPS + warp;
        if (row < end) loaded[j] = fetch<T, V>(from + row * to_row);
      }
      A sums[V] = {};
#pragma unroll
      for (int j = 0; j < ROWS; ++j) {
        const Pack<T, V> values = unpacked<T, V>(loaded[j]);
#pragma unroll
        for (int i = 0; i < V; ++i) kept[j][i] += widen(values.at[i]), sums[i] += widen(values.at[i]);
      }
#pragma unroll
      for (int i = 0; i < V; ++i) slots[step][warp][i][lane] = sums[i];
    }
    __syncthreads();
    if (warp < count && end > 0) {
      A sums[V] = {};
#pragma unroll
      for (int other = 0; other < WARPS; ++other) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums[i] += slots[warp][other][i][lane];
      }
      put(walked_sums + static_cast<long long>(first + warp) * columns, sums, walked_factor);
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < ROWS; ++j) {
    const int row = j * WARPS + warp;
    if (row < end) put(kept_sums + static_cast<long long>(row) * columns, kept[j], kept_factor);
  }
}
