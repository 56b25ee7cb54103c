// Batch normalization in two passes, and by given statistics, with an optional addend.
//
// T is the tensor's type, A the accumulating one; V: elements of one access.

#include "statistics.cuh"

constexpr int IN_FLIGHT = 4;  // loads in flight per thread

template <typename A>
struct Moments {  // mean of `count` values and the sum of squared distances from it
  A count, mean, squares;
};

template <typename A>
__device__ __forceinline__ Moments<A> merge(const Moments<A>& a, const Moments<A>& b) {  // Chan et al. 1979
  const A count = a.count + b.count;
  if (count == A(0)) return a;
  const A distance = b.mean - a.mean, share = b.count / count;
  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};
}

template <typename A>
__device__ __forceinline__ Moments<A> warp_merge(Moments<A> mine) {
  for (int step = 16; step > 0; step /= 2) {
    const Moments<A> other = {__shfl_down_sync(FULL, mine.count, step), __shfl_down_sync(FULL, mine.mean, step),
                              __shfl_down_sync(FULL, mine.squares, step)};
    mine = merge(mine, other);
  }
  return mine;
}

// Returns true in the last of `blocks` blocks to arrive; resets the counter to zero for the next launch.
__device__ __forceinline__ bool arrive_last(unsigned int* counter, unsigned int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(counter, 1u) == blocks - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// reduce_rows: `splits` blocks compute the statistics of one channel.
// Layout   x (N, C, post), post a multiple of V      Grid  C × splits, `share` vectors each      Block  THREADS
// Writes   statistics, through partials (C, splits) and arrival counters (C), which it leaves zero
// Why      channels that do not fit on chip
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) reduce_rows(
    const T* __restrict__ x, Statistics<Wide<T>> statistics, Moments<Wide<T>>* partials, unsigned int* counters,
    int vectors, int channels, int post, int share, Divisor vectors_per_row, Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  __shared__ Moments<A> slots[WARPS];
  const int channel = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
  const int first = split * share + threadIdx.x, end = min(vectors, (split + 1) * share);
  const T* const from = x + static_cast<long long>(channel) * post;
  const long long skip = static_cast<long long>(channels - 1) * post;
  A shift = 0, sum = 0, squares = 0;  // relative to the first value: accurate for means far from zero
  for (int vector = first; vector < end; vector += AT_ONCE * THREADS) {
    Closed<T, V> loaded[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      const int at = vector + j * THREADS;
      if (at < end) loaded[j].load(from + static_cast<long long>(at) * V + quotient(at, vectors_per_row) * skip);
    }
    if (vector == first) shift = widen(loaded[0].open().at[0]);
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (vector + j * THREADS >= end) break;
      const Vector<T, V> values = loaded[j].open();
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A distance = widen(values.at[i]) - shift;
        sum += distance;
        squares += distance * distance;
      }
    }
  }
  const A count = first < end ? static_cast<A>((end - first - 1) / THREADS + 1) * V : A(0);
  const A offset = count > A(0) ? sum / count : A(0), left = squares - sum * offset;
  Moments<A> mine = warp_merge(Moments<A>{count, shift + offset, left < A(0) ? A(0) : left});
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < WARPS; ++warp) mine = merge(mine, slots[warp]);
    partials[channel * splits + split] = mine;
  }
  if (!arrive_last(&counters[channel], splits) || threadIdx.x >= 32) return;
  mine = {A(0), A(0), A(0)};
  for (int other = threadIdx.x; other < splits; other += 32) {
    const volatile Moments<A>& partial = partials[channel * splits + other];
    mine = merge(mine, Moments<A>{partial.count, partial.mean, partial.squares});
  }
  mine = warp_merge(mine);
  if (threadIdx.x == 0) {
    const A variance = mine.squares / mine.count;
    store_statistics(statistics, channel, mine.mean, A(1) / sqrt(variance + epsilon), variance, mine.count, momentum);
  }
}

// apply_rows: a vector per thread, by given statistics.
// Layout   x, y (N, C, post), post a multiple of V      Grid  vectors / THREADS      Block  THREADS      Writes  y
// Why      in training, after reduce_rows, vectors are read last first, as the last ones are still in L2
// INFERENCE: `spread` is the variance, and the first `kept` blocks store with evict_last; else 1 / sqrt(variance + epsilon).
template <typename T, int V, bool INFERENCE>
__global__ void __launch_bounds__(THREADS) apply_rows(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, const Wide<T>* __restrict__ mean, const Wide<T>* __restrict__ spread,
    Wide<T> epsilon, unsigned int vectors, Divisor vectors_per_row, Divisor channels, unsigned int kept) {
  using A = Wide<T>;
  const unsigned int block = INFERENCE ? blockIdx.x : gridDim.x - 1 - blockIdx.x, vector = block * THREADS + threadIdx.x;
  if (vector >= vectors) return;
  const long long at = static_cast<long long>(vector) * V;
  const Vector<T, V> loaded = load<T, V>(x + at);
  Vector<T, V> added{}, result;
  if (addend != nullptr) added = load<T, V>(addend + at);
  const unsigned int row = quotient(vector, vectors_per_row);
  const unsigned int channel = remainder(row, quotient(row, channels), channels);
  const A middle = mean[channel], shift = beta[channel];
  const A scale = (INFERENCE ? inverse_root(spread[channel] + epsilon) : spread[channel]) * gamma[channel];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    A value = (widen(loaded.at[i]) - middle) * scale + shift;
    if (addend != nullptr) value += widen(added.at[i]);
    result.at[i] = narrow<T>(value);
  }
  if (!INFERENCE) {
    store_streaming<T, V>(y + at, result);
  } else if (block < kept) {
    store_evict_last<T, V>(y + at, result);
  } else {
    store<T, V>(y + at, result);
  }
}

// apply_columns: y by given moving statistics, in inference.
// Layout   x, y (rows, C)      Grid  any      Block  THREADS      Writes  y
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) apply_columns(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, const Wide<T>* __restrict__ mean, const Wide<T>* __restrict__ variance, int rows,
    int channels, int lanes, Wide<T> epsilon) {
  using A = Wide<T>;
  const int lane = threadIdx.x % lanes, tile = THREADS / lanes, stride = gridDim.y * tile;
  const int column = (blockIdx.x * lanes + lane) * V;
  if (column >= channels) return;
  A middle[V], scale[V], shift[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    middle[i] = mean[column + i], shift[i] = beta[column + i];
    scale[i] = gamma[column + i] * (A(1) / sqrt(variance[column + i] + epsilon));
  }
  for (int row = blockIdx.y * tile + threadIdx.x / lanes; row < rows; row += IN_FLIGHT * stride) {
    Vector<T, V> loaded[IN_FLIGHT], added[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; ++j) {
      if (row + j * stride >= rows) break;
      const long long at = static_cast<long long>(row + j * stride) * channels + column;
      loaded[j] = load<T, V>(x + at);
      if (addend != nullptr) added[j] = load<T, V>(addend + at);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; ++j) {
      if (row + j * stride >= rows) break;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        A value = (widen(loaded[j].at[i]) - middle[i]) * scale[i] + shift[i];
        if (addend != nullptr) value += widen(added[j].at[i]);
        loaded[j].at[i] = narrow<T>(value);
      }
      store_streaming<T, V>(y + static_cast<long long>(row + j * stride) * channels + column, loaded[j]);
    }
  }
}
