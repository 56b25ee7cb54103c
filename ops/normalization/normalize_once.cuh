// Channels that a cluster normalizes in registers or in shared memory.
#pragma once
#include "cluster.cuh"
#include "ptx/cp_async.cuh"
#include "statistics.cuh"

template <typename T>
constexpr int MOST = sizeof(T) == 8 ? 448 : 896;  // maximum threads per block, with at least 72 registers each
constexpr int GROUP = 8;  // maximum channels of one cluster

// Channels of a vector: one, the same in the whole block, or up to two neighbours.
enum Layout { SINGLE, GROUPED };

// Sum over a block, in its first warp. `slots` has a value per warp; it is read until the next barrier.
template <typename A>
__device__ __forceinline__ A block_sum(A value, A* slots) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  return warp == 0 ? warp_sum(lane < blockDim.x / 32 ? slots[lane] : A(0)) : A(0);
}

// normalize_once: a cluster of K blocks normalizes `group` adjacent channels at a time; slices stay in registers.
// Layout   x, y (N, C, post); a slice is whole images of the group's channels
// Grid     clusters · K      Block  ≤ MOST<T>, of which `active` threads have vectors
// Needs    at most P vectors per thread, of which `rounds` are used       Writes  y, statistics
// Waits    blocks of a cluster wait for each other
// Why      one read of x; with several slices per cluster (`ahead`) the next one, and the addend if `staged`, is loaded
//          into shared memory while a slice is reduced and stored
template <typename T, int V, int P, int K, Layout LAYOUT>
__global__ void CLUSTER(K) __launch_bounds__(MOST<T>) normalize_once(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, int images, int channels, int post, int group,
    Divisor vectors_per_image, Divisor post_divisor, int active, int rounds, bool ahead, bool staged, Wide<T> epsilon,
    Wide<T> momentum) {
  using A = Wide<T>;
  constexpr int SIDES = LAYOUT == SINGLE ? 1 : 2;  // channels of a vector
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ A fixed[2 * 32];
  __shared__ __align__(8) unsigned long long arrived[2];
  __shared__ A means[GROUP + 1], scales[GROUP + 1], shifts[GROUP + 1], exchange[2][K][2][GROUP];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, warps = blockDim.x / 32;
  const int rank = K == 1 ? 0 : cluster_rank(), start = blockIdx.x / K, clusters = gridDim.x / K;
  const int from = images * rank / K, count = images * (rank + 1) / K - from;
  const int per_image = vectors_per_image.value, vectors = count * per_image, items = channels / group;
  const A n = static_cast<A>(images) * static_cast<A>(post), here = static_cast<A>(count) * static_cast<A>(post);

  // this thread's vectors are `active` apart, and so have the same position in their images
  int first = thread < active ? thread : vectors;
  const int inner = LAYOUT == SINGLE ? 0 : thread % per_image * V;
  const int mine = LAYOUT == SINGLE ? 0 : quotient(inner, post_divisor);
  const int border = (mine + 1) * post - inner;  // elements from here on are of the next channel
  const auto of = [&](const A(&both)[SIDES], int i) {  // value of the channel of element i of a vector
    if constexpr (LAYOUT == GROUPED) return i < border ? both[0] : both[1];
    return both[0];
  };
  const auto publish_pair = [&](A(&both)[SIDES], const A* of_channels) {
#pragma unroll
    for (int s = 0; s < SIDES; ++s) both[s] = of_channels[mine + s];
  };
  // the channel whose statistics this thread finishes and stores; those of a single channel are computed by all threads,
  // which saves barriers (unless these wait for other blocks)
  constexpr bool KNOWN = LAYOUT == SINGLE && K == 1;
  const int owned = KNOWN ? 0 : warp;
  const bool owner = owned < group && (KNOWN ? thread : lane) == 0, knows = KNOWN || owner;

  const unsigned int skip = (channels - group) * post;  // from the end of one image's part to the start of the next
  const auto at = [&](unsigned int vector) { return vector * V + quotient(vector, vectors_per_image) * skip; };
  const auto base = [&](int item) {
    return (static_cast<long long>(from) * channels + static_cast<long long>(item) * group) * post;
  };
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (first + j * active < vectors) take(j, first + j * active);
    }
  };
  constexpr bool WIDE = V * sizeof(T) == 16;
  const int places = WIDE ? active * rounds * V : 0;
  T* const ours = reinterpret_cast<T*>(memory) + thread * V;
  T* const ours_added = ours + (ahead ? places : 0);
  A* const slots =
      LAYOUT == GROUPED ? reinterpret_cast<A*>(reinterpret_cast<T*>(memory) + (ahead + staged) * places) : fixed;
  // neighbouring threads have neighbouring slots: scattered asynchronous copies are slow
  const auto spot = [&](T* from_first, int j) { return from_first + j * active * V; };
  const auto load_part = [&](const T* tensor, int item, T* to) {
    if constexpr (WIDE) {
      const T* begin = tensor + base(item);
      asm volatile("" : "+l"(begin));
      if (item < items) each([&](int j, int vector) { cp_async(spot(to, j), begin + at(vector)); });
      cp_async_commit_group();
    }
  };
#if __CUDA_ARCH__ >= 900
  if (K > 1 && thread < 2) mbarrier_init(&arrived[thread], 1);
#endif
  if (K > 1) cluster_arrive_with_barriers();
  if (ahead) load_part(x, start, ours);
  if (staged) load_part(addend, start, ours_added);
  A gain = 0, offset = 0;
  if (knows) gain = gamma[start * group + owned], offset = beta[start * group + owned];
  if (K > 1) cluster_wait();  // every block has started

  for (int item = start, round = 0; item < items; item += clusters, ++round) {
    const int channel = item * group, next = item + clusters;
    asm volatile("" : "+r"(first));  // offsets are computed at each use: all of them would take too many registers
    Closed<T, V> held[P];
    if (WIDE && ahead) {
      staged ? cp_async_wait_group<1>() : cp_async_wait_group<0>();
      each([&](int j, int) { held[j].load(spot(ours, j)); });
      load_part(x, next, ours);
    } else {
      each([&](int j, int vector) { held[j].load_evict_last(x + base(item) + at(vector)); });
    }

    A middle[SIDES];
    // sum of `take` over this block's values of each channel, in the threads that finish the channel
    const auto sum = [&](auto&& take, A* by_warp) {
      A sums[SIDES] = {};
      each([&](int j, int) {
        const Vector<T, V> values = held[j].open();
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const A value = take(widen(values.at[i]), of(middle, i));
          if constexpr (LAYOUT == GROUPED) {
            sums[0] += i < border ? value : A(0);
            sums[1] += i < border ? A(0) : value;
          } else {
            sums[0] += value;
          }
        }
      });
      if constexpr (LAYOUT == GROUPED) {
        if (thread < active) slots[2 * thread] = sums[0], slots[2 * thread + 1] = sums[1];
        __syncthreads();
        A total = 0;
        const int low = warp * post, high = low + post;  // a vector that begins before `low` may end after it
        for (int begin = 0; warp < group && begin < active; begin += per_image) {
          for (int k = low / V + lane; k * V < high; k += 32) total += slots[2 * (begin + k) + (k * V < low)];
        }
        return warp_sum(total);
      } else if constexpr (!KNOWN) {
        return block_sum(sums[0], slots);
      } else {
        const A total = warp_sum(sums[0]);
        if (lane == 0) by_warp[warp] = total;
        __syncthreads();
        return warp_sum(lane < warps ? by_warp[lane] : A(0));
      }
    };
    A mean = sum([](A value, A) { return value; }, fixed) / here;
    if constexpr (KNOWN) {
      middle[0] = mean;
    } else {
      if (owner) means[owned] = mean;
      __syncthreads();
      publish_pair(middle, means);
    }
    A squares = sum([](A value, A mean) { return (value - mean) * (value - mean); }, fixed + 32);
    if constexpr (K > 1) {
      const int now = round % 2;  // a block that is ahead of this one already uses the other
#if __CUDA_ARCH__ >= 900
      if (thread == 0) mbarrier_arrive_expect_tx(&arrived[now], K * 2 * group * sizeof(A));
      for (int other = 0; owner && other < K; ++other) {
        publish(&exchange[now][rank][0][owned], mean, &arrived[now], other);
        publish(&exchange[now][rank][1][owned], squares, &arrived[now], other);
      }
      if (owner) mbarrier_wait(&arrived[now], round / 2 % 2);
#endif
      if (owner) {  // Chan et al. 1979
        const auto values = [&](int other) {
          return static_cast<A>(images * (other + 1) / K - images * other / K) * static_cast<A>(post);
        };
        mean = squares = 0;
        for (int other = 0; other < K; ++other) mean += exchange[now][other][0][owned] * values(other);
        mean /= n;
        for (int other = 0; other < K; ++other) {
          const A distance = exchange[now][other][0][owned] - mean;
          squares += exchange[now][other][1][owned] + distance * distance * values(other);
        }
      }
    }
    A scale[SIDES], shift[SIDES];
    if (knows) {
      const A variance = squares / n, inverse = A(1) / sqrt(variance + epsilon);
      if constexpr (KNOWN) {
        middle[0] = mean, scale[0] = inverse * gain, shift[0] = offset;
      } else {
        means[owned] = mean, scales[owned] = inverse * gain, shifts[owned] = offset;
      }
      if (next < items) gain = gamma[next * group + owned], offset = beta[next * group + owned];
      if (owner && rank == 0) store_statistics(statistics, channel + owned, mean, inverse, variance, n, momentum);
    }
    if constexpr (!KNOWN) {
      __syncthreads();
      publish_pair(middle, means), publish_pair(scale, scales), publish_pair(shift, shifts);
    }
    const long long begin = base(item);
    const auto finish = [&](auto&& add) {
      T* to = y + begin;
      asm volatile("" : "+l"(to));
      each([&](int j, int vector) {
        const Vector<T, V> values = held[j].open();
        A wide[V];
#pragma unroll
        for (int i = 0; i < V; ++i) wide[i] = (widen(values.at[i]) - of(middle, i)) * of(scale, i) + of(shift, i);
        add(wide, j, vector);
        Vector<T, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) result.at[i] = narrow<T>(wide[i]);
        store_evict_last<T, V>(to + at(vector), result);
      });
    };
    const auto add = [&](A(&wide)[V], const Vector<T, V>& added) {
#pragma unroll
      for (int i = 0; i < V; ++i) wide[i] += widen(added.at[i]);
    };
    if (addend == nullptr) {
      finish([](A(&)[V], int, int) {});
    } else if (staged) {
      ahead ? cp_async_wait_group<1>() : cp_async_wait_group<0>();
      finish([&](A(&wide)[V], int j, int) { add(wide, load<T, V>(spot(ours_added, j))); });
      load_part(addend, next, ours_added);
    } else {
      finish([&](A(&wide)[V], int, int vector) { add(wide, load<T, V>(addend + begin + at(vector))); });
    }
  }
}

// Sum of `value` over the threads of each channel and the blocks of the cluster. Each channel has
// THREADS / group adjacent threads, a whole number of warps. `slots` holds WARPS + GROUP values.
template <typename A, int K>
__device__ __forceinline__ A cluster_sum(A value, A* slots, int group, int mine) {
  const int warps = WARPS / group;
  value = warp_sum(value);
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

// normalize_groups: like normalize_once with slices in shared memory, for images of more vectors than threads.
// Layout   x, y (N, C, post)      Grid  clusters · K      Block  THREADS      Writes  y, statistics
// Waits    blocks of a cluster wait for each other
// Why      groups that do not divide among a block's threads
template <typename T, int V, int K>
__global__ void CLUSTER(K) __launch_bounds__(THREADS) normalize_groups(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, int images, int channels, int post, int group,
    Divisor vectors_per_image, Divisor post_divisor, Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const held = reinterpret_cast<T*>(memory);
  __shared__ A first[WARPS + GROUP], second[WARPS + GROUP], means[GROUP], scales[GROUP], shifts[GROUP];
  const int rank = K == 1 ? 0 : cluster_rank();
  const int channel = (blockIdx.x / K) * group;
  const int from = images * rank / K, to = images * (rank + 1) / K;
  const int width = group * post;  // contiguous elements of the group in one image
  const unsigned int vectors = (to - from) * vectors_per_image.value;
  const auto place = [&](unsigned int vector) {
    const unsigned int image = quotient(vector, vectors_per_image);
    const unsigned int inner = remainder(vector, image, vectors_per_image);
    return (static_cast<long long>(from + image) * channels + channel) * post + static_cast<long long>(inner) * V;
  };
  for (unsigned int vector = threadIdx.x; vector < vectors; vector += THREADS) {
    const long long at = place(vector);
    if constexpr (V * sizeof(T) == 16) {
      cp_async(held + vector * V, x + at);
    } else {
      store<T, V>(held + vector * V, load<T, V>(x + at));
    }
  }
  cp_async_commit_group();
  if (addend != nullptr) {
    for (unsigned int vector = threadIdx.x; vector < vectors; vector += THREADS) prefetch_to_l2(addend + place(vector));
  }
  cp_async_wait_group<0>();
  __syncthreads();

  const int lanes = THREADS / group, mine = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const A n = static_cast<A>(images) * static_cast<A>(post);
  const int values = (to - from) * post;  // values per channel in this block
  const auto each = [&](auto&& take) {
    if (group == 1) {
      for (unsigned int vector = threadIdx.x; vector < vectors; vector += THREADS) {
        const Vector<T, V> loaded = load<T, V>(held + vector * V);
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
    if (rank == 0) store_statistics(statistics, channel + mine, mean, inverse, variance, n, momentum);
  }
  __syncthreads();
  if (K > 1) cluster_arrive();  // this block no longer reads others' memory

  for (unsigned int vector = threadIdx.x; vector < vectors; vector += THREADS) {
    const long long at = place(vector);
    const Vector<T, V> loaded = load<T, V>(held + vector * V);
    Vector<T, V> added{}, result;
    if (addend != nullptr) added = load<T, V>(addend + at);
    const unsigned int inner = vector * V - quotient(vector, vectors_per_image) * width;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int which = group == 1 ? 0 : quotient(inner + i, post_divisor);
      A value = (widen(loaded.at[i]) - means[which]) * scales[which] + shifts[which];
      if (addend != nullptr) value += widen(added.at[i]);
      result.at[i] = narrow<T>(value);
    }
    store_evict_last<T, V>(y + at, result);
  }
  if (K > 1) cluster_wait();  // no block reads this one's memory
}
