// Batch normalization, forward, with an optional addend.
//
// normalize_alone: a block takes a channel that its registers hold.
// normalize_once: clusters of K blocks take G adjacent channels at a time and keep their values in registers, so that x
//   is read once; where there are more channels, the next ones are under way meanwhile.
// normalize_groups: the same by way of shared memory, where groups do not divide among threads.
// normalize_shared: all blocks of a device, or groups of them, share channels too large for a cluster; x is read once.
// reduce_rows, apply_rows: statistics of (N, C, post), then y by given ones, where that does not fit, and in inference.
// normalize_columns, apply_columns: (rows, C) by its own statistics, and by given ones in inference.
// normalize_short: as normalize_columns, of so few rows that registers hold them.
//
// T is the tensor's type, A the accumulating one; V elements move as one access.

#include "cluster.cuh"
#include "divide.cuh"
#include "mail.cuh"
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

// Of some values: their mean and the sum of squared distances from it.
template <typename A>
struct Partial {
  A mean, squares;
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
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(FULL, value, step);
  return value;
}

// In the first warp of a block. `slots` holds a value for each warp; it is read until the next barrier.
template <typename A>
__device__ __forceinline__ A block_sum(A value, A* slots) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  return warp == 0 ? warp_sum(lane < blockDim.x / 32 ? slots[lane] : A(0)) : A(0);
}

// ---- one pass ------------------------------------------------------------------------------------------------------

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int COLUMN_THREADS = 512;  // most of a block that normalizes columns
constexpr int AT_ONCE = 4;           // loads of such a thread from memory
constexpr int UNDER_WAY = 4;         // loads of a thread that walks rows
template <int V>
constexpr int LINE = V == 1 ? 32 : 8 * V;  // most columns of a block that walks rows
template <typename T>
constexpr int MOST = sizeof(T) == 8 ? 448 : 896;  // threads of a block, which leaves each 72 registers or more
constexpr int GROUP = 8;  // most channels of one cluster

// Whose values a pack holds: one channel's, as all of its block, or up to two neighbours'.
enum Layout { SINGLE, GROUPED };

// A pack as it lies in memory. Each `open` widens anew: values kept wide would take twice the registers.
template <typename T, int V>
struct Closed {
  using W = typename Word<V * sizeof(T)>::type;
  W word;
  __device__ __forceinline__ Pack<T, V> open() {
    if constexpr (sizeof(T) == 2 && V == 8) {
      asm volatile("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w));
    }
    return *reinterpret_cast<const Pack<T, V>*>(&word);
  }
  __device__ __forceinline__ void load(const T* from) { word = *reinterpret_cast<const W*>(from); }
  __device__ __forceinline__ void load_streaming(const T* from) { word = __ldcs(reinterpret_cast<const W*>(from)); }
  __device__ __forceinline__ void close() {  // nothing that was worked out from it is kept
    if constexpr (sizeof(W) >= 4) {
      auto& words = reinterpret_cast<unsigned int(&)[sizeof(W) / 4]>(word);
#pragma unroll
      for (unsigned int& one : words) asm volatile("" : "+r"(one));
    }
  }
};

// Where a channel is few packs, a block takes it by itself: P packs a thread, and of the addend as many, all of them
// asked for at once. Rows need not begin at multiples of 16 bytes: V is what their length allows. Little code, since
// what runs once waits for its own instructions, and as many blocks as registers take, which wait in turns.
template <int P>
constexpr int ALONE_THREADS = P == 7 ? 256 : 512;
template <typename T, int V, int P, bool ADDS>  // registers of a thread: what holds x, addend and places, and a few
constexpr int ALONE_REGISTERS =
    V * sizeof(T) <= 4 ? (V == 1 ? 40 : 48) : P * (V * sizeof(T) / 4 * (1 + ADDS) + 1) + (sizeof(T) == 8 ? 40 : 24);

template <typename T, int V, int P, bool ADDS>
__global__ void __launch_bounds__(
    ALONE_THREADS<P>, 65536 / ALONE_THREADS<P> / ALONE_REGISTERS<T, V, P, ADDS>) normalize_alone(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, int packs, int channels, int post,
    Divisor packs_per_image, Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  __shared__ A slots[2][32];
  const int thread = threadIdx.x, threads = blockDim.x, warp = thread / 32, lane = thread % 32, channel = blockIdx.x;
  const unsigned int begin = channel * post, skip = (channels - 1) * post;  // from one image's part to the next one's
  unsigned int at[P];
  Closed<T, V> held[P], added[P];
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (thread + j * threads < packs) take(j);
    }
  };
  const auto place = [&](int j) {  // widened anew each time: pointers would take twice the registers
    asm volatile("" : "+r"(at[j]));
    return at[j];
  };
  each([&](int j) {
    const unsigned int pack = thread + j * threads;
    at[j] = begin + pack * V + quotient(pack, packs_per_image) * skip;
    held[j].load(x + at[j]);
  });
  if constexpr (ADDS) each([&](int j) { added[j].load_streaming(addend + place(j)); });
  const A gain = gamma[channel], offset = beta[channel], n = static_cast<A>(packs) * V;

  const auto sum = [&](auto&& take, A* by_warp) {
    A total = 0;
    each([&](int j) {
      held[j].close();
      const Pack<T, V> values = held[j].open();
#pragma unroll
      for (int i = 0; i < V; ++i) total += take(widen(values.at[i]));
    });
    total = warp_sum(total);
    if (lane == 0) by_warp[warp] = total;
    __syncthreads();
    return warp_sum(lane * 32 < threads ? by_warp[lane] : A(0));
  };
  const A mean = sum([](A value) { return value; }, slots[0]) / n;
  const A variance = sum([&](A value) { return (value - mean) * (value - mean); }, slots[1]) / n;
  const A inverse = A(1) / sqrt(variance + epsilon), scale = inverse * gain;
  each([&](int j) {
    held[j].close();
    const Pack<T, V> values = held[j].open();
    Pack<T, V> more, result;
    if constexpr (ADDS) more = added[j].open();
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A value = (widen(values.at[i]) - mean) * scale + offset;
      if constexpr (ADDS) value += widen(more.at[i]);
      result.at[i] = narrow<T>(value);
    }
    store_streaming<T, V>(y + place(j), result);
  });
  if (thread == 0) keep(statistics, channel, mean, inverse, variance, n, momentum);
}

// A cluster of K blocks takes `group` adjacent channels at a time; each block keeps its slice of them, whole images,
// in registers: at most P packs, of which `rounds` are used, for each of its `active` threads. Where clusters take
// several slices (`ahead`), packs come by way of shared memory, where each thread has places of its own: while a slice
// is reduced and written, the next one is under way. So is the addend where `staged`: a load that is asked for late
// would wait behind all of them.
template <typename T, int V, int P, int K, Layout LAYOUT>
__global__ void CLUSTER(K) __launch_bounds__(MOST<T>) normalize_once(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, int images, int channels, int post, int group,
    Divisor packs_per_image, Divisor post_divisor, int active, int rounds, bool ahead, bool staged, Wide<T> epsilon,
    Wide<T> momentum) {
  using A = Wide<T>;
  constexpr int SIDES = LAYOUT == SINGLE ? 1 : 2;  // channels of a pack
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ A fixed[2 * 32];
  __shared__ __align__(8) unsigned long long arrived[2];
  __shared__ A means[GROUP + 1], scales[GROUP + 1], shifts[GROUP + 1], exchange[2][K][2][GROUP];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, warps = blockDim.x / 32;
  const int rank = K == 1 ? 0 : cluster_rank(), start = blockIdx.x / K, clusters = gridDim.x / K;
  const int from = images * rank / K, count = images * (rank + 1) / K - from;
  const int per_image = packs_per_image.value, packs = count * per_image, items = channels / group;
  const A n = static_cast<A>(images) * static_cast<A>(post), here = static_cast<A>(count) * static_cast<A>(post);

  // our packs lie `active` apart, which keeps those of a group at one place of their images
  int first = thread < active ? thread : packs;
  const int inner = LAYOUT == SINGLE ? 0 : thread % per_image * V;
  const int mine = LAYOUT == SINGLE ? 0 : quotient(inner, post_divisor);
  const int border = (mine + 1) * post - inner;  // elements from here on are of the next channel
  const auto of = [&](const A(&both)[SIDES], int i) {  // what is true of element i of a pack
    if constexpr (LAYOUT == GROUPED) return i < border ? both[0] : both[1];
    return both[0];
  };
  const auto tell = [&](A(&both)[SIDES], const A* of_channels) {
#pragma unroll
    for (int s = 0; s < SIDES; ++s) both[s] = of_channels[mine + s];
  };
  // the channel whose statistics this thread finishes, and writes; those of a block's single one all threads know,
  // which spares barriers (where they would wait for other blocks it costs more)
  constexpr bool KNOWN = LAYOUT == SINGLE && K == 1;
  const int owned = KNOWN ? 0 : warp;
  const bool owner = owned < group && (KNOWN ? thread : lane) == 0, knows = KNOWN || owner;

  const unsigned int skip = (channels - group) * post;  // from the end of one image's part to where the next one begins
  const auto at = [&](unsigned int pack) { return pack * V + quotient(pack, packs_per_image) * skip; };
  const auto base = [&](int item) {
    return (static_cast<long long>(from) * channels + static_cast<long long>(item) * group) * post;
  };
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (first + j * active < packs) take(j, first + j * active);
    }
  };
  constexpr bool WIDE = V * sizeof(T) == 16;
  const int places = WIDE ? active * rounds * V : 0;
  T* const ours = reinterpret_cast<T*>(memory) + thread * V;
  T* const ours_added = ours + (ahead ? places : 0);
  A* const slots =
      LAYOUT == GROUPED ? reinterpret_cast<A*>(reinterpret_cast<T*>(memory) + (ahead + staged) * places) : fixed;
  // neighbours lie side by side: asynchronous copies into scattered places are slow
  const auto spot = [&](T* from_first, int j) { return from_first + j * active * V; };
  const auto bring = [&](const T* tensor, int item, T* to) {
    if constexpr (WIDE) {
      const T* begin = tensor + base(item);
      asm volatile("" : "+l"(begin));
      if (item < items) each([&](int j, int pack) { copy_async(spot(to, j), begin + at(pack)); });
      copy_commit();
    }
  };
#if __CUDA_ARCH__ >= 900
  if (K > 1 && thread < 2) barrier_init(&arrived[thread], 1);
#endif
  if (K > 1) cluster_arrive_with_barriers();
  if (ahead) bring(x, start, ours);
  if (staged) bring(addend, start, ours_added);
  A gain = 0, offset = 0;
  if (knows) gain = gamma[start * group + owned], offset = beta[start * group + owned];
  if (K > 1) cluster_wait();  // every block is there to be sent to

  for (int item = start, turn = 0; item < items; item += clusters, ++turn) {
    const int channel = item * group, next = item + clusters;
    asm volatile("" : "+r"(first));  // places are worked out as needed: all of them would take too many registers
    Closed<T, V> held[P];
    if (WIDE && ahead) {
      staged ? copy_wait<1>() : copy_wait<0>();
      each([&](int j, int) { held[j].load(spot(ours, j)); });
      bring(x, next, ours);
    } else {
      each([&](int j, int pack) { held[j].load(x + base(item) + at(pack)); });
    }

    A middle[SIDES];
    // of `take` over the values of each channel that this block holds, in the threads that know the channel
    const auto sum = [&](auto&& take, A* by_warp) {
      A sums[SIDES] = {};
      each([&](int j, int) {
        const Pack<T, V> values = held[j].open();
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
        const int low = warp * post, high = low + post;  // a pack that begins before `low` has its end there
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
      tell(middle, means);
    }
    A squares = sum([](A value, A mean) { return (value - mean) * (value - mean); }, fixed + 32);
    if constexpr (K > 1) {
      const int now = turn % 2;  // what comes early from a block that is ahead of us is of the other
#if __CUDA_ARCH__ >= 900
      if (thread == 0) barrier_arrive_and_expect(&arrived[now], K * 2 * group * sizeof(A));
      for (int other = 0; owner && other < K; ++other) {
        send(&exchange[now][rank][0][owned], mean, &arrived[now], other);
        send(&exchange[now][rank][1][owned], squares, &arrived[now], other);
      }
      if (owner) barrier_wait(&arrived[now], turn / 2 % 2);
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
      if (owner && rank == 0) keep(statistics, channel + owned, mean, inverse, variance, n, momentum);
    }
    if constexpr (!KNOWN) {
      __syncthreads();
      tell(middle, means), tell(scale, scales), tell(shift, shifts);
    }
    const long long begin = base(item);
    const auto finish = [&](auto&& add) {
      T* to = y + begin;
      asm volatile("" : "+l"(to));
      each([&](int j, int pack) {
        const Pack<T, V> values = held[j].open();
        A wide[V];
#pragma unroll
        for (int i = 0; i < V; ++i) wide[i] = (widen(values.at[i]) - of(middle, i)) * of(scale, i) + of(shift, i);
        add(wide, j, pack);
        Pack<T, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) result.at[i] = narrow<T>(wide[i]);
        store_streaming<T, V>(to + at(pack), result);
      });
    };
    const auto add = [&](A(&wide)[V], const Pack<T, V>& added) {
#pragma unroll
      for (int i = 0; i < V; ++i) wide[i] += widen(added.at[i]);
    };
    if (addend == nullptr) {
      finish([](A(&)[V], int, int) {});
    } else if (staged) {
      ahead ? copy_wait<1>() : copy_wait<0>();
      finish([&](A(&wide)[V], int j, int) { add(wide, load<T, V>(spot(ours_added, j))); });
      bring(addend, next, ours_added);
    } else {
      finish([&](A(&wide)[V], int, int pack) { add(wide, load<T, V>(addend + begin + at(pack))); });
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

// As normalize_once for groups whose images have more packs than a block has threads: slices stay in shared memory.
template <typename T, int V, int K>
__global__ void CLUSTER(K) __launch_bounds__(THREADS) normalize_groups(
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

// ---- a channel many blocks -----------------------------------------------------------------------------------------

constexpr int READERS = 256;  // threads that sum up slices
constexpr int WRITTEN = 8;    // most packs of a thread that writes them
constexpr int SHARING_THREADS = 768;
constexpr int MOST_STAGES = 10;
constexpr int LETTERS = 5;  // for each lane of the warp that puts together what up to 160 blocks sent

// Channels too large for a cluster, of which the shared memory of the device holds several. Groups of `splits` blocks,
// all of them there at once, take every `across`-th channel, `share` packs a block, in a ring of `stages` slices. Of a
// block, warps that read sum up each slice and send what they found to all blocks of the group; one warp puts
// together what was sent; those that write finish a slice and have the next one brought to its place.
// Letters lie in a ring of 2 `stages` channels: who sends one has read those of `stages` channels ago, which all blocks
// sent after they had read those of 2 `stages` ago.
template <typename T, int V>
__global__ void __launch_bounds__(SHARING_THREADS, 1) normalize_shared(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, unsigned long long* mail, unsigned int* tickets,
    int packs, int channels, int post, int splits, int across, int share, int stages, Divisor packs_per_image,
    Wide<T> epsilon, Wide<T> momentum) {
#if __CUDA_ARCH__ >= 800
  using A = Wide<T>;
  constexpr int WORDS_EACH = WORDS<Partial<A>>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ __align__(8) unsigned long long full[MOST_STAGES], told[MOST_STAGES];
  __shared__ A slots[2][READERS / 32], means[MOST_STAGES], scales[MOST_STAGES], shifts[MOST_STAGES];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, writers = blockDim.x - READERS - 32;
  const int group = blockIdx.x / splits, split = blockIdx.x - group * splits, first = split * share;
  const int count = min(packs - first, share), items = (channels - group + across - 1) / across;
  T* const slices = reinterpret_cast<T*>(memory);
  unsigned long long* const letters = mail + static_cast<long long>(group) * 2 * stages * splits * WORDS_EACH;
  const auto letter = [&](int item, int block) {
    return letters + (item % (2 * stages) * splits + block) * WORDS_EACH;
  };

  if (threadIdx.x < stages) {
    barrier_init(&full[threadIdx.x], writers);
    barrier_init(&told[threadIdx.x], 1);
  }
  __syncthreads();

  if (threadIdx.x < READERS) {
    const A here = A(1) / (static_cast<A>(count) * V);
    for (int item = 0, stage = 0, parity = 0; item < items; ++item) {
      barrier_wait(&full[stage], parity);
      const T* const slice = slices + stage * share * V;
      const auto sum = [&](auto&& take, A* by_warp) {
        A total = 0;
#pragma unroll 4
        for (int pack = threadIdx.x; pack < count; pack += READERS) {
          const Pack<T, V> values = load<T, V>(slice + pack * V);
#pragma unroll
          for (int i = 0; i < V; ++i) total += take(widen(values.at[i]));
        }
        total = warp_sum(total);
        if (lane == 0) by_warp[warp] = total;
        meet<1, READERS>();
        return warp_sum(lane < READERS / 32 ? by_warp[lane] : A(0));
      };
      const A mean = sum([](A value) { return value; }, slots[0]) * here;
      const A squares = sum([&](A value) { return (value - mean) * (value - mean); }, slots[1]);
      if (threadIdx.x == 0) send(letter(item, split), Partial<A>{mean, squares}, item + 1);
      if (++stage == stages) stage = 0, parity ^= 1;
    }
  } else if (threadIdx.x < READERS + 32) {
    const A n = static_cast<A>(packs) * V, fraction = A(1) / n;
    for (int item = 0, stage = 0; item < items; ++item) {
      const int channel = group + item * across;
      const A gain = gamma[channel], offset = beta[channel];
      Partial<A> pieces[LETTERS];
      await_all(pieces, letter(item, lane), 32, splits - lane, item + 1);
      const A base = __shfl_sync(FULL, pieces[0].mean, 0);
      A sum = 0, squares = 0;
#pragma unroll
      for (int i = 0; i < LETTERS; ++i) {  // about the first one's mean, with Chan et al. 1979
        const int block = i * 32 + lane;
        if (block >= splits) break;
        const A distance = pieces[i].mean - base, weight = static_cast<A>(min(packs - block * share, share)) * V;
        sum += weight * distance;
        squares += pieces[i].squares + weight * distance * distance;
      }
      const A moved = warp_sum(sum) * fraction, left = warp_sum(squares) * fraction - moved * moved;
      const A mean = base + moved, variance = left < A(0) ? A(0) : left, inverse = A(1) / sqrt(variance + epsilon);
      if (lane == 0) {
        means[stage] = mean, scales[stage] = inverse * gain, shifts[stage] = offset;
        barrier_arrive(&told[stage]);
        if (split == 0) keep(statistics, channel, mean, inverse, variance, n, momentum);
      }
      if (++stage == stages) stage = 0;
    }
    unsigned int turn = 0;
    if (lane == 0) turn = atomicAdd(&tickets[group], 1u);
    if (__shfl_sync(FULL, turn, 0) == splits - 1) {  // the others have read all letters
      for (int i = lane; i < 2 * stages * splits; i += 32) clear<Partial<A>>(letters + i * WORDS_EACH);
      if (lane == 0) tickets[group] = 0;
    }
  } else {
    const int thread = threadIdx.x - READERS - 32;
    const unsigned int skip = (channels - 1) * post;
    unsigned int at[WRITTEN];
    const auto each = [&](auto&& take) {
#pragma unroll
      for (int j = 0; j < WRITTEN; ++j) {
        if (thread + j * writers < count) take(j);
      }
    };
    each([&](int j) {
      const unsigned int pack = first + thread + j * writers;
      at[j] = pack * V + quotient(pack, packs_per_image) * skip;
    });
    const auto place = [&](int j) {  // anew each time: widened, they would take twice the registers
      asm volatile("" : "+r"(at[j]));
      return at[j];
    };
    const auto base = [&](int item) { return static_cast<long long>(group + item * across) * post; };
    const auto spot = [&](int stage, int j) { return slices + (stage * share + thread + j * writers) * V; };
    const auto bring = [&](int item, int stage) {
      if (item < items) each([&](int j) { copy_async(spot(stage, j), x + base(item) + place(j)); });
      barrier_arrive_after_copies(&full[stage]);
    };
    for (int item = 0; item < stages; ++item) bring(item, item);
    for (int item = 0, stage = 0, parity = 0; item < items; ++item) {
      Closed<T, V> added[WRITTEN];
      if (addend != nullptr) each([&](int j) { added[j].load(addend + base(item) + place(j)); });
      barrier_wait(&told[stage], parity);
      const A mean = means[stage], scale = scales[stage], offset = shifts[stage];
      each([&](int j) {
        const Pack<T, V> values = load<T, V>(spot(stage, j)), more = added[j].open();
        Pack<T, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          A value = (widen(values.at[i]) - mean) * scale + offset;
          if (addend != nullptr) value += widen(more.at[i]);
          result.at[i] = narrow<T>(value);
        }
        store_streaming<T, V>(y + base(item) + place(j), result);
      });
      bring(item + stages, stage);
      if (++stage == stages) stage = 0, parity ^= 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
#endif
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

// (N, C, post): block (channel, split) takes `share` packs of a channel. partials (C, splits), tickets (C).
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) reduce_rows(
    const T* __restrict__ x, Statistics<Wide<T>> statistics, Moments<Wide<T>>* partials, unsigned int* tickets,
    int packs, int channels, int post, int share, Divisor packs_per_row, Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  __shared__ Moments<A> slots[WARPS];
  const int channel = blockIdx.x, split = blockIdx.y, splits = gridDim.y;
  const int first = split * share + threadIdx.x, end = min(packs, (split + 1) * share);
  const T* const from = x + static_cast<long long>(channel) * post;
  const long long skip = static_cast<long long>(channels - 1) * post;
  A shift = 0, sum = 0, squares = 0;  // about the first value, which loses nothing where the mean is far from zero
  for (int pack = first; pack < end; pack += AT_ONCE * THREADS) {
    Closed<T, V> loaded[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      const int at = pack + j * THREADS;
      if (at < end) loaded[j].load(from + static_cast<long long>(at) * V + quotient(at, packs_per_row) * skip);
    }
    if (pack == first) shift = widen(loaded[0].open().at[0]);
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (pack + j * THREADS >= end) break;
      const Pack<T, V> values = loaded[j].open();
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

// ---- channels last -------------------------------------------------------------------------------------------------

// To two units in the last place, by little code: what runs once in a launch waits for every line of it.
__device__ __forceinline__ float ratio(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double ratio(double a, double b) { return a / b; }
__device__ __forceinline__ float inverse_root(float value) { return rsqrtf(value); }
__device__ __forceinline__ double inverse_root(double value) { return 1 / sqrt(value); }

// Those of `n` values from `pieces` partials get(i), of weigh(i) values each. A team of adjacent threads, a power of
// two, takes the pieces in turn. All threads of a warp are here.
template <typename A, typename Get, typename Weigh>
__device__ __forceinline__ Partial<A> together(int pieces, int team, A n, Get&& get, Weigh&& weigh) {
  int i = threadIdx.x & (team - 1);
  Partial<A> piece{};
  if (i < pieces) piece = get(i);
  const A base = __shfl_sync(FULL, piece.mean, threadIdx.x & 31 & -team);
  A sum = 0, squares = 0;
#pragma unroll 1
  while (i < pieces) {  // about the first one's mean, with Chan et al. 1979
    const A distance = piece.mean - base, weight = weigh(i);
    sum += weight * distance;
    squares += piece.squares + weight * distance * distance;
    i += team;
    if (i < pieces) piece = get(i);
  }
#pragma unroll 1
  for (int step = team / 2; step > 0; step /= 2) {
    sum += __shfl_xor_sync(FULL, sum, step);
    squares += __shfl_xor_sync(FULL, squares, step);
  }
  const A offset = ratio(sum, n);
  return {base + offset, squares - sum * offset};
}

// Over one thread's packs, each column's sums about its first value: they lose nothing where the mean is far from zero.
template <typename T, int V>
struct ColumnSums {
  using A = Wide<T>;
  A shift[V] = {}, middle[V] = {}, squares[V] = {};

  __device__ __forceinline__ void begin_with(const Pack<T, V>& values) {
#pragma unroll
    for (int i = 0; i < V; ++i) shift[i] = widen(values.at[i]);
  }

  __device__ __forceinline__ void take(const Pack<T, V>& values) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A distance = widen(values.at[i]) - shift[i];
      middle[i] += distance;
      squares[i] += distance * distance;
    }
  }

  // To means, and squared distances from them, over the threads of a warp that agree modulo `lanes`, this one after
  // `packs` packs. Returns how many values there are of a column.
  __device__ __forceinline__ A settle(int packs, int lanes) {
    A count = static_cast<A>(packs);
    const A fraction = packs > 0 ? ratio(A(1), count) : A(0);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A offset = middle[i] * fraction;
      squares[i] -= middle[i] * offset;
      middle[i] = shift[i] + offset;
    }
#pragma unroll 1
    for (int step = 16; step >= lanes; step /= 2) {
      const A others = __shfl_xor_sync(FULL, count, step), both = count + others;
      const A part = both > A(0) ? ratio(others, both) : A(0), weight = count * part;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A between = __shfl_xor_sync(FULL, middle[i], step) - middle[i];
        squares[i] += __shfl_xor_sync(FULL, squares[i], step) + between * between * weight;
        middle[i] += between * part;
      }
      count = both;
    }
    return count;
  }
};

// (rows, C) in one launch: groups of `splits` adjacent blocks take 2^lane_bits packs of each row, `share` rows a block,
// `tile` at a time. Of what a thread reads, `kept` packs stay in shared memory, each in a place of its own; the others
// are read again, last first, since those are still in L2. All blocks of a group send what they found, in mail
// (C, splits), and put together all of it; the last one that has read leaves it empty.
// Blocks of a group wait for each other. ops/normalization/cuda.py sees to it that where there are groups the device
// holds all blocks of the launch at once; beside other work it is enough that blocks start in the order of their
// index: then the group whose first blocks wait is the next to be complete.
template <typename T, int V>
__global__ void __launch_bounds__(COLUMN_THREADS, 1) normalize_columns(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, unsigned long long* mail, unsigned int* tickets,
    int rows, int channels, int lane_bits, int team_bits, Divisor splitting, int share, Divisor tiling, int kept,
    Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  constexpr int WORDS_EACH = WORDS<Partial<A>>, WARPS_MOST = COLUMN_THREADS / 32;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Partial<A> slots[WARPS_MOST][LINE<V> + 4];  // warps have no banks in common
  __shared__ __align__(16) A means[LINE<V>], scales[LINE<V>], shifts[LINE<V>];
  __shared__ A counts[WARPS_MOST], variances[LINE<V>];
  const int thread = threadIdx.x, threads = blockDim.x, warp = thread / 32, warps = threads / 32;
  const int lanes = 1 << lane_bits, lane = thread & (lanes - 1), width = lanes * V, tile = tiling.value;
  const int splits = splitting.value, group = quotient(blockIdx.x, splitting), split = blockIdx.x - group * splits;
  const int base = group * width, column = base + lane * V, first = split * share + (thread >> lane_bits);
  const int end = column < channels ? min(rows, (split + 1) * share) : 0;
  const int mine = first < end ? quotient(end - first + tile - 1, tiling) : 0;
  const int held = min(mine, kept), half = (held + 1) / 2;
  const long long step = static_cast<long long>(tile) * channels;
  const T* const from = x + (static_cast<long long>(first) * channels + column);
  T* const ours = reinterpret_cast<T*>(memory) + thread * V;
  const int apart = threads * V;

  const auto bring = [&](int begin, int until) {
#pragma unroll 1
    for (int k = begin; k < until; ++k) {
      if constexpr (V * sizeof(T) == 16) {
        copy_async(ours + k * apart, from + k * step);
      } else {
        store<T, V>(ours + k * apart, load<T, V>(from + k * step));
      }
    }
    copy_commit();
  };
  bring(0, half);
  bring(half, held);
  // a team finishes a column, in the order of the slots
  const int team = 1 << team_bits, place = thread >> team_bits, which = (place & (lanes - 1)) * V + (place >> lane_bits);
  const bool within = place < width, leads = within && (thread & (team - 1)) == 0, tells = leads && base + which < channels;
  A gain = 0, bias = 0;
  if (tells) gain = gamma[base + which], bias = beta[base + which];
  if (addend != nullptr && lane == 0 && kept * tile >= share) {
#pragma unroll 1
    for (int k = 0; k < mine; ++k) prefetch_to_l2(addend + (from - x) + k * step);
  }

  ColumnSums<T, V> sums;
  copy_wait<1>();
  if (held > 0) sums.begin_with(load<T, V>(ours));
  for (int part = 0, k = 0; part < 2; ++part) {
    if (part == 1) copy_wait<0>();
#pragma unroll 1
    for (const int until = part == 0 ? half : held; k < until; ++k) sums.take(load<T, V>(ours + k * apart));
  }
#pragma unroll 1
  for (int start = held; start < mine; start += AT_ONCE) {
    Closed<T, V> loaded[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (start + j < mine) loaded[j].load(from + (start + j) * step);
    }
    if (start == 0) sums.begin_with(loaded[0].open());
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (start + j < mine) sums.take(loaded[j].open());
    }
  }
  const A count = sums.settle(mine, lanes);
  if (thread % 32 < lanes) {
#pragma unroll
    for (int i = 0; i < V; ++i) slots[warp][i * lanes + lane] = {sums.middle[i], sums.squares[i]};
    if (thread % 32 == 0) counts[warp] = count;
  }
  __syncthreads();

  const A n = static_cast<A>(rows);
  const auto rows_of = [&](int block) { return static_cast<A>(min(share, rows - block * share)); };
  Partial<A> found = together<A>(
      within ? warps : 0, team, rows_of(split), [&](int i) { return slots[i][place]; }, [&](int i) { return counts[i]; });
  unsigned long long* const letters = mail + static_cast<long long>(base) * splits * WORDS_EACH;
  if (splits > 1) {
    unsigned long long* const column_letters = letters + which * splits * WORDS_EACH;
    if (leads) send(column_letters + split * WORDS_EACH, found);
    const auto letter = [&](int i) { return await<Partial<A>>(column_letters + i * WORDS_EACH); };
    found = together<A>(within ? splits : 0, team, n, letter, rows_of);
  }
  if (tells) {
    const A variance = ratio(found.squares < A(0) ? A(0) : found.squares, n);
    means[which] = found.mean, variances[which] = variance;
    scales[which] = gain * inverse_root(variance + epsilon), shifts[which] = bias;
  }
  __syncthreads();
  unsigned int turn = 0;
  if (splits > 1 && thread == threads - 32) turn = atomicAdd(&tickets[group], 1u);

  A middle[V], scale[V], offset[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    middle[i] = means[lane * V + i], scale[i] = scales[lane * V + i], offset[i] = shifts[lane * V + i];
  }
  const auto put = [&](int k, const Pack<T, V>& values, auto&& add) {
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      result.at[i] = narrow<T>(add((widen(values.at[i]) - middle[i]) * scale[i] + offset[i], i));
    }
    store_streaming<T, V>(y + (from - x) + k * step, result);
  };
  if (addend == nullptr && mine == held) {
#pragma unroll 1
    for (int k = 0; k < held; ++k) put(k, load<T, V>(ours + k * apart), [](A value, int) { return value; });
  } else {
#pragma unroll 1
    for (int start = (mine - 1) / AT_ONCE * AT_ONCE; mine > 0 && start >= 0; start -= AT_ONCE) {
      Closed<T, V> loaded[AT_ONCE], added[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        const int k = start + j;
        if (k < mine && addend != nullptr) added[j].load(addend + (from - x) + k * step);
        if (k >= kept && k < mine) loaded[j].load(from + k * step);
        if (k < held) loaded[j].load(ours + k * apart);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        if (start + j >= mine) break;
        const Pack<T, V> more = added[j].open();
        put(start + j, loaded[j].open(), [&](A value, int i) {
          return addend == nullptr ? value : value + widen(more.at[i]);
        });
      }
    }
  }
  if (split == 0 && thread < width && base + thread < channels) {
    const A variance = variances[thread];
    keep(statistics, base + thread, means[thread], inverse_root(variance + epsilon), variance, n, momentum);
  }
  if (splits > 1 && thread >= threads - 32 && __shfl_sync(FULL, turn, 0) == splits - 1) {
    for (int i = thread % 32; i < width * splits; i += 32) clear<Partial<A>>(letters + i * WORDS_EACH);
    if (thread % 32 == 0) tickets[group] = 0;
  }
}

// A load is not put off until its value is needed. Nothing waits for it here.
__device__ __forceinline__ void ask_now(float& value) { asm volatile("" : "+f"(value)); }
__device__ __forceinline__ void ask_now(double& value) { asm volatile("" : "+d"(value)); }

// Of a multiprocessor, at least. The compiler knows best (0), but lets 16 packs of bfloat16 spill.
template <typename T, int P>
constexpr int SHORT_BLOCKS = sizeof(T) == 2 && P == 16 ? 1 : 0;

// (rows, C) of few rows: a warp takes LANES packs of each row, and its threads hold up to P packs each, 32 / LANES rows
// apart. Where one warp does not hold all rows, those of a block take the same columns (SHARED), `share` rows each.
// Two passes over registers, no block waits for another, and little code: what runs once waits for its instructions.
template <typename T, int V, int LANES, int P, bool SHARED>
__global__ void __launch_bounds__(COLUMN_THREADS, SHORT_BLOCKS<T, P>) normalize_short(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, int rows, int channels, int share,
    Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  constexpr int DEEP = 32 / LANES;
  __shared__ Partial<A> slots[SHARED ? COLUMN_THREADS / 32 : 1][LANES * V];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int lane = threadIdx.x % LANES, deep = threadIdx.x % 32 / LANES;
  const int column = ((SHARED ? blockIdx.x : blockIdx.x * warps + warp) * LANES + lane) * V;
  const int begin = SHARED ? warp * share : 0, count = SHARED ? min(share, rows - begin) : rows;
  const int left = column < channels ? count - deep : 0;  // rows from this thread's first on
  const unsigned int first = static_cast<unsigned int>(begin + deep) * channels + column, step = DEEP * channels;
  const auto each = [&](auto&& take) {
#pragma unroll
    for (int j = 0; j < P; ++j) {
      if (j * DEEP < left) take(j, first + j * step);
    }
  };
  const auto over_warp = [](A(&sums)[V]) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
#pragma unroll
      for (int apart = LANES; apart < 32; apart *= 2) sums[i] += __shfl_xor_sync(FULL, sums[i], apart);
    }
  };

  Closed<T, V> held[P], added[P];
  each([&](int j, unsigned int at) { held[j].load(x + at); });
  A gain[V], bias[V], mean[V] = {}, squares[V] = {};
  const int known = min(column, channels - V);
#pragma unroll
  for (int i = 0; i < V; ++i) gain[i] = gamma[known + i], bias[i] = beta[known + i];
#pragma unroll
  for (int i = 0; i < V; ++i) ask_now(gain[i]), ask_now(bias[i]);
  if (addend != nullptr) each([&](int j, unsigned int at) { added[j].load(addend + at); });

  each([&](int j, unsigned int) {
    const Pack<T, V> values = held[j].open();
#pragma unroll
    for (int i = 0; i < V; ++i) mean[i] += widen(values.at[i]);
  });
  over_warp(mean);
  const A ours = ratio(A(1), static_cast<A>(count));
#pragma unroll
  for (int i = 0; i < V; ++i) mean[i] *= ours;
  each([&](int j, unsigned int) {
    const Pack<T, V> values = held[j].open();
#pragma unroll
    for (int i = 0; i < V; ++i) squares[i] += (widen(values.at[i]) - mean[i]) * (widen(values.at[i]) - mean[i]);
  });
  over_warp(squares);
  const A n = static_cast<A>(rows), fraction = ratio(A(1), n);
  if constexpr (SHARED) {  // Chan et al. 1979
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (deep == 0) slots[warp][lane * V + i] = {mean[i], squares[i]};
      mean[i] = squares[i] = 0;
    }
    __syncthreads();
    const auto over_slots = [&](auto&& take) {
#pragma unroll 1
      for (int other = deep; other < warps; other += DEEP) {
        const A weight = static_cast<A>(min(share, rows - other * share));
#pragma unroll
        for (int i = 0; i < V; ++i) take(i, slots[other][lane * V + i], weight);
      }
    };
    over_slots([&](int i, const Partial<A>& part, A weight) { mean[i] += part.mean * weight; });
    over_warp(mean);
#pragma unroll
    for (int i = 0; i < V; ++i) mean[i] *= fraction;
    over_slots([&](int i, const Partial<A>& part, A weight) {
      squares[i] += part.squares + (part.mean - mean[i]) * (part.mean - mean[i]) * weight;
    });
    over_warp(squares);
  }

  A inverse[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    squares[i] *= fraction, inverse[i] = inverse_root(squares[i] + epsilon);
    gain[i] *= inverse[i];
  }
  each([&](int j, unsigned int at) {
    const Pack<T, V> values = held[j].open(), more = added[j].open();
    Pack<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      A value = (widen(values.at[i]) - mean[i]) * gain[i] + bias[i];
      if (addend != nullptr) value += widen(more.at[i]);
      result.at[i] = narrow<T>(value);
    }
    store_streaming<T, V>(y + at, result);
  });
  if (deep == 0 && column < channels && (!SHARED || warp == 0)) {
#pragma unroll
    for (int i = 0; i < V; ++i) keep(statistics, column + i, mean[i], inverse[i], squares[i], n, momentum);
  }
}

// spread: the variance where `is_variance`, 1 / sqrt(variance + epsilon) otherwise.
// (N, C, post), post a multiple of V: a pack a thread, last first, since those are still in L2.
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) apply_rows(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, const Wide<T>* __restrict__ mean, const Wide<T>* __restrict__ spread,
    bool is_variance, Wide<T> epsilon, unsigned int packs, Divisor packs_per_row, Divisor channels) {
  using A = Wide<T>;
  const unsigned int pack = (gridDim.x - 1 - blockIdx.x) * THREADS + threadIdx.x;
  if (pack >= packs) return;
  const long long at = static_cast<long long>(pack) * V;
  const Pack<T, V> loaded = load<T, V>(x + at);
  Pack<T, V> added{}, result;
  if (addend != nullptr) added = load<T, V>(addend + at);
  const unsigned int row = quotient(pack, packs_per_row);
  const unsigned int channel = remainder(row, quotient(row, channels), channels);
  const A middle = mean[channel], shift = beta[channel];
  const A scale = (is_variance ? inverse_root(spread[channel] + epsilon) : spread[channel]) * gamma[channel];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    A value = (widen(loaded.at[i]) - middle) * scale + shift;
    if (addend != nullptr) value += widen(added.at[i]);
    result.at[i] = narrow<T>(value);
  }
  store_streaming<T, V>(y + at, result);
}

// (rows, C) by given moving statistics.
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
  for (int row = blockIdx.y * tile + threadIdx.x / lanes; row < rows; row += UNDER_WAY * stride) {
    Pack<T, V> loaded[UNDER_WAY], added[UNDER_WAY];
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
      if (row + j * stride >= rows) break;
      const long long at = static_cast<long long>(row + j * stride) * channels + column;
      loaded[j] = load<T, V>(x + at);
      if (addend != nullptr) added[j] = load<T, V>(addend + at);
    }
#pragma unroll
    for (int j = 0; j < UNDER_WAY; ++j) {
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
