// Batch normalization, forward, with an optional addend.
//
// normalize_once: a cluster of K blocks owns G adjacent channels of (N, C, post) and keeps their
//   values in shared memory, so that x is read once.
// reduce_rows, reduce_columns: statistics of (N, C, post) and (rows, C) where that does not fit.
// apply_rows, apply_columns: normalize by given statistics.
//
// T is the tensor's type, A the accumulating one; V elements move as one access.

#include "cluster.cuh"
#include "divide.cuh"
#include "pack.cuh"

constexpr unsigned int FULL = 0xffffffffu;

template <typename A>
struct Moments {  // of `count` values: their mean and the sum of squared distances from it
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
struct Shifted {  // sums about the first value, which lose nothing where the mean is far from zero
  A count = 0, shift = 0, sum = 0, squares = 0;
  __device__ __forceinline__ void add(A value) {
    if (count == A(0)) shift = value;
    const A distance = value - shift;
    count += A(1);
    sum += distance;
    squares += distance * distance;
  }
  __device__ __forceinline__ Moments<A> moments() const {
    if (count == A(0)) return {A(0), A(0), A(0)};
    const A offset = sum / count;
    const A left = squares - sum * offset;
    return {count, shift + offset, left < A(0) ? A(0) : left};
  }
};

template <typename A>
struct Statistics {  // (C,) each; the moving ones null where absent
  const A* moving_mean;
  const A* moving_variance;
  A* mean;
  A* inv_variance;
  A* new_moving_mean;
  A* new_moving_variance;
};

template <typename A>
__device__ __forceinline__ void keep(
    const Statistics<A>& to, int channel, A mean, A inverse, A variance, A n, A momentum) {
  to.mean[channel] = mean;
  to.inv_variance[channel] = inverse;
  if (to.moving_mean == nullptr) return;
  const A fresh = A(1) - momentum;
  to.new_moving_mean[channel] = momentum * to.moving_mean[channel] + fresh * mean;
  to.new_moving_variance[channel] = momentum * to.moving_variance[channel] + fresh * (variance * (n / (n - A(1))));
}

template <typename A>
__device__ __forceinline__ A warp_sum(A value, int width) {
  for (int step = width / 2; step > 0; step /= 2) value += __shfl_xor_sync(FULL, value, step);
  return value;
}

// ---- one pass ------------------------------------------------------------------------------------------------------

constexpr int GROUP = 8;    // most channels of one cluster
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int UNDER_WAY = 4;  // loads of a thread that walks rows

// Sum of `value` over the threads of each channel and the blocks of the cluster. Each channel has
// THREADS / group adjacent threads, a whole number of warps. `slots` holds WARPS + GROUP values.
template <typename A, int K>
__device__ __forceinline__ A cluster_sum(A value, A* slots, int group, int mine) {
  const int warps = WARPS / group;
  value = warp_sum(value, 32);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  A total = 0;
  for (int warp = 0; warp < warps; ++warp) total += slots[mine * warps + warp];
  if (K == 1) return total;
  if (threadIdx.x % (THREADS / group) == 0) slots[WARPS + mine] = total;
  cluster_arrive();
  cluster_wait();
  total = 0;
  for (int rank = 0; rank < K; ++rank) total += read_remote(&slots[WARPS + mine], rank);
  return total;
}

template <typename T, int V, int K>
__global__ void CLUSTER(K) __launch_bounds__(THREADS) normalize_once(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, int images, int channels, int post, int group,
    Divisor packs_per_image, Divisor post_divisor, Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const held = reinterpret_cast<T*>(memory);
  __shared__ A first[WARPS + GROUP], second[WARPS + GROUP], means[GROUP], scales[GROUP], shifts[GROUP];
  const int rank = K == 1 ? 0 : cluster_rank();
  const int channel = (blockIdx.x / K) * group;
  const int from = images * rank / K, to = images * (rank + 1) / K;
  const int width = group * post;  // elements of one image that are ours, contiguous
  const unsigned int packs = (to - from) * packs_per_image.value;
  const auto place = [&](unsigned int pack) {
    const unsigned int image = quotient(pack, packs_per_image);
    const unsigned int inner = remainder(pack, image, packs_per_image);
    return (static_cast<long long>(from + image) * channels + channel) * post + static_cast<long long>(inner) * V;
  };
  for (unsigned int pack = threadIdx.x; pack < packs; pack += THREADS) {
    const long long at = place(pack);
    if constexpr (V * sizeof(T) == 16) {
      copy_async(held + pack * V, x + at);
    } else {
      store<T, V>(held + pack * V, load<T, V>(x + at));
    }
  }
  copy_commit();
  if (addend != nullptr) {
    for (unsigned int pack = threadIdx.x; pack < packs; pack += THREADS) prefetch_to_l2(addend + place(pack));
  }
  copy_wait<0>();
  __syncthreads();

  const int lanes = THREADS / group, mine = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const A n = static_cast<A>(images) * static_cast<A>(post);
  const int values = (to - from) * post;  // of each of our channels
  const auto each = [&](auto&& take) {
    if (group == 1) {
      for (unsigned int pack = threadIdx.x; pack < packs; pack += THREADS) {
        const Pack<T, V> loaded = load<T, V>(held + pack * V);
#pragma unroll
        for (int i = 0; i < V; ++i) take(widen(loaded.at[i]));
      }
    } else {
      for (int index = lane; index < values; index += lanes) {
        const unsigned int image = quotient(index, post_divisor);
        take(widen(held[image * width + mine * post + remainder(index, image, post_divisor)]));
      }
    }
  };
  A sum = 0;
  each([&](A value) { sum += value; });
  const A mean = cluster_sum<A, K>(sum, first, group, mine) / n;
  A squares = 0;
  each([&](A value) {
    const A distance = value - mean;
    squares += distance * distance;
  });
  const A variance = cluster_sum<A, K>(squares, second, group, mine) / n;
  const A inverse = A(1) / sqrt(variance + epsilon);
  if (lane == 0) {
    means[mine] = mean;
    scales[mine] = inverse * gamma[channel + mine];
    shifts[mine] = beta[channel + mine];
    if (rank == 0) keep(statistics, channel + mine, mean, inverse, variance, n, momentum);
  }
  __syncthreads();
  if (K > 1) cluster_arrive();  // we read no one's memory any more

  for (unsigned int pack = threadIdx.x; pack < packs; pack += THREADS) {
    const long long at = place(pack);
    const Pack<T, V> loaded = load<T, V>(held + pack * V);
    Pack<T, V> added{}, result;
    if (addend != nullptr) added = load<T, V>(addend + at);
    const unsigned int inner = pack * V - quotient(pack, packs_per_image) * width;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int which = group == 1 ? 0 : quotient(inner + i, post_divisor);
      A value = (widen(loaded.at[i]) - means[which]) * scales[which] + shifts[which];
      if (addend != nullptr) value += widen(added.at[i]);
      result.at[i] = narrow<T>(value);
    }
    store_streaming<T, V>(y + at, result);
  }
  if (K > 1) cluster_wait();  // no one reads ours any more
}

// ---- two passes ----------------------------------------------------------------------------------------------------

// The last of `blocks` to come here for `ticket` gets true, and leaves the ticket at zero.
__device__ __forceinline__ bool last_to_arrive(unsigned int* ticket, unsigned int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(ticket, 1u) == blocks - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
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

// (N, C, post): block (channel, split). partials (C, splits), tickets (C).
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) reduce_rows(
    const T* __restrict__ x, Statistics<Wide<T>> statistics, Moments<Wide<T>>* partials, unsigned int* tickets,
    int images, int channels, int post, Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  __shared__ Moments<A> slots[WARPS];
  const int channel = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
  Shifted<A> sums;
  const int packs = post / V;
  for (int image = split; image < images; image += splits) {
    const T* const row = x + (static_cast<long long>(image) * channels + channel) * post;
    for (int pack = threadIdx.x; pack < packs; pack += THREADS) {
      const Pack<T, V> loaded = load<T, V>(row + static_cast<long long>(pack) * V);
#pragma unroll
      for (int i = 0; i < V; ++i) sums.add(widen(loaded.at[i]));
    }
  }
  Moments<A> mine = warp_merge(sums.moments());
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < WARPS; ++warp) mine = merge(mine, slots[warp]);
    partials[channel * splits + split] = mine;
  }
  if (!last_to_arrive(&tickets[channel], splits) || threadIdx.x >= 32) return;
  mine = {A(0), A(0), A(0)};
  for (int other = threadIdx.x; other < splits; other += 32) {
    const volatile Moments<A>& partial = partials[channel * splits + other];
    mine = merge(mine, Moments<A>{partial.count, partial.mean, partial.squares});
  }
  mine = warp_merge(mine);
  if (threadIdx.x == 0) {
    const A variance = mine.squares / mine.count;
    keep(statistics, channel, mine.mean, A(1) / sqrt(variance + epsilon), variance, mine.count, momentum);
  }
}

// (rows, C): block.x lanes along C with V columns each, block.y rows at a time; grid (column blocks, splits).
// partials (splits, C), tickets (column blocks).
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) reduce_columns(
    const T* __restrict__ x, Statistics<Wide<T>> statistics, Moments<Wide<T>>* partials, unsigned int* tickets,
    int rows, int channels, Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  __shared__ Moments<A> slots[THREADS];
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * V;
  const bool ours = column < channels;
  Shifted<A> sums[V];
  const int stride = gridDim.y * blockDim.y;
  for (int row = blockIdx.y * blockDim.y + threadIdx.y; ours && row < rows; row += UNDER_WAY * stride) {
    Pack<T, V> loaded[UNDER_WAY];
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      if (row + j * stride < rows) loaded[j] = load<T, V>(x + static_cast<long long>(row + j * stride) * channels + column);
    }
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      if (row + j * stride >= rows) break;
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i].add(widen(loaded[j].at[i]));
    }
  }
  const int slot = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    slots[slot] = sums[i].moments();
    __syncthreads();
    for (int step = blockDim.y / 2; step > 0; step /= 2) {
      if (threadIdx.y < step) slots[slot] = merge(slots[slot], slots[slot + step * blockDim.x]);
      __syncthreads();
    }
    if (threadIdx.y == 0 && ours) partials[static_cast<long long>(blockIdx.y) * channels + column + i] = slots[slot];
    __syncthreads();
  }
  if (!last_to_arrive(&tickets[blockIdx.x], gridDim.y)) return;
  const int width = blockDim.x * V, parts = THREADS / width, part = slot / width;  // threads that share a channel
  const int channel = blockIdx.x * width + slot % width;
  Moments<A> total = {A(0), A(0), A(0)};
#pragma unroll 4
  for (int split = part; split < gridDim.y && channel < channels; split += parts) {
    const Moments<A>* const partial = partials + static_cast<long long>(split) * channels + channel;
    total = merge(total, Moments<A>{__ldcg(&partial->count), __ldcg(&partial->mean), __ldcg(&partial->squares)});
  }
  slots[slot] = total;
  __syncthreads();
  for (int step = parts / 2; step > 0; step /= 2) {
    if (part < step) slots[slot] = merge(slots[slot], slots[slot + step * width]);
    __syncthreads();
  }
  if (part > 0 || channel >= channels) return;
  total = slots[slot];
  const A variance = total.squares / total.count;
  keep(statistics, channel, total.mean, A(1) / sqrt(variance + epsilon), variance, total.count, momentum);
}

// spread: 1 / sqrt(variance + epsilon) where `is_variance`, given as such otherwise.
template <typename A>
__device__ __forceinline__ A inverse_of(A spread, bool is_variance, A epsilon) {
  return is_variance ? A(1) / sqrt(spread + epsilon) : spread;
}

// (N, C, post), post a multiple of V: flat packs, last first, since those are still in L2.
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) apply_rows(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, const Wide<T>* __restrict__ mean, const Wide<T>* __restrict__ spread,
    bool is_variance, Wide<T> epsilon, unsigned int packs, Divisor packs_per_row, Divisor channels) {
  using A = Wide<T>;
  for (unsigned int index = blockIdx.x * THREADS + threadIdx.x; index < packs; index += gridDim.x * THREADS) {
    const unsigned int pack = packs - 1 - index;
    const unsigned int row = quotient(pack, packs_per_row);
    const unsigned int channel = remainder(row, quotient(row, channels), channels);
    const long long at = static_cast<long long>(pack) * V;
    const Pack<T, V> loaded = load<T, V>(x + at);
    Pack<T, V> added{}, result;
    if (addend != nullptr) added = load<T, V>(addend + at);
    const A middle = mean[channel], shift = beta[channel];
    const A scale = inverse_of(spread[channel], is_variance, epsilon) * gamma[channel];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A value = (widen(loaded.at[i]) - middle) * scale + shift;
      if (addend != nullptr) value += widen(added.at[i]);
      result.at[i] = narrow<T>(value);
    }
    store_streaming<T, V>(y + at, result);
  }
}

// (rows, C): as reduce_columns; each thread keeps its columns' numbers.
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) apply_columns(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, const Wide<T>* __restrict__ mean, const Wide<T>* __restrict__ spread,
    bool is_variance, Wide<T> epsilon, int rows, int channels) {
  using A = Wide<T>;
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (column >= channels) return;
  A middle[V], scale[V], shift[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    middle[i] = mean[column + i];
    scale[i] = inverse_of(spread[column + i], is_variance, epsilon) * gamma[column + i];
    shift[i] = beta[column + i];
  }
  const int stride = gridDim.y * blockDim.y;
  for (int row = rows - 1 - (blockIdx.y * blockDim.y + threadIdx.y); row >= 0; row -= UNDER_WAY * stride) {
    Pack<T, V> loaded[UNDER_WAY], added[UNDER_WAY];
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      const long long at = static_cast<long long>(row - j * stride) * channels + column;
      if (at >= 0) loaded[j] = load<T, V>(x + at);
      if (at >= 0 && addend != nullptr) added[j] = load<T, V>(addend + at);
    }
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      const long long at = static_cast<long long>(row - j * stride) * channels + column;
      if (at < 0) break;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        A value = (widen(loaded[j].at[i]) - middle[i]) * scale[i] + shift[i];
        if (addend != nullptr) value += widen(added[j].at[i]);
        loaded[j].at[i] = narrow<T>(value);
      }
      store_streaming<T, V>(y + at, loaded[j]);
    }
  }
}
