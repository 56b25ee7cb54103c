// lerp and its gradient. out = x + w (y - x); dx = (1 - w) dout, dy = w dout, summed where an input is repeated.
#include "reduce.cuh"
#include "span.cuh"
#include "walk.cuh"

constexpr int THREADS = 256;

template <typename A>
__device__ __forceinline__ A blend(A x, A y, A weight) {
  return x + weight * (y - x);
}

// One shape; the weight is a TENSOR, or `number`.
template <typename T, int V, int P, bool TENSOR>
__global__ void __launch_bounds__(SPAN_THREADS<P>) lerp_flat(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ weight, T* __restrict__ out,
    Wide<T> number, long long packs) {
  const Share share = share_of(packs);
  Span<T, V, P> a, b, w;
  a.load(x, share);
  b.load(y, share);
  if constexpr (TENSOR) w.load(weight, share);
#pragma unroll
  for (int i = 0; i < P * V; ++i) {
    T& element = a.at[i / V].at[i % V];
    const Wide<T> part = TENSOR ? widen(w.at[i / V].at[i % V]) : number;
    element = narrow<T>(blend(widen(element), widen(b.at[i / V].at[i % V]), part));
  }
  a.store(out, share);
}

// Two axes, the weight a number: grid (blocks of a row, rows). x and y begin every row `x_row` and `y_row` elements
// further on, and are repeated along it where X_STEP and Y_STEP are 0.
template <typename T, int V, int P, int X_STEP, int Y_STEP>
__global__ void __launch_bounds__(SPAN_THREADS<P>) lerp_rows(
    const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, Wide<T> number, long long packs,
    long long x_row, long long y_row) {
  const Share share = share_of(packs);
  const T* const x_from = x + blockIdx.y * x_row;
  const T* const y_from = y + blockIdx.y * y_row;
  Span<T, V, P> a, b;
  T one;
  if constexpr (X_STEP == 1) a.load(x_from, share);
  if constexpr (Y_STEP == 1) b.load(y_from, share);
  if constexpr (X_STEP == 0 || Y_STEP == 0) one = X_STEP == 0 ? *x_from : *y_from;
#pragma unroll
  for (int i = 0; i < P * V; ++i) {
    const T from = X_STEP == 0 ? one : a.at[i / V].at[i % V], to = Y_STEP == 0 ? one : b.at[i / V].at[i % V];
    a.at[i / V].at[i % V] = narrow<T>(blend(widen(from), widen(to), number));
  }
  a.store(out, {share.first + blockIdx.y * packs, share.count});
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
template <typename T, int V, int P, bool TENSOR, bool SUBTRACT>
__global__ void __launch_bounds__(SPAN_THREADS<P>) grad_flat(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy, Wide<T> number,
    Wide<T> rest, long long packs) {
  using A = Wide<T>;
  const Share share = share_of(packs);
  Span<T, V, P> first, second, w;
  first.load(dout, share);
  if constexpr (TENSOR) w.load(weight, share);
#pragma unroll
  for (int i = 0; i < P * V; ++i) {
    T& element = first.at[i / V].at[i % V];
    const A value = widen(element);
    const A part = TENSOR ? widen(w.at[i / V].at[i % V]) : number;
    const A left = TENSOR ? A(1) - part : rest;
    second.at[i / V].at[i % V] = narrow<T>(part * value);
    element = narrow<T>(SUBTRACT ? value - part * value : left * value);
  }
  if (dx != nullptr) first.store(dx, share);
  if (dy != nullptr) second.store(dy, share);
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

// dout (rows, length), weight a number: sum[row] = factor sum dout[row], other = other_factor dout unless null.
// grid (rows, splits); partials (rows, splits), tickets (rows). length is a multiple of V.
template <typename T, int V>
__global__ void __launch_bounds__(REDUCE_THREADS) grad_rows(
    const T* __restrict__ dout, T* __restrict__ sum, T* __restrict__ other, Wide<T> factor, Wide<T> other_factor,
    long long length, unsigned int* tickets, Wide<T>* partials) {
  using A = Wide<T>;
  struct Add {
    using Acc = A;
    __device__ __forceinline__ A merge(A a, A b) const { return a + b; }
  } add;
  const long long row = blockIdx.x, split = blockIdx.y, splits = gridDim.y, packs = length / V;
  const T* const from = dout + row * length;
  T* const to = other == nullptr ? nullptr : other + row * length;
  A mine = 0;
#pragma unroll 4
  for (long long pack = packs * split / splits + threadIdx.x; pack < packs * (split + 1) / splits;
       pack += REDUCE_THREADS) {
    const Pack<T, V> given = load<T, V>(from + pack * V);
    Pack<T, V> result;
    A few = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A value = widen(given.at[i]);
      few += value;
      result.at[i] = narrow<T>(other_factor * value);
    }
    mine += few;
    if (to != nullptr) store_streaming<T, V>(to + pack * V, result);
  }
  mine = merge_block(add, mine);
  if (splits == 1) {
    if (threadIdx.x == 0) sum[row] = narrow<T>(factor * mine);
    return;
  }
  if (threadIdx.x == 0) partials[row * splits + split] = mine;
  if (!arrive_last(&tickets[row], splits)) return;
  mine = 0;
  for (int part = threadIdx.x; part < splits; part += REDUCE_THREADS) {
    mine += read_partial(&partials[row * splits + part]);
  }
  mine = merge_block(add, mine);
  if (threadIdx.x == 0) sum[row] = narrow<T>(factor * mine);
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
  struct Add {
    using Acc = A;
    __device__ __forceinline__ A merge(A a, A b) const { return a + b; }
  } add;
  const T* const from = dout + place(blockIdx.x, kept, kept_dout);
  const T* const shares = weight == nullptr ? nullptr : weight + place(blockIdx.x, kept, kept_weight);
  A mine = 0;
  for (unsigned int index = threadIdx.x; index < count; index += REDUCE_THREADS) {
    const A share = shares == nullptr ? A(0) : widen(shares[place(index, summed, summed_weight)]);
    mine += (offset + sign * share) * widen(from[place(index, summed, summed_dout)]);
  }
  mine = merge_block(add, mine);
  if (threadIdx.x == 0) sum[blockIdx.x] = narrow<T>(mine);
}

// dout (batch, rows, C), weight a number: lanes along C, `sum` is (batch, C); other as in grad_rows.
// block (lanes, rows); grid (column blocks, splits, batch); partials (batch, splits, C), tickets (batch, column blocks).
template <typename T, int V>
__global__ void __launch_bounds__(REDUCE_THREADS) grad_columns(
    const T* __restrict__ dout, T* __restrict__ sum, T* __restrict__ other, Wide<T> factor, Wide<T> other_factor,
    int rows, int channels, unsigned int* tickets, Wide<T>* partials) {
  using A = Wide<T>;
  __shared__ A slots[REDUCE_THREADS];
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * V, splits = gridDim.y;
  const bool ours = column < channels;
  const long long batch = blockIdx.z, before = batch * rows * channels;
  dout += before;
  if (other != nullptr) other += before;
  sum += batch * channels;
  tickets += batch * gridDim.x;
  partials += batch * splits * channels;
  A mine[V];
#pragma unroll
  for (int i = 0; i < V; ++i) mine[i] = A(0);
  if (ours) {
#pragma unroll 4
    for (int row = blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += splits * blockDim.y) {
      const long long at = static_cast<long long>(row) * channels + column;
      const Pack<T, V> given = load<T, V>(dout + at);
      Pack<T, V> result;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        mine[i] += widen(given.at[i]);
        result.at[i] = narrow<T>(other_factor * widen(given.at[i]));
      }
      if (other != nullptr) store_streaming<T, V>(other + at, result);
    }
  }
  const int slot = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    slots[slot] = mine[i];
    __syncthreads();
    for (int step = blockDim.y / 2; step > 0; step /= 2) {
      if (threadIdx.y < step) slots[slot] += slots[slot + step * blockDim.x];
      __syncthreads();
    }
    if (threadIdx.y == 0 && ours) partials[static_cast<long long>(blockIdx.y) * channels + column + i] = slots[slot];
    __syncthreads();
  }
  if (!arrive_last(&tickets[blockIdx.x], splits)) return;
  const int first = blockIdx.x * blockDim.x * V, end = min(channels, first + static_cast<int>(blockDim.x) * V);
  for (int channel = first + slot; channel < end; channel += REDUCE_THREADS) {
    A total = 0;
    for (int split = 0; split < splits; ++split) {
      total += read_partial(&partials[static_cast<long long>(split) * channels + channel]);
    }
    sum[channel] = narrow<T>(factor * total);
  }
}
