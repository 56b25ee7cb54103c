// lerp and its gradient. out = x + w (y - x); dx = (1 - w) dout, dy = w dout, summed along axes of repeated inputs.
#include "broadcast.cuh"
#include "flat.cuh"
#include "reduce_columns.cuh"
#include "reduce_elements.cuh"
#include "reduce_rows.cuh"

constexpr int THREADS = 256;
// ROWS_EACH, rows of a warp, is defined by cuda.py.

constexpr int EVICT_LAST_OF = 16;  // one block of as many stores with evict_last, for LARGE results of large blocks

// lerp_flat: a vector of V elements per thread, and an element per thread after them, for operands of one shape.
// Layout   operands and results of F flat      Grid, Block  as in flat.cuh      Writes  the results of F
template <typename F, int V, Extent EXTENT, int THREADS = flat_threads<V>()>
__global__ void __launch_bounds__(THREADS) lerp_flat(
    const typename F::Element* __restrict__ first, typename F::Second second, typename F::Element* __restrict__ third,
    typename F::Fourth fourth, long long vectors, long long threads, typename F::Last last) {
  using T = typename F::Element;
  const F functor{first, second, third, fourth, last};
  const bool evicts_last = THREADS > SINGLE_THREADS ? blockIdx.x % EVICT_LAST_OF == 0 : functor.evicts_last();
  const VectorAccess<V, EXTENT, THREADS> access(vectors, threads, evicts_last);
  Vector<T, V> operands[F::READ];
#pragma unroll
  for (int n = 0; n < F::READ; ++n) operands[n] = access.load(functor.operand(n));
  functor.compute(operands, [&](T* to, const Vector<T, V>& result, bool wanted) { access.store(to, result, wanted); });
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
