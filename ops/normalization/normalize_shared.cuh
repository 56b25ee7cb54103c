// Channels that many blocks share, with x in shared memory.
#pragma once
#include "cluster.cuh"
#include "ptx/bar.cuh"
#include "ptx/cp_async.cuh"
#include "flagged.cuh"
#include "statistics.cuh"

// READERS, threads that reduce slices, WRITTEN, maximum vectors per writing thread, SHARING_THREADS, MOST_STAGES and
// PARTIALS_EACH, partials per lane of the merging warp, are defined by ops/normalization/channels_first.py.

// normalize_shared: groups of `splits` blocks share channels that are too large for a cluster.
// Layout   x, y (N, C, post); block `split` of a group has `share` vectors of every `across`-th channel
// Grid     across · splits      Block  READERS + a warp + writers      Writes  y, statistics
// Needs    all blocks resident; a ring of `stages` slices in shared memory
// Waits    blocks of a group wait for each other's flagged partials, which are zero between launches
// Why      one read of x: reading warps reduce a slice and publish its statistics, one warp merges those of all blocks,
//          and writing warps store a slice and load the next one into its slot
// Partials are in a ring of 2 `stages` channels: a block that publishes one has read those of `stages` channels ago, which
// all blocks published after they had read those of 2 `stages` channels ago.
template <typename T, int V>
__global__ void __launch_bounds__(SHARING_THREADS, 1) normalize_shared(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, unsigned long long* flagged, unsigned int* counters,
    int vectors, int channels, int post, int splits, int across, int share, int stages, Divisor vectors_per_image,
    Wide<T> epsilon, Wide<T> momentum) {
#if __CUDA_ARCH__ >= 800
  using A = Wide<T>;
  constexpr int WORDS_EACH = WORDS<Partial<A>>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ __align__(8) unsigned long long full[MOST_STAGES], published[MOST_STAGES];
  __shared__ A slots[2][READERS / 32], means[MOST_STAGES], scales[MOST_STAGES], shifts[MOST_STAGES];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, writers = blockDim.x - READERS - 32;
  const int group = blockIdx.x / splits, split = blockIdx.x - group * splits, first = split * share;
  const int count = min(vectors - first, share), items = (channels - group + across - 1) / across;
  T* const slices = reinterpret_cast<T*>(memory);
  unsigned long long* const partials = flagged + static_cast<long long>(group) * 2 * stages * splits * WORDS_EACH;
  const auto partial = [&](int item, int block) {
    return partials + (item % (2 * stages) * splits + block) * WORDS_EACH;
  };

  if (threadIdx.x < stages) {
    mbarrier_init(&full[threadIdx.x], writers);
    mbarrier_init(&published[threadIdx.x], 1);
  }
  __syncthreads();

  if (threadIdx.x < READERS) {
    const A here = A(1) / (static_cast<A>(count) * V);
    for (int item = 0, stage = 0, parity = 0; item < items; ++item) {
      mbarrier_wait(&full[stage], parity);
      const T* const slice = slices + stage * share * V;
      const auto sum = [&](auto&& take, A* by_warp) {
        A total = 0;
#pragma unroll 4
        for (int vector = threadIdx.x; vector < count; vector += READERS) {
          const Vector<T, V> values = load<T, V>(slice + vector * V);
#pragma unroll
          for (int i = 0; i < V; ++i) total += take(widen(values.at[i]));
        }
        total = warp_sum(total);
        if (lane == 0) by_warp[warp] = total;
        bar_sync<1, READERS>();
        return warp_sum(lane < READERS / 32 ? by_warp[lane] : A(0));
      };
      const A mean = sum([](A value) { return value; }, slots[0]) * here;
      const A squares = sum([&](A value) { return (value - mean) * (value - mean); }, slots[1]);
      if (threadIdx.x == 0) publish(partial(item, split), Partial<A>{mean, squares}, item + 1);
      if (++stage == stages) stage = 0, parity ^= 1;
    }
  } else if (threadIdx.x < READERS + 32) {
    const A n = static_cast<A>(vectors) * V, fraction = A(1) / n;
    for (int item = 0, stage = 0; item < items; ++item) {
      const int channel = group + item * across;
      const A gain = gamma[channel], offset = beta[channel];
      Partial<A> pieces[PARTIALS_EACH];
      poll_all(pieces, partial(item, lane), 32, splits - lane, item + 1);
      const A base = __shfl_sync(FULL, pieces[0].mean, 0);
      const auto weigh = [&](int block) { return static_cast<A>(min(vectors - block * share, share)) * V; };
      const Sums<A> sums = about(base, pieces, lane, splits, weigh);
      const A moved = warp_sum(sums.distances) * fraction, left = warp_sum(sums.squares) * fraction - moved * moved;
      const A mean = base + moved, variance = left < A(0) ? A(0) : left, inverse = A(1) / sqrt(variance + epsilon);
      if (lane == 0) {
        means[stage] = mean, scales[stage] = inverse * gain, shifts[stage] = offset;
        mbarrier_arrive(&published[stage]);
        if (split == 0) store_statistics(statistics, channel, mean, inverse, variance, n, momentum);
      }
      if (++stage == stages) stage = 0;
    }
    unsigned int round = 0;
    if (lane == 0) round = atomicAdd(&counters[group], 1u);
    if (__shfl_sync(FULL, round, 0) == splits - 1) {  // the other blocks have read all partials
      for (int i = lane; i < 2 * stages * splits; i += 32) reset<Partial<A>>(partials + i * WORDS_EACH);
      if (lane == 0) counters[group] = 0;
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
      const unsigned int vector = first + thread + j * writers;
      at[j] = vector * V + quotient(vector, vectors_per_image) * skip;
    });
    const auto place = [&](int j) {  // computed at each use: wide offsets would take twice the registers
      asm volatile("" : "+r"(at[j]));
      return at[j];
    };
    const auto base = [&](int item) { return static_cast<long long>(group + item * across) * post; };
    const auto spot = [&](int stage, int j) { return slices + (stage * share + thread + j * writers) * V; };
    const auto load_part = [&](int item, int stage) {
      if (item < items) each([&](int j) { cp_async(spot(stage, j), x + base(item) + place(j)); });
      cp_async_mbarrier_arrive(&full[stage]);
    };
    for (int item = 0; item < stages; ++item) load_part(item, item);
    for (int item = 0, stage = 0, parity = 0; item < items; ++item) {
      Closed<T, V> added[WRITTEN];
      if (addend != nullptr) each([&](int j) { added[j].load(addend + base(item) + place(j)); });
      mbarrier_wait(&published[stage], parity);
      const A mean = means[stage], scale = scales[stage], offset = shifts[stage];
      each([&](int j) {
        const Vector<T, V> values = load<T, V>(spot(stage, j)), more = added[j].open();
        Vector<T, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          A value = (widen(values.at[i]) - mean) * scale + offset;
          if (addend != nullptr) value += widen(more.at[i]);
          result.at[i] = narrow<T>(value);
        }
        store_evict_last<T, V>(y + base(item) + place(j), result);
      });
      load_part(item + stages, stage);
      if (++stage == stages) stage = 0, parity ^= 1;
    }
    cp_async_wait_all();
  }
#endif
}
