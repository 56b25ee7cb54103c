// Batch normalization of (rows, C) in training, with an optional addend.
//
// T is the tensor's type, A the accumulating one; V: elements of one access.

#include "cluster.cuh"
#include "ptx/cp_async.cuh"
#include "flagged.cuh"
#include "statistics.cuh"

// COLUMN_THREADS, maximum threads per block, COLUMN_LANES and WIDE_LANES, lanes of a block's columns, and PARTIALS_EACH,
// partials per lane of the merging warp, are defined by channels_last.py.
template <int V, bool WIDE>
constexpr int LINE = V == 1 ? 32 : (WIDE ? WIDE_LANES : COLUMN_LANES) * V;  // maximum columns of a block
constexpr int LINE_BYTES = 128;  // of the L2 cache
constexpr int COPIED_AT_ONCE = 8;  // loads in flight of a thread that copies single elements of 16 bits

// Merges `pieces` partials get(i), of weigh(i) values each, to the statistics of `n` values. A team of adjacent threads, a
// power of two, shares the pieces. All threads of a warp participate.
template <typename A, typename Get, typename Weigh>
__device__ __forceinline__ Partial<A> together(int pieces, int team, A n, Get&& get, Weigh&& weigh) {
  int i = threadIdx.x & (team - 1);
  Partial<A> piece{};
  if (i < pieces) piece = get(i);
  const A base = __shfl_sync(FULL, piece.mean, threadIdx.x & 31 & -team);
  A sum = 0, squares = 0;
#pragma unroll 1
  while (i < pieces) {  // relative to the first one's mean, after Chan et al. 1979
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

// Sums over one thread's vectors, relative to each column's first value: accurate for means far from zero.
template <typename T, int V>
struct ColumnSums {
  using A = Wide<T>;
  A shift[V] = {}, middle[V] = {}, squares[V] = {};

  __device__ __forceinline__ void begin_with(const Vector<T, V>& values) {
#pragma unroll
    for (int i = 0; i < V; ++i) shift[i] = widen(values.at[i]);
  }

  __device__ __forceinline__ void take(const Vector<T, V>& values) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const A distance = widen(values.at[i]) - shift[i];
      middle[i] += distance;
      squares[i] += distance * distance;
    }
  }

  // Converts the sums to means and squared distances, over the threads of a warp with equal index modulo `lanes`, after
  // `vectors` vectors of this thread. Returns the number of values of a column.
  __device__ __forceinline__ A fix_up(int vectors, int lanes) {
    A count = static_cast<A>(vectors);
    const A fraction = vectors > 0 ? ratio(A(1), count) : A(0);
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

// normalize_columns: groups of `splits` blocks share columns; part of x stays in shared memory.
// Layout   x, y (rows, C); a block has 2^lane_bits vectors of each row, `share` rows, `tile` at a time
// Grid     groups · splits      Block  ≤ COLUMN_THREADS      Writes  y, statistics
// Needs    with splits, all blocks resident (channels_last.py). Beside other kernels it suffices that blocks start in the
//          order of their index: the group whose first blocks wait is the next to be complete
// Waits    blocks of a group wait for each other's flagged partials (C, splits), which the last reader resets
// Why      of each thread's vectors, `kept` stay in shared memory; the others are read again from L2, last first
// WIDE, if x does not fit on chip: longer lines, more blocks per group and (C, splits + 1) partials; each block merges
// the statistics of some columns and publishes the result to the others.
template <typename T, int V, bool WIDE>
__global__ void __launch_bounds__(COLUMN_THREADS, 1) normalize_columns(
    const T* __restrict__ x, const T* __restrict__ addend, T* __restrict__ y, const Wide<T>* __restrict__ gamma,
    const Wide<T>* __restrict__ beta, Statistics<Wide<T>> statistics, unsigned long long* flagged, unsigned int* counters,
    int rows, int channels, int lane_bits, int team_bits, Divisor splitting, int share, Divisor tiling, int kept,
    Wide<T> epsilon, Wide<T> momentum) {
  using A = Wide<T>;
  constexpr int WORDS_EACH = WORDS<Partial<A>>, WARPS_MOST = COLUMN_THREADS / 32;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Partial<A> slots[WARPS_MOST][LINE<V, WIDE> + 4];  // padded: warps use different banks
  __shared__ __align__(16) A means[LINE<V, WIDE>], scales[LINE<V, WIDE>], shifts[LINE<V, WIDE>];
  __shared__ A counts[WARPS_MOST], variances[LINE<V, WIDE>];
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

  const int partials_each = WIDE ? splits + 1 : splits;  // partials of a column; the last one is the merged result
  unsigned long long* const partials = flagged + static_cast<long long>(base) * partials_each * WORDS_EACH;
  // Prefetches the lines of the partials, each by one block: stores to lines outside L2 would first read them.
  const int line = (thread * splits + split) * (LINE_BYTES / 8);
  if (splits > 1 && line < width * partials_each * WORDS_EACH) prefetch_to_l2(partials + line);

  const auto load_part = [&](int begin, int until) {
    if constexpr (V * sizeof(T) >= 4) {
#pragma unroll 1
      for (int k = begin; k < until; ++k) cp_async<V * sizeof(T)>(ours + k * apart, from + k * step);
    } else {
#pragma unroll 1
      for (int start = begin; start < until; start += COPIED_AT_ONCE) {
        Closed<T, V> loaded[COPIED_AT_ONCE];
#pragma unroll
        for (int j = 0; j < COPIED_AT_ONCE; ++j) loaded[j].load_where(from + (start + j) * step, start + j < until);
#pragma unroll
        for (int j = 0; j < COPIED_AT_ONCE; ++j) {
          if (start + j < until) store<T, V>(ours + (start + j) * apart, loaded[j].open());
        }
      }
    }
    cp_async_commit_group();
  };
  load_part(0, half);
  load_part(half, held);
  // a team finishes a column, in the order of the slots
  const int team = 1 << team_bits, place = thread >> team_bits, which = (place & (lanes - 1)) * V + (place >> lane_bits);
  const bool within = place < width, leads = within && (thread & (team - 1)) == 0, publishes = leads && base + which < channels;
  A gain = 0, bias = 0;
  if (publishes) gain = gamma[base + which], bias = beta[base + which];
  if (addend != nullptr && lane == 0 && kept * tile >= share) {
#pragma unroll 1
    for (int k = 0; k < mine; ++k) prefetch_to_l2(addend + (from - x) + k * step);
  }

  ColumnSums<T, V> sums;
  cp_async_wait_group<1>();
  if (held > 0) sums.begin_with(load<T, V>(ours));
  for (int part = 0, k = 0; part < 2; ++part) {
    if (part == 1) cp_async_wait_group<0>();
#pragma unroll 1
    for (const int until = part == 0 ? half : held; k < until; ++k) sums.take(load<T, V>(ours + k * apart));
  }
#pragma unroll 1
  for (int start = held; start < mine; start += AT_ONCE) {
    Closed<T, V> loaded[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      loaded[j].load_where(from + (start + j) * step, start + j < mine);
    }
    if (start == 0) sums.begin_with(loaded[0].open());
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (start + j < mine) sums.take(loaded[j].open());
    }
  }
  const A count = sums.fix_up(mine, lanes);
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
  if (splits > 1) {
    unsigned long long* const column_partials = partials + which * partials_each * WORDS_EACH;
    if (WIDE ? publishes : leads) publish(column_partials + split * WORDS_EACH, found);
    if constexpr (WIDE) {
      const int each = (width + splits - 1) / splits, until = min(min(width, channels - base), (split + 1) * each);
#pragma unroll 1
      for (int one = split * each + warp; one < until; one += warps) {
        unsigned long long* const sent = partials + one * partials_each * WORDS_EACH;
        const int first_block = thread % 32;
        Partial<A> pieces[PARTIALS_EACH];
        poll_all(pieces, sent + first_block * WORDS_EACH, 32, splits - first_block, 1);
        const A nearby = __shfl_sync(FULL, pieces[0].mean, 0);
        const Sums<A> sums = about(nearby, pieces, first_block, splits, [&](int block) {
          reset<Partial<A>>(sent + block * WORDS_EACH);
          return rows_of(block);
        });
        const A sum = warp_sum(sums.distances), squares = warp_sum(sums.squares);
        const A moved = ratio(sum, n);
        if (first_block == 0) publish(sent + splits * WORDS_EACH, Partial<A>{nearby + moved, squares - sum * moved});
      }
      if (publishes) found = poll<Partial<A>>(column_partials + splits * WORDS_EACH);
    } else {
      const auto partial = [&](int i) { return poll<Partial<A>>(column_partials + i * WORDS_EACH); };
      found = together<A>(within ? splits : 0, team, n, partial, rows_of);
    }
  }
  if (publishes) {
    const A variance = ratio(found.squares < A(0) ? A(0) : found.squares, n);
    means[which] = found.mean, variances[which] = variance;
    scales[which] = gain * inverse_root(variance + epsilon), shifts[which] = bias;
  }
  __syncthreads();
  unsigned int round = 0;
  if (splits > 1 && thread == threads - 32) round = atomicAdd(&counters[group], 1u);

  A middle[V], scale[V], offset[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    middle[i] = means[lane * V + i], scale[i] = scales[lane * V + i], offset[i] = shifts[lane * V + i];
  }
  const auto put = [&](int k, const Vector<T, V>& values, auto&& add) {
    Vector<T, V> result;
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
        added[j].load_where(addend + (from - x) + k * step, k < mine && addend != nullptr);
        loaded[j].load_where(from + k * step, k >= kept && k < mine);
        if (k < held) loaded[j].load(ours + k * apart);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; ++j) {
        if (start + j >= mine) break;
        const Vector<T, V> more = added[j].open();
        put(start + j, loaded[j].open(), [&](A value, int i) {
          return addend == nullptr ? value : value + widen(more.at[i]);
        });
      }
    }
  }
  if (split == 0 && thread < width && base + thread < channels) {
    const A variance = variances[thread];
    store_statistics(statistics, base + thread, means[thread], inverse_root(variance + epsilon), variance, n, momentum);
  }
  if (splits > 1 && thread >= threads - 32 && __shfl_sync(FULL, round, 0) == splits - 1) {
    if constexpr (WIDE) {  // the other partials were reset by their readers
      for (int one = thread % 32; one < min(width, channels - base); one += 32) {
        reset<Partial<A>>(partials + (one * partials_each + splits) * WORDS_EACH);
      }
    } else {
      for (int i = thread % 32; i < width * splits; i += 32) reset<Partial<A>>(partials + i * WORDS_EACH);
    }
    if (thread % 32 == 0) counters[group] = 0;
  }
}

// Minimum resident blocks per multiprocessor for __launch_bounds__ (0: compiler's choice, which would spill for 16 vectors
// of 16 bits).
template <typename T, int P>
constexpr int SHORT_BLOCKS = sizeof(T) == 2 && P == 16 ? 1 : 0;

// normalize_short: warps normalize columns of few rows, whose values stay in registers.
// Layout   x, y (rows, C); a warp has LANES vectors of each row, a thread every 32 / LANES-th row
// Grid     column blocks      Block  ≤ COLUMN_THREADS      Writes  y, statistics
// Needs    at most P vectors per thread. SHARED: warps of a block share columns, `share` rows each
// Why      no block waits for another; short code, as a one-wave kernel is bound by instruction fetch
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
  Moving<A> moving[V];
#pragma unroll
  for (int i = 0; i < V; ++i) moving[i] = load_moving_or(statistics, known + i, gamma);
  if (addend != nullptr) each([&](int j, unsigned int at) { added[j].load(addend + at); });

  each([&](int j, unsigned int) {
    const Vector<T, V> values = held[j].open();
#pragma unroll
    for (int i = 0; i < V; ++i) mean[i] += widen(values.at[i]);
  });
  over_warp(mean);
  if constexpr (!SHARED) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      ask_before(gain[i]), ask_before(bias[i]), ask_before(moving[i].mean), ask_before(moving[i].variance);
    }
  }
  const A ours = ratio(A(1), static_cast<A>(count));
#pragma unroll
  for (int i = 0; i < V; ++i) mean[i] *= ours;
  each([&](int j, unsigned int) {
    const Vector<T, V> values = held[j].open();
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
    const Vector<T, V> values = held[j].open(), more = added[j].open();
    Vector<T, V> result;
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
    for (int i = 0; i < V; ++i) {
      store_statistics(statistics, column + i, mean[i], inverse[i], squares[i], n, momentum, moving[i]);
    }
  }
}
