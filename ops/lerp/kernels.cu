// lerp and its gradient. out = x + w (y - x); dx = (1 - w) dout, dy = w dout, summed along axes of repeated inputs.
#include "flat.cuh"
#include "reduce_columns.cuh"
#include "reduce_elements.cuh"
#include "strides.cuh"

constexpr int THREADS = 256;
// IN_FLIGHT_EACH, vectors in flight per summing thread, and ROWS_EACH, rows of a warp, are defined by cuda.py.

// x + weight (y - x): y at weight 1 and x where x = y, exactly, and finite if the result is. The difference of numbers
// of one sign cannot overflow; numbers of different signs are weighted separately, without cancellation.
template <typename A>
__device__ __forceinline__ A blend(A x, A y, A weight) {
  const A rest = A(1) - weight, step = y - x;
  const A near = weight < A(0.5) ? x + weight * step : y - rest * step;
  return (x < A(0)) == (y < A(0)) ? near : rest * x + weight * y;
}

constexpr int EVICT_LAST_OF = 16;  // one block of as many stores with evict_last, for LARGE results of large blocks

// lerp_flat: a vector of V elements per thread, and an element per thread after them, for operands of one shape.
// Layout   x, y, out flat, weight a TENSOR or `number`      Grid, Block  as in flat.cuh      Writes  out[size]
template <typename T, int V, bool TENSOR, Extent EXTENT, int THREADS>
__global__ void __launch_bounds__(THREADS) lerp_flat(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ weight, T* __restrict__ out,
    long long vectors, long long threads, unsigned int kept, Wide<T> number) {
  const bool evicts_last = THREADS > SINGLE_THREADS ? blockIdx.x % EVICT_LAST_OF == 0 : blockIdx.x < kept;
  const VectorAccess<V, EXTENT, THREADS> access(vectors, threads, evicts_last);
  const Vector<T, V> from = access.load(x), to = access.load(y);
  Vector<T, V> parts, result;
  if constexpr (TENSOR) parts = access.load(weight);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const Wide<T> part = TENSOR ? widen(parts.at[i]) : number;
    result.at[i] = narrow<T>(blend(widen(from.at[i]), widen(to.at[i]), part));
  }
  access.store(out, result);
}

template <typename T, bool TENSOR>
struct Given {  // a weight as an argument: a tensor, or a number
  using type = const T*;
};
template <typename T>
struct Given<T, false> {
  using type = Wide<T>;
};

// Stores a vector if `there`; by a predicate if launches are SMALL, as parameters that are read after a branch arrive late.
template <typename T, int V, bool SMALL>
__device__ __forceinline__ void store_if(T* to, const Vector<T, V>& vector, bool there) {
  if constexpr (SMALL) {
    store_where<T, V, true>(to, vector, there);
  } else if (there) {
    store<T, V>(to, vector);
  }
}

// V elements of x and y, weighted by the `parts` of a TENSOR or by a number.
template <typename T, int V, bool TENSOR>
__device__ __forceinline__ Vector<T, V> blended(
    const Vector<T, V>& from, const Vector<T, V>& to, const Vector<T, V>& parts, typename Given<T, TENSOR>::type weight) {
  Vector<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    Wide<T> part;
    if constexpr (TENSOR) {
      part = widen(parts.at[v]);
    } else {
      part = weight;
    }
    result.at[v] = narrow<T>(blend(widen(from.at[v]), widen(to.at[v]), part));
  }
  return result;
}

// lerp_broadcast: a thread computes E vectors of V elements, a block apart, for operands that broadcast in any pattern.
// Layout   out flat; x, y and a weight TENSOR by Strides over its axes, at most A
// Grid     size / V / E / flat_threads<V * E>()      Block  flat_threads<V * E>()
// Needs    rows of the innermost axis are whole, aligned vectors in out and all operands that are not repeated along it;
//          fewer than 2^31 elements
// Writes   out[size]
// Why      no vector lies in two rows: one index computation serves V elements, without branches, so that all loads are in
//          flight. The arguments of two axes are within 64 bytes: other lines arrive later
template <typename T, int V, int E, int A, bool TENSOR>
__global__ void __launch_bounds__(flat_threads<V * E>()) lerp_broadcast(
    const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, typename Given<T, TENSOR>::type weight,
    unsigned int size, Strides<A, 2 + TENSOR, unsigned int> strides, Axes<A> axes) {
  constexpr unsigned int STEP = flat_threads<V * E>() * V;
  const unsigned int start = blockIdx.x * (STEP * E) + threadIdx.x * V;
  Along<T, V> of_x[E], of_y[E], of_weight[E];
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const auto offsets = strided_offsets(min(start + i * STEP, size - V), axes, strides);
    of_x[i].fetch_from(x + offsets.at[0], strides.at[0][0]);
    of_y[i].fetch_from(y + offsets.at[1], strides.at[0][1]);
    if constexpr (TENSOR) of_weight[i].fetch_from(weight + offsets.at[2], strides.at[0][2]);
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    Vector<T, V> parts;
    if constexpr (TENSOR) parts = of_weight[i].get(strides.at[0][2]);
    const auto result = blended<T, V, TENSOR>(of_x[i].get(strides.at[0][0]), of_y[i].get(strides.at[0][1]), parts, weight);
    store_if<T, V, V * E == 1>(out + start + i * STEP, result, start + i * STEP < size);
  }
}

// lerp_split: a thread computes a vector of V elements, which may lie in two rows or more.
// Layout   as in lerp_broadcast, or dense like out: a bit of `dense` for each of x, y and weight
// Grid     size / V / FLAT_THREADS      Block  FLAT_THREADS
// Needs    out and dense operands aligned; fewer than 2^31 elements      Writes  out[size]
// Why      a vector spans two rows at most unless rows are shorter: two index computations serve V elements
template <typename T, int V, bool TENSOR>
__global__ void __launch_bounds__(FLAT_THREADS) lerp_split(
    const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, typename Given<T, TENSOR>::type weight,
    unsigned int size, Strides<AXES, 2 + TENSOR, unsigned int> strides, Axes<> axes, int dense) {
  const unsigned int at = (blockIdx.x * FLAT_THREADS + threadIdx.x) * V;
  if (at >= size) return;
  const unsigned int count = min(size - at, static_cast<unsigned int>(V));
  Vector<T, V> from, to, parts;
  if (count < V || axes.length[0].value < V) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const auto offsets = strided_offsets(at + min(i, count - 1), axes, strides);
      from.at[i] = x[offsets.at[0]];
      to.at[i] = y[offsets.at[1]];
      if constexpr (TENSOR) parts.at[i] = weight[offsets.at[2]];
    }
  } else {
    const RowSplit<V, 2 + TENSOR> split(at, axes, strides);
    from = split.load(x, 0, dense & 1, strides);
    to = split.load(y, 1, dense & 2, strides);
    if constexpr (TENSOR) parts = split.load(weight, 2, dense & 4, strides);
  }
  store_some<T, V>(out + at, blended<T, V, TENSOR>(from, to, parts, weight), count);
}

// grad_flat: a vector of V elements per thread, and an element per thread after them, without sums.
// Layout   dout, dx, dy flat, weight a TENSOR or `number`; rest: 1 - number      Grid, Block  as in flat.cuh
// Writes   dx, dy, each unless null. SUBTRACT: dx = dout - dy, the design document's formula
template <typename T, int V, Extent EXTENT, bool TENSOR, bool SUBTRACT>
__global__ void __launch_bounds__(flat_threads<V>()) grad_flat(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy, long long vectors,
    long long threads, Wide<T> number, Wide<T> rest) {
  using A = Wide<T>;
  const VectorAccess<V, EXTENT> access(vectors, threads);
  const Vector<T, V> given = access.load(dout);
  Vector<T, V> parts, first, second;
  if constexpr (TENSOR) parts = access.load(weight);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const A value = widen(given.at[i]);
    const A part = TENSOR ? widen(parts.at[i]) : number;
    const A left = TENSOR ? A(1) - part : rest;
    first.at[i] = narrow<T>(SUBTRACT ? value - part * value : left * value);
    second.at[i] = narrow<T>(part * value);
  }
  access.store(dx, first, dx != nullptr);
  access.store(dy, second, dy != nullptr);
}

// The gradients of x and y by V elements of dout and their weights.
template <typename T, int V>
struct Gradients {
  Vector<T, V> first, second;

  __device__ __forceinline__ Gradients(const Vector<T, V>& given, const Vector<T, V>& parts) {
    using W = Wide<T>;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const W value = widen(given.at[v]), part = widen(parts.at[v]);
      first.at[v] = narrow<T>((W(1) - part) * value);
      second.at[v] = narrow<T>(part * value);
    }
  }
};

// grad_broadcast: a thread computes E vectors of V elements, a block apart, without sums, for a weight that broadcasts.
// Layout   dout, dx, dy flat; weight by Strides over their axes, at most A
// Grid, Block, Needs  as in lerp_broadcast      Writes  dx[size], dy[size], each unless null      Why  as there
template <typename T, int V, int E, int A>
__global__ void __launch_bounds__(flat_threads<V * E>()) grad_broadcast(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy,
    unsigned int size, Strides<A, 1, unsigned int> strides, Axes<A> axes) {
  constexpr unsigned int STEP = flat_threads<V * E>() * V;
  const unsigned int start = blockIdx.x * (STEP * E) + threadIdx.x * V;
  VectorWord<T, V> given[E];
  Along<T, V> of_weight[E];
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const unsigned int at = min(start + i * STEP, size - V);
    given[i] = fetch<T, V>(dout + at);
    of_weight[i].fetch_from(weight + strided_offsets(at, axes, strides).at[0], strides.at[0][0]);
  }
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const unsigned int at = start + i * STEP;
    if (V * E > 1 && at >= size) break;
    const Gradients<T, V> found(as_vector<T, V>(given[i]), of_weight[i].get(strides.at[0][0]));
    store_if<T, V, V * E == 1>(dx + at, found.first, at < size && dx != nullptr);
    store_if<T, V, V * E == 1>(dy + at, found.second, at < size && dy != nullptr);
  }
}

// grad_split: a thread computes a vector of V elements, which may lie in two rows or more, without sums.
// Layout   as in grad_broadcast      Grid, Block, Why  as in lerp_split
// Needs    dout, dx and dy aligned; fewer than 2^31 elements      Writes  dx[size], dy[size], each unless null
template <typename T, int V>
__global__ void __launch_bounds__(FLAT_THREADS) grad_split(
    const T* __restrict__ dout, const T* __restrict__ weight, T* __restrict__ dx, T* __restrict__ dy,
    unsigned int size, Strides<AXES, 1, unsigned int> strides, Axes<> axes) {
  const unsigned int at = (blockIdx.x * FLAT_THREADS + threadIdx.x) * V;
  if (at >= size) return;
  const unsigned int count = min(size - at, static_cast<unsigned int>(V));
  Vector<T, V> given, parts;
  if (count < V || axes.length[0].value < V) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const unsigned int index = at + min(i, count - 1);
      given.at[i] = dout[index];
      parts.at[i] = weight[strided_offsets(index, axes, strides).at[0]];
    }
  } else {
    given = load<T, V>(dout + at);
    parts = RowSplit<V, 1>(at, axes, strides).load(weight, 0, false, strides);
  }
  const Gradients<T, V> found(given, parts);
  if (dx != nullptr) store_some<T, V>(dx + at, found.first, count);
  if (dy != nullptr) store_some<T, V>(dy + at, found.second, count);
}

// grad_rows: `splits` blocks reduce one row and write the other gradient.
// Layout   dout[rows][length], weight a number      Grid  rows · splits + collecting blocks      Block  REDUCE_THREADS
// Needs    length a multiple of V, `share` vectors per split
// Writes   sum[row] = factor sum dout[row], other = other_factor dout unless null, through flagged partials
//          (rows, splits), which are zero between launches
// Waits    collecting blocks, `lanes` threads per row, wait for all splits; they start last
// Why      memory is read in order, once for both gradients
template <typename T, int V>
__global__ void __launch_bounds__(REDUCE_THREADS, GRID_RESIDENT) grad_rows(
    const T* __restrict__ dout, T* __restrict__ sum, T* __restrict__ other, Wide<T> factor, Wide<T> other_factor,
    int rows, long long length, int splits, long long share, int lanes, unsigned long long* flagged) {
  using A = Wide<T>;
  __shared__ A slots[REDUCE_THREADS / 32];
  const int row = blockIdx.x / static_cast<unsigned int>(splits), split = blockIdx.x - row * splits;
  const auto put = [&](int ours, A all) { sum[ours] = narrow<T>(factor * all); };
  if (row >= rows) {
    collect_rows<REDUCE_THREADS>(Sum<T>{}, slots, blockIdx.x - rows * splits, rows, splits, lanes, flagged, put);
    return;
  }
  const long long begin = row * length + share * split * V, left = min(share, length / V - share * split);
  A mine = 0;
  for (int start = threadIdx.x; start < left; start += IN_FLIGHT_EACH * REDUCE_THREADS) {
    VectorWord<T, V> loaded[IN_FLIGHT_EACH];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT_EACH; ++j) {
      const long long vector = start + j * REDUCE_THREADS;
      loaded[j] = fetch_evict_last<T, V>(dout + begin + vector * V, vector < left);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT_EACH; ++j) {
      const long long vector = start + j * REDUCE_THREADS;
      if (vector >= left) break;
      const Vector<T, V> given = as_vector<T, V>(loaded[j]);
      Vector<T, V> result;
      A few = 0;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A value = widen(given.at[i]);
        few += value;
        result.at[i] = narrow<T>(other_factor * value);
      }
      mine += few;
      if (other != nullptr) store_evict_last<T, V>(other + begin + vector * V, result);
    }
  }
  mine = merge_at_end<REDUCE_THREADS>(Sum<T>{}, mine, slots);
  if (threadIdx.x > 0) return;
  if (splits > 1) {
    publish(flagged + (static_cast<long long>(row) * splits + split) * WORDS<A>, mine);
  } else {
    put(row, mine);
  }
}

// The sum of dout, times a factor, and beside it dout times another one: the functor of reductions.
template <typename T>
struct SummedGrad : Sum<T> {
  using Acc = Wide<T>;
  Acc factor, other_factor;
  T* other;  // or null
  long long size;  // of it

  __device__ __forceinline__ T finish(Acc sum) const { return narrow<T>(factor * sum); }
  template <bool WHOLE, int V>
  __device__ __forceinline__ void beside(long long index, const Vector<T, V>& given) const {
    if (other == nullptr) return;
    Vector<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = narrow<T>(other_factor * widen(given.at[i]));
    if constexpr (V == 1) {
      other[index] = result.at[0];
    } else if (WHOLE || index + V <= size) {
      store_evict_last<T, V>(other + index, result);
    } else {
      store_some<T, V>(other + index, result, size - index);
    }
  }
};

template <typename T>
constexpr bool WRITES_BESIDE<SummedGrad<T>> = true;

// grad_crossed: both gradients are summed, over the two axes of dout.
// Layout   dout[batch] of two axes and C columns; to_step, to_row: elements between steps and rows
// Grid     column blocks × batch      Block  THREADS      Needs  weight a number; at most ROWS_EACH rows per warp
// Writes   row_sums[batch][rows][C], summed over the steps; step_sums[batch][steps][C], summed over the rows
// Why      one read of dout: a warp accumulates ROWS_EACH rows in registers, and warps combine the sums of a step
template <typename T, int V>
__global__ void __launch_bounds__(THREADS) grad_crossed(
    const T* __restrict__ dout, T* __restrict__ row_sums, T* __restrict__ step_sums, Wide<T> row_factor,
    Wide<T> step_factor, int steps, int rows, int columns, long long to_step, long long to_row) {
  using A = Wide<T>;
  constexpr int WARPS = THREADS / 32, TOGETHER = V == 8 ? 4 : 8;
  __shared__ A slots[TOGETHER][WARPS][V][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = (blockIdx.x * 32 + lane) * V;
  const int end = column < columns ? rows : 0;
  const long long batch = blockIdx.y;
  dout += batch * steps * rows * columns + column;
  row_sums += batch * rows * columns + column;
  step_sums += batch * steps * columns + column;
  A kept[ROWS_EACH][V] = {};
  const auto put = [](T* to, const A(&sums)[V], A factor) {
    Vector<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) result.at[i] = narrow<T>(factor * sums[i]);
    store<T, V>(to, result);
  };
  for (int first = 0; first < steps; first += TOGETHER) {
    const int count = min(TOGETHER, steps - first);
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      const T* const from = dout + (first + step) * to_step;
      VectorWord<T, V> loaded[ROWS_EACH] = {};
#pragma unroll
      for (int j = 0; j < ROWS_EACH; ++j) {
        const int row = j * WARPS + warp;
        if (row < end) loaded[j] = fetch<T, V>(from + row * to_row);
      }
      A sums[V] = {};
#pragma unroll
      for (int j = 0; j < ROWS_EACH; ++j) {
        const Vector<T, V> values = as_vector<T, V>(loaded[j]);
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
      put(step_sums + static_cast<long long>(first + warp) * columns, sums, step_factor);
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < ROWS_EACH; ++j) {
    const int row = j * WARPS + warp;
    if (row < end) put(row_sums + static_cast<long long>(row) * columns, kept[j], row_factor);
  }
}
