// Reductions of (a, r1, b, r2, c) over r1 and r2, as ops/_core/axes.py lays them out.
//
// A functor F says what is reduced. Members:
//   Input, Acc, Output; constexpr bool TWO: whether a second tensor of the same shape is read
//   Input neutral() const: an element that changes nothing
//   Acc identity() const; Acc take(Acc, Input, Input) const; Acc merge(Acc, Acc) const; Output finish(Acc) const
//
// reduce_small  few elements: 1 to 32 lanes per result, element by element
// reduce_rows   (rows, length): 1 to 256 lanes per row, 16-byte loads wherever a row begins
// reduce_long   (rows, length): blocks share a row; the last of them collects what the others send, in a fixed order
// reduce_row    one row: blocks take their share of it at once
// reduce_shares (rows, length): likewise of several
// reduce_held   (rows, packs): blocks take a row at once
// reduce_slabs  two groups of axes: a block adds slabs of r2 c elements in packs, then the rows of their sum
// reduce_columns the general layout: lanes along c, blocks share the reduced axes; the last one to finish adds up
//
// STREAM: what is read is the first to leave the L2 cache, so that what others left there stays. Pays for
// middling sizes whose lines are not in the cache yet: no dirty line has to be written back to make room. Blocks that take
// all of their packs at once always read so.
#pragma once
#include "divide.cuh"
#include "mail.cuh"
#include "pack.cuh"
#include "ticket.cuh"

constexpr int REDUCE_THREADS = 256;
constexpr int LINE_PACKS = 8;  // packs of 16 bytes of a line that memory is read by
constexpr unsigned int EVERY_LANE = 0xffffffffu;

// Packs that a thread has under way. Eight half or two double elements a pack leave fewer threads room for four.
template <typename T>
constexpr int under_way() {
  return sizeof(T) == 4 ? 4 : 2;
}

// Likewise, of each tensor, in groups that take a row and in blocks that share one.
template <typename F, typename T = typename F::Input>
constexpr int ROWS_UNDER_WAY = F::TWO ? under_way<T>() : 4;
template <typename F, typename T = typename F::Input>
constexpr int LONG_UNDER_WAY = sizeof(T) == 4 ? 4 : (F::TWO ? 1 : (sizeof(T) == 2 ? 4 : 2));

template <typename A>
__device__ __forceinline__ A shuffle_xor(A value, int step) {
  if constexpr (sizeof(A) == 16) {
    double2 pair = *reinterpret_cast<double2*>(&value);
    pair.x = __shfl_xor_sync(EVERY_LANE, pair.x, step);
    pair.y = __shfl_xor_sync(EVERY_LANE, pair.y, step);
    return *reinterpret_cast<A*>(&pair);
  } else if constexpr (sizeof(A) == 8) {
    const unsigned long long bits = __shfl_xor_sync(EVERY_LANE, *reinterpret_cast<unsigned long long*>(&value), step);
    return *reinterpret_cast<const A*>(&bits);
  } else {
    const unsigned int bits = __shfl_xor_sync(EVERY_LANE, *reinterpret_cast<unsigned int*>(&value), step);
    return *reinterpret_cast<const A*>(&bits);
  }
}

template <typename F>
__device__ __forceinline__ typename F::Acc merge_lanes(const F& f, typename F::Acc mine, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) mine = f.merge(mine, shuffle_xor(mine, step));
  return mine;
}

template <typename F>
__device__ __forceinline__ typename F::Acc merge_block(const F& f, typename F::Acc mine) {
  __shared__ typename F::Acc slots[REDUCE_THREADS / 32];
  mine = merge_lanes(f, mine, 32);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < REDUCE_THREADS / 32; ++warp) mine = f.merge(mine, slots[warp]);
  }
  return mine;  // in thread 0
}

// Over the `lanes` threads, a power of two and several warps, of each of the block's groups; in the first of them.
template <typename F>
__device__ __forceinline__ typename F::Acc merge_warps(const F& f, typename F::Acc mine, int lanes) {
  __shared__ typename F::Acc slots[REDUCE_THREADS / 32];
  const int warp = threadIdx.x / 32, warps = lanes / 32;
  mine = merge_lanes(f, mine, 32);
  if (threadIdx.x % 32 == 0) slots[warp] = mine;
  __syncthreads();
  return merge_lanes(f, slots[(warp & -warps) + (threadIdx.x & (warps - 1))], warps);
}

template <typename A>
__device__ __forceinline__ A read_partial(const A* from) {  // written by another block of this launch
  if constexpr (sizeof(A) == 16) {
    const double2 pair = __ldcg(reinterpret_cast<const double2*>(from));
    return *reinterpret_cast<const A*>(&pair);
  } else if constexpr (sizeof(A) == 8) {
    const unsigned long long bits = __ldcg(reinterpret_cast<const unsigned long long*>(from));
    return *reinterpret_cast<const A*>(&bits);
  } else {
    const unsigned int bits = __ldcg(reinterpret_cast<const unsigned int*>(from));
    return *reinterpret_cast<const A*>(&bits);
  }
}

// Elements [begin, end), fewer than 2^31, by lane `lane` of `lanes`. Packs are aligned in memory, so the first
// and the last may hold elements that are not ours, unless packs are WHOLE: those become neutral. An aligned pack
// never leaves the allocation, whose granules are larger. `shift` is how many elements x lies past an aligned address.
template <typename F, int V, int UNROLL, bool STREAM, bool WHOLE>
__device__ __forceinline__ typename F::Acc take_range(
    const F& f, const typename F::Input* x, const typename F::Input* second, long long begin, long long end, int shift,
    int lane, int lanes) {
  using T = typename F::Input;
  typename F::Acc mine = f.identity();
  const long long first = WHOLE ? begin : (begin + shift) / V * V - shift;
  const T* const from = x + first;
  const T* const other = F::TWO ? second + first : x;
  const int low = static_cast<int>(begin - first), high = static_cast<int>(end - first);
  const unsigned int ours = high - low;
  for (int start = lane * V; start < high; start += UNROLL * lanes * V) {
    PackWord<T, V> one[UNROLL], two[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * lanes * V;
      if constexpr (F::TWO) {  // by a branch: by predicates they take more registers than there are
        if (at >= high) continue;
        one[u] = fetch<T, V, STREAM>(from + at);
        two[u] = fetch<T, V, STREAM>(other + at);
      } else {
        one[u] = fetch_where<T, V, STREAM>(from + at, at < high);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int at = start + u * lanes * V;
      if (at >= high) continue;
      Pack<T, V> a = unpacked<T, V>(one[u]);
      Pack<T, V> b = F::TWO ? unpacked<T, V>(two[u]) : a;
      const bool inside = WHOLE || (at >= low && at + V <= high);
      if (V > 4 && !inside) {  // apart from the others: what is masked element by element is taken apart first
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (static_cast<unsigned int>(at + i - low) < ours) mine = f.take(mine, a.at[i], b.at[i]);
        }
        continue;
      }
      if (!inside) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          if (at + i >= low && at + i < high) continue;
          a.at[i] = b.at[i] = f.neutral();
        }
      }
#pragma unroll
      for (int i = 0; i < V; ++i) mine = f.take(mine, a.at[i], b.at[i]);
    }
  }
  return mine;
}

// (results / columns, length, columns), fewer than 2^31 elements: groups of 2^bits lanes, up to a warp, take a result
// each, a lane SMALL_EACH elements at most. What runs once waits for its own instructions, and packs want more of them.
constexpr int SMALL_EACH = 8;

// ROWS: one column.
template <typename F, bool ROWS>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_small(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, int results, int length, Divisor columns, int bits) {
  using T = typename F::Input;
  const int at = blockIdx.x * blockDim.x + threadIdx.x, lanes = 1 << bits, lane = at & (lanes - 1);
  const int result = min(at >> bits, results - 1), stride = ROWS ? 1 : columns.value;
  const int before = ROWS ? result * length : result + quotient(result, columns) * (length - 1) * stride;
  const int first = before + lane * stride, count = (length - lane + lanes - 1) >> bits;
  const unsigned long long step = (stride << bits) * static_cast<unsigned int>(sizeof(T));
  const auto load = [&](const T* from, int j) {
    const void* const place = reinterpret_cast<const char*>(from) + step * j;
    return j < count ? *static_cast<const T*>(place) : f.neutral();
  };
  T one[SMALL_EACH], two[SMALL_EACH];
#pragma unroll
  for (int j = 0; j < SMALL_EACH; ++j) {
    one[j] = load(x + first, j);
    if constexpr (F::TWO) two[j] = load(second + first, j);
  }
  typename F::Acc mine = f.identity(), other = f.identity();  // two, so that one need not wait for the other
#pragma unroll
  for (int j = 0; j < SMALL_EACH; j += 2) {
    mine = f.take(mine, one[j], F::TWO ? two[j] : one[j]);
    other = f.take(other, one[j + 1], F::TWO ? two[j + 1] : one[j + 1]);
  }
  mine = merge_lanes(f, f.merge(mine, other), lanes);
  if (lane == 0 && at >> bits < results) out[result] = f.finish(mine);
}

// (results, length), of TINY_LENGTH elements at most, in `packs` of V: a thread takes a result, and asks no lanes.
constexpr int TINY_LENGTH = 16;

template <typename F, int V>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_tiny(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, int results, int packs) {
  using T = typename F::Input;
  const int at = blockIdx.x * blockDim.x + threadIdx.x, result = min(at, results - 1), first = result * packs * V;
  Pack<T, V> one[TINY_LENGTH / V], two[TINY_LENGTH / V];
#pragma unroll
  for (int j = 0; j < TINY_LENGTH / V; ++j) {
    if (j >= packs) continue;
    one[j] = load<T, V>(x + first + j * V);
    if constexpr (F::TWO) two[j] = load<T, V>(second + first + j * V);
  }
  typename F::Acc mine = f.identity();
#pragma unroll
  for (int j = 0; j < TINY_LENGTH / V; ++j) {
    if (j >= packs) continue;
    typename F::Acc some = f.identity();  // apart, so that packs need not wait for each other
#pragma unroll
    for (int i = 0; i < V; ++i) some = f.take(some, one[j].at[i], F::TWO ? two[j].at[i] : one[j].at[i]);
    mine = f.merge(mine, some);
  }
  out[result] = f.finish(mine);  // the last one several times, all alike, for that is less than to ask whose it is
}

// Blocks that a multiprocessor has room for (0: as it comes): 1024 threads, unless a double's power is a call.
template <typename F>
constexpr int ROWS_RESIDENT = sizeof(typename F::Input) < 8 ? 1024 / REDUCE_THREADS : 0;

// WHOLE: every row begins and ends with a pack.
template <typename F, int V, bool STREAM, bool WHOLE>
__global__ void __launch_bounds__(REDUCE_THREADS, ROWS_RESIDENT<F>) reduce_rows(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, long long rows, long long length, int shift, int lanes) {
  const int bits = 31 - __clz(lanes), lane = threadIdx.x & (lanes - 1);
  const long long row = static_cast<long long>(blockIdx.x) * (REDUCE_THREADS >> bits) + (threadIdx.x >> bits);
  typename F::Acc mine = f.identity();
  if (row < rows) {
    mine = take_range<F, V, ROWS_UNDER_WAY<F>, STREAM, WHOLE>(
        f, x, second, row * length, (row + 1) * length, shift, lane, lanes);
  }
  mine = lanes <= 32 ? merge_lanes(f, mine, lanes) : merge_warps(f, mine, lanes);
  if (lane == 0 && row < rows) out[row] = f.finish(mine);
}

// (rows, length) of rows that do not all begin and end with a pack: element by element, all that a lane takes under way
// together, and no masks. Up to ELEMENTS_LANES * ELEMENTS_EACH of them a row, and of a lane ELEMENTS_SURE at least: with a
// predicate for each of the others alone, nothing is taken before all are under way.
constexpr int ELEMENTS_LANES = 128, ELEMENTS_EACH = 9, ELEMENTS_SURE = 4, ELEMENTS_RESIDENT = 6;

template <typename F, bool STREAM>
__global__ void __launch_bounds__(REDUCE_THREADS, ELEMENTS_RESIDENT) reduce_elements(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, long long rows, int length) {
  using T = typename F::Input;
  const int lane = threadIdx.x & (ELEMENTS_LANES - 1);
  constexpr int ROWS = REDUCE_THREADS / ELEMENTS_LANES;
  const long long row = static_cast<long long>(blockIdx.x) * ROWS + threadIdx.x / ELEMENTS_LANES;
  const T* const from = x + min(row, rows - 1) * length + lane;
  const int count = length - lane;
  PackWord<T, 1> words[ELEMENTS_EACH];
#pragma unroll
  for (int i = 0; i < ELEMENTS_EACH; ++i) {
    words[i] = fetch_where<T, 1, STREAM>(from + i * ELEMENTS_LANES, i < ELEMENTS_SURE || i * ELEMENTS_LANES < count);
  }
  typename F::Acc mine = f.identity();
#pragma unroll
  for (int i = 0; i < ELEMENTS_EACH; ++i) {
    if (i >= ELEMENTS_SURE && i * ELEMENTS_LANES >= count) continue;
    const T element = unpacked<T, 1>(words[i]).at[0];
    mine = f.take(mine, element, element);
  }
  mine = merge_warps(f, mine, ELEMENTS_LANES);
  if (lane == 0 && row < rows) out[row] = f.finish(mine);
}

// grid (rows, splits), of two splits or more, each of `share` elements; mail (rows, splits - 1), zero between launches.
// The last split of each row waits for the others. Those were started before it, as blocks are in the order of their
// index; and whatever the order, the blocks that wait, one a row, leave the others room: ops/_cuda/reduction.py sees
// to it that the device holds more than `rows` of these at once, LONG_RESIDENT each multiprocessor.
// A launch that is cut off takes the context, and so the mail, along.
constexpr int LONG_RESIDENT = 4;

template <typename F, int V, bool STREAM, bool WHOLE>
__global__ void __launch_bounds__(REDUCE_THREADS, LONG_RESIDENT) reduce_long(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, long long length, int shift, long long share, unsigned long long* mail) {
  using Acc = typename F::Acc;
  const long long row = blockIdx.x;
  const int split = blockIdx.y, splits = gridDim.y;
  const long long begin = row * length + share * split, end = row * length + min(length, share * (split + 1));
  Acc mine = take_range<F, V, LONG_UNDER_WAY<F>, STREAM, WHOLE>(
      f, x, second, begin, end, shift, threadIdx.x, REDUCE_THREADS);
  mail += row * (splits - 1) * WORDS<Acc>;
  if (split < splits - 1) {
    mine = merge_warps(f, mine, REDUCE_THREADS);
    if (threadIdx.x == 0) send(mail + split * WORDS<Acc>, mine);
    return;
  }
  for (int other = threadIdx.x; other < splits - 1; other += REDUCE_THREADS) {
    unsigned long long* const from = mail + other * WORDS<Acc>;
    mine = f.merge(mine, await<Acc>(from));
    clear<Acc>(from);
  }
  mine = merge_warps(f, mine, REDUCE_THREADS);
  if (threadIdx.x == 0) out[row] = f.finish(mine);
}

// Blocks that take all of their packs at once and are done: what a thread loads is under way together, and memory is read
// in the order of its addresses. A block lives as long as one load takes, so few instructions come before it. As many are
// on a multiprocessor as one of an H200 has room for.
constexpr int MOST_THREADS = 2048;

// The first warp has the sum over the block, in its first thread.
template <int THREADS, typename F>
__device__ __forceinline__ typename F::Acc merge_at_end(const F& f, typename F::Acc mine, typename F::Acc* slots) {
  mine = merge_lanes(f, mine, 32);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
  __syncthreads();
  return threadIdx.x < 32 ? merge_lanes(f, slots[threadIdx.x % (THREADS / 32)], THREADS / 32) : mine;
}

// What was sent to `letters`, those of this lane of `lanes` of `count`, in a fixed order; leaves them empty.
template <typename F>
__device__ __forceinline__ typename F::Acc collect(
    const F& f, typename F::Acc mine, unsigned long long* mail, int count, int lane, int lanes) {
  using Acc = typename F::Acc;
  constexpr int LETTERS = 4;
  for (int at = lane; at < count; at += LETTERS * lanes) {
    unsigned long long* const letters = mail + at * WORDS<Acc>;
    Acc found[LETTERS];
    await_all(found, letters, lanes, count - at, 1);
#pragma unroll
    for (int i = 0; i < LETTERS; ++i) {
      if (at + i * lanes >= count) continue;
      mine = f.merge(mine, found[i]);
      clear<Acc>(letters + i * lanes * WORDS<Acc>);
    }
  }
  return mine;
}

// The blocks, this one the `block`-th, that collect what `splits` others sent for each of the rows: `lanes` threads a row,
// a warp or all of a block. put(row, sum) is called by one of them.
template <int THREADS, typename F, typename Put>
__device__ __forceinline__ void collect_rows(
    const F& f, typename F::Acc* slots, int block, int rows, int splits, int lanes, unsigned long long* mail,
    const Put& put) {
  const int lane = threadIdx.x & (lanes - 1), row = (block * THREADS + threadIdx.x) / lanes;
  typename F::Acc all = f.identity();
  if (row < rows) {
    all = collect(f, all, mail + static_cast<long long>(row) * splits * WORDS<typename F::Acc>, splits, lane, lanes);
  }
  all = lanes == 32 ? merge_lanes(f, all, 32) : merge_at_end<THREADS>(f, all, slots);
  if (lane == 0 && row < rows) put(row, all);
}

// One row of `packs` whole packs, of which a thread takes EACH, of each tensor. The last block collects what the others
// send to `mail` (blocks - 1, zero between launches).
template <typename F, int V, int THREADS, int EACH>
__global__ void __launch_bounds__(THREADS, MOST_THREADS / THREADS) reduce_row(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, int packs, unsigned long long* mail) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  constexpr int TAKEN = EACH * THREADS;
  __shared__ Acc slots[THREADS / 32];
  const int block = blockIdx.x, last = gridDim.x - 1;
  const unsigned int left = packs - block * TAKEN;
  const long long first = static_cast<long long>(block) * TAKEN * V;
  PackWord<T, V> one[EACH], two[EACH];
#pragma unroll
  for (int u = 0; u < EACH; ++u) {  // past the end the last one again: a condition would put off the load
    const unsigned int at = min(threadIdx.x + u * THREADS, left - 1) * V;
    one[u] = fetch<T, V, true>(x + first + at);
    if constexpr (F::TWO) two[u] = fetch<T, V, true>(second + first + at);
  }
  Acc mine = f.identity();
#pragma unroll
  for (int u = 0; u < EACH; ++u) {
    if (threadIdx.x + u * THREADS >= left) continue;
    const Pack<T, V> a = unpacked<T, V>(one[u]), b = F::TWO ? unpacked<T, V>(two[u]) : a;
#pragma unroll
    for (int i = 0; i < V; ++i) mine = f.take(mine, a.at[i], b.at[i]);
  }
  if (block == last) mine = collect(f, mine, mail, last, threadIdx.x, THREADS);
  mine = merge_at_end<THREADS>(f, mine, slots);
  if (threadIdx.x > 0) return;
  if (block < last) {
    send(mail + block * WORDS<Acc>, mine);
  } else {
    *out = f.finish(mine);
  }
}

// (rows, packs) of whole packs: a block takes a row, of which its threads hold EACH packs, of each tensor.
template <typename F, int V, bool STREAM, int THREADS, int EACH>
__global__ void __launch_bounds__(THREADS, MOST_THREADS / THREADS) reduce_held(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, int packs) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  __shared__ Acc slots[THREADS / 32];
  const long long first = static_cast<long long>(blockIdx.x) * packs * V;
  PackWord<T, V> one[EACH], two[EACH];
#pragma unroll
  for (int u = 0; u < EACH; ++u) {  // past the end the last one again: a condition would put off the load
    const int at = min(static_cast<int>(threadIdx.x) + u * THREADS, packs - 1) * V;
    one[u] = fetch<T, V, STREAM>(x + first + at);
    if constexpr (F::TWO) two[u] = fetch<T, V, STREAM>(second + first + at);
  }
  Acc mine = f.identity();
#pragma unroll
  for (int u = 0; u < EACH; ++u) {
    if (static_cast<int>(threadIdx.x) + u * THREADS >= packs) continue;
    const Pack<T, V> a = unpacked<T, V>(one[u]), b = F::TWO ? unpacked<T, V>(two[u]) : a;
#pragma unroll
    for (int i = 0; i < V; ++i) mine = f.take(mine, a.at[i], b.at[i]);
  }
  mine = merge_at_end<THREADS>(f, mine, slots);
  if (threadIdx.x == 0) out[blockIdx.x] = f.finish(mine);
}

// (rows, length) of one tensor, rows that begin anywhere: blocks take `share` packs of a row, whole lines of LINE_PACKS,
// up to EACH packs a thread. `shift` is how many elements x lies past the beginning of a line. grid (splits, rows +
// further): those of further rows of blocks that are needed collect, `lanes` threads a row, all of a block or a warp, so
// that nobody waits while there are packs to take. mail (rows, splits).
template <typename F, int V, int THREADS, int EACH>
__global__ void __launch_bounds__(THREADS, MOST_THREADS / THREADS) reduce_shares(
    const typename F::Input* __restrict__ x, const typename F::Input*, typename F::Output* __restrict__ out, F f,
    int rows, long long length, int shift, int share, int lanes, unsigned long long* mail) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  __shared__ Acc slots[THREADS / 32];
  const int row = blockIdx.y, split = blockIdx.x, splits = gridDim.x;
  if (row >= rows) {
    const int block = (row - rows) * splits + split;
    collect_rows<THREADS>(f, slots, block, rows, splits, lanes, mail, [&](int ours, Acc all) { out[ours] = f.finish(all); });
    return;
  }
  const long long start = row * length + shift;
  const int low = static_cast<int>(start) & (LINE_PACKS * V - 1), high = low + static_cast<int>(length);  // of its packs
  const int first = split * share + static_cast<int>(threadIdx.x), until = min((high + V - 1) / V, (split + 1) * share);
  const T* const from = x + (start - low - shift) + first * V;
  PackWord<T, V> words[EACH];
#pragma unroll
  for (int u = 0; u < EACH; ++u) {
    words[u] = fetch_where<T, V, true>(from + u * THREADS * V, first + u * THREADS < until);
  }
  Acc mine = f.identity();
#pragma unroll
  for (int u = 0; u < EACH; ++u) {
    const int pack = first + u * THREADS, at = pack * V;
    if (pack >= until) continue;
    const Pack<T, V> values = unpacked<T, V>(words[u]);
    if (at >= low && at + V <= high) {
#pragma unroll
      for (int i = 0; i < V; ++i) mine = f.take(mine, values.at[i], values.at[i]);
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (at + i >= low && at + i < high) mine = f.take(mine, values.at[i], values.at[i]);
      }
    }
  }
  mine = merge_at_end<THREADS>(f, mine, slots);
  if (threadIdx.x == 0) send(mail + (static_cast<long long>(row) * splits + split) * WORDS<Acc>, mine);
}

struct Layout {  // (a, r1, b, r2, c), shared by parts of `share` reduced indices and `across` column blocks
  long long a, r1, b, r2, c, share;
  unsigned int across, unused;
};

// The columns of one thread, and its steps along them. block (lanes, rows): lanes side by side along c with V columns
// each, every rows-th reduced index is a thread's; grid (a b column blocks, splits). A block lives too briefly for
// 64-bit divisions where none is needed.
template <int V>
struct Columns {
  long long column, result, index, end, place;
  long long start, stride;  // of index 0, and from one to the next, where r2 is 1
  bool ours;
  long long inner = 0, inner_step = 0, step, wrap = 0, r2;

  // Before the first index of part `split`.
  __device__ __forceinline__ Columns(const Layout& layout, int split) {
    const unsigned int outer = blockIdx.x / layout.across;
    const unsigned int a = layout.b == 1 ? outer : outer / static_cast<unsigned int>(layout.b);
    const unsigned int b = layout.b == 1 ? 0 : outer - a * static_cast<unsigned int>(layout.b);
    column = (static_cast<long long>(blockIdx.x - outer * layout.across) * blockDim.x + threadIdx.x) * V;
    ours = column < layout.c;
    result = outer * layout.c + column;
    r2 = layout.r2;
    const long long last = min(layout.r1 * r2, layout.share * (split + 1)), outward = layout.b * r2 * layout.c;
    index = layout.share * split + threadIdx.y;
    end = ours ? last : index;
    long long i1 = index;
    step = blockDim.y * outward;
    stride = outward;
    start = (a * layout.r1 * layout.b + b) * layout.c + column;
    if (r2 != 1) {
      i1 = index / r2;
      inner = index - i1 * r2;
      const unsigned int whole = r2 > blockDim.y ? 0 : blockDim.y / static_cast<unsigned int>(r2);
      inner_step = blockDim.y - whole * r2;
      step = whole * outward + inner_step * layout.c;
      wrap = outward - r2 * layout.c;
    }
    place = (a * layout.r1 + i1) * outward + (b * r2 + inner) * layout.c + column;
  }

  // Every place, loaded by `load` some steps before `use` takes what was loaded.
  template <typename Load, typename Use>
  __device__ __forceinline__ void each(Load&& load, Use&& use) {
    using Loaded = decltype(load(0));
    constexpr int TOGETHER = 4;
    const int rows = blockDim.y;
    for (; index + (TOGETHER - 1) * rows < end; index += TOGETHER * rows) {
      long long places[TOGETHER];
      Loaded loaded[TOGETHER];
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j) places[j] = next();
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j) loaded[j] = load(places[j]);
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j) use(places[j], loaded[j]);
    }
#pragma unroll 1
    for (; index < end; index += rows) {
      const long long here = next();
      Loaded loaded = load(here);
      use(here, loaded);
    }
  }

  __device__ __forceinline__ long long next() {
    const long long here = place;
    inner += inner_step;
    place += step;
    if (inner >= r2) {
      inner -= r2;
      place += wrap;
    }
    return here;
  }
};

// Rows that a thread has under way, and blocks that a multiprocessor has room for (0: as it comes). Two tensors, or eight
// half or two double elements a pack, leave a thread less room.
template <typename F>
constexpr bool COLUMNS_SLIM = !F::TWO && sizeof(typename F::Input) == 4;
template <typename F>
constexpr int COLUMNS_TOGETHER = COLUMNS_SLIM<F> ? 8 : 4;
template <typename F, int THREADS>
constexpr int COLUMNS_RESIDENT = COLUMNS_SLIM<F> ? 1024 / THREADS : 0;

// As Columns says. partials (splits, a b c), tickets (a b column blocks).
template <typename F, int V, bool STREAM, int THREADS>
__global__ void __launch_bounds__(THREADS, COLUMNS_RESIDENT<F, THREADS>) reduce_columns(
    const typename F::Input* __restrict__ x, const typename F::Input* __restrict__ second,
    typename F::Output* __restrict__ out, F f, Layout layout, unsigned int* tickets, typename F::Acc* partials) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  __shared__ __align__(16) unsigned char memory[V * THREADS * sizeof(Acc)];
  Acc* const slots = reinterpret_cast<Acc*>(memory);
  Columns<V> at(layout, blockIdx.y);
  const int splits = gridDim.y, rows = blockDim.y, lanes = blockDim.x, slot = threadIdx.y * lanes + threadIdx.x;
  Acc mine[V];
#pragma unroll
  for (int i = 0; i < V; ++i) mine[i] = f.identity();
  const auto take = [&](const Pack<T, V>& one, const Pack<T, V>& two) {
#pragma unroll
    for (int i = 0; i < V; ++i) mine[i] = f.take(mine[i], one.at[i], two.at[i]);
  };
  if (layout.r2 == 1) {
    constexpr int TOGETHER = COLUMNS_TOGETHER<F>;
    for (int left = static_cast<int>(at.end - at.index); left > 0; left -= TOGETHER * rows) {
      PackWord<T, V> one[TOGETHER], two[TOGETHER];
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j) {
        one[j] = fetch_where<T, V, STREAM>(x + at.place + j * at.step, j * rows < left);
        if constexpr (F::TWO) two[j] = fetch_where<T, V, STREAM>(second + at.place + j * at.step, j * rows < left);
      }
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j) {
        if (j * rows < left) take(unpacked<T, V>(one[j]), unpacked<T, V>(F::TWO ? two[j] : one[j]));
      }
      at.place += TOGETHER * at.step;
    }
  } else {
    at.each([&](long long place) { return fetch<T, V, STREAM>(x + place); }, [&](long long place, const PackWord<T, V>& one) {
      take(unpacked<T, V>(one), unpacked<T, V>(F::TWO ? fetch<T, V, STREAM>(second + place) : one));
    });
  }
  const long long results = layout.a * layout.b * layout.c;
#pragma unroll
  for (int i = 0; i < V; ++i) slots[i * THREADS + slot] = mine[i];
  __syncthreads();
  for (int left = rows, half; left > 1; left = half) {
    half = (left + 1) / 2;
    if (threadIdx.y + half < left) {
#pragma unroll 1
      for (int i = slot; i < V * THREADS; i += THREADS) slots[i] = f.merge(slots[i], slots[i + half * lanes]);
    }
    __syncthreads();
  }
  if (threadIdx.y == 0 && at.ours) {
#pragma unroll 1
    for (int i = 0; i < V; ++i) {
      const long long result = at.result + i;
      const Acc total = slots[i * THREADS + slot];
      if (splits == 1) {
        out[result] = f.finish(total);
      } else {
        partials[blockIdx.y * results + result] = total;
      }
    }
  }
  if (splits == 1) return;
  if (!arrive_last(&tickets[blockIdx.x], splits)) return;
  const long long first = at.column - static_cast<long long>(threadIdx.x) * V;
  for (long long column = first + slot; column < layout.c && column < first + lanes * V; column += lanes * rows) {
    const long long result = at.result - at.column + column;
    Acc total = f.identity();
    for (int split = 0; split < splits; ++split) {
      total = f.merge(total, read_partial(&partials[split * results + result]));
    }
    out[result] = f.finish(total);
  }
}

// (a, r1, b, 1, c) of one tensor: a block takes all rows of a line of columns at once, EACH a thread, and is gone. block
// (LINE_PACKS, rows) of whole warps.
template <typename F, int V, bool STREAM, int THREADS, int EACH>
__global__ void __launch_bounds__(THREADS, COLUMNS_RESIDENT<F, THREADS>) reduce_tall(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, Layout layout) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  constexpr int COLUMNS = LINE_PACKS * V;
  __shared__ __align__(16) unsigned char memory[THREADS / 32 * COLUMNS * sizeof(Acc)];
  Acc* const slots = reinterpret_cast<Acc*>(memory);
  const Columns<V> at(layout, 0);
  const int rows = blockDim.y, slot = threadIdx.y * LINE_PACKS + threadIdx.x;
  const int last = static_cast<int>(at.end - at.index - 1) / rows;
  Acc mine[V];
#pragma unroll
  for (int i = 0; i < V; ++i) mine[i] = f.identity();
  if (at.index < at.end) {
    PackWord<T, V> words[EACH];
#pragma unroll
    for (int u = 0; u < EACH; ++u) {  // past the end the last one again: a condition would put off the load
      words[u] = fetch<T, V, STREAM>(x + at.place + min(u, last) * at.step);
    }
#pragma unroll
    for (int u = 0; u < EACH; ++u) {
      if (u > last) continue;
      const Pack<T, V> pack = unpacked<T, V>(words[u]);
#pragma unroll
      for (int i = 0; i < V; ++i) mine[i] = f.take(mine[i], pack.at[i], pack.at[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    for (int step = LINE_PACKS; step < 32; step *= 2) mine[i] = f.merge(mine[i], shuffle_xor(mine[i], step));
    if (slot % 32 < LINE_PACKS) slots[slot / 32 * COLUMNS + threadIdx.x * V + i] = mine[i];
  }
  __syncthreads();
  const long long before = at.column - static_cast<long long>(threadIdx.x) * V;
  if (slot >= COLUMNS || before + slot >= layout.c) return;
  Acc all = slots[slot];
  for (int warp = 1; warp < rows * LINE_PACKS / 32; ++warp) all = f.merge(all, slots[warp * COLUMNS + slot]);
  out[at.result - at.column + before + slot] = f.finish(all);
}

// (a, r1, b, r2, c), r2 c elements of each of a, r1 and b a slab. A block adds the r1 slabs of its (a, b), each thread
// the packs that lie in one place in all of them, and then the rows of c elements of what comes out: c is no more
// than its threads, slabs are no more than SLAB. All slabs of a block begin equally far past an aligned address; that of
// the first slab is where a line begins. `shift` is how many elements x lies past the beginning of one.
template <typename F>
constexpr int SLAB = 16384 / sizeof(typename F::Acc);
constexpr int SLAB_THREADS = 288;
template <typename F>
constexpr int SLAB_RESIDENT = sizeof(typename F::Input) == 8 ? 2 : (sizeof(typename F::Input) == 4 ? 4 : 3);

template <typename F, int V, bool STREAM>
__global__ void __launch_bounds__(SLAB_THREADS, SLAB_RESIDENT<F>) reduce_slabs(
    const typename F::Input* __restrict__ x, typename F::Output* __restrict__ out, F f, Layout layout, int shift) {
  using T = typename F::Input;
  using Acc = typename F::Acc;
  constexpr int TOGETHER = 6;
  __shared__ __align__(16) unsigned char memory[SLAB<F> * sizeof(Acc)];
  Acc* const slots = reinterpret_cast<Acc*>(memory);
  const unsigned int b_count = layout.b, a = blockIdx.x / b_count, b = blockIdx.x - a * b_count;
  const int slabs = layout.r1, rows = layout.r2, columns = layout.c, slab = rows * columns;
  constexpr int LINE = LINE_PACKS * V;
  const long long begin = (a * layout.r1 * b_count + b) * slab, first = (begin + shift) / LINE * LINE - shift;
  const long long stride = static_cast<long long>(b_count) * slab;
  const int low = static_cast<int>(begin - first), high = low + slab;
  for (int at = threadIdx.x * V; at < high; at += blockDim.x * V) {
    const T* from = x + first + at;
    Acc mine[V];
#pragma unroll
    for (int i = 0; i < V; ++i) mine[i] = f.identity();
#pragma unroll 1
    for (int done = 0; done < slabs; done += TOGETHER) {
      PackWord<T, V> words[TOGETHER];
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j, from += stride) words[j] = fetch_where<T, V, STREAM>(from, done + j < slabs);
#pragma unroll
      for (int j = 0; j < TOGETHER; ++j) {
        if (done + j >= slabs) continue;
        const Pack<T, V> pack = unpacked<T, V>(words[j]);
#pragma unroll
        for (int i = 0; i < V; ++i) mine[i] = f.take(mine[i], pack.at[i], pack.at[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (at + i >= low && at + i < high) slots[at + i - low] = mine[i];
    }
  }
  __syncthreads();
  const int groups = min(rows, static_cast<int>(blockDim.x) / columns), group = threadIdx.x / columns;
  const bool ours = group < groups;
  if (ours) {
    Acc mine = slots[threadIdx.x];
    const int step = groups * columns;
    for (int slot = threadIdx.x + step; slot < slab; slot += step) mine = f.merge(mine, slots[slot]);
    slots[threadIdx.x] = mine;  // which nobody else has read
  }
  for (int left = groups, half; left > 1; left = half) {
    __syncthreads();
    half = (left + 1) / 2;
    if (group + half < left) slots[threadIdx.x] = f.merge(slots[threadIdx.x], slots[threadIdx.x + half * columns]);
  }
  if (group == 0) out[static_cast<long long>(blockIdx.x) * columns + threadIdx.x] = f.finish(slots[threadIdx.x]);
}
