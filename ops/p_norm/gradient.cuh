// Gradient of p_norm for finite porder.
#pragma once
#include "columns.cuh"
#include "norm.cuh"

// porder 0, 1, 2, 3, 1.5, 2.5, >1, <1
enum GradMode { FLAT, SIGN, LINEAR, QUADRATIC, ROOT, ROOT_CUBED, GENERAL, BELOW_ONE };

// dy and 1 / y, with y scaled to a range in which neither it nor its reciprocal is subnormal.
template <typename A>
struct Scale {
  A before, inverse, dy;
};

template <typename A, int GRAD_MODE>
__device__ __forceinline__ Scale<A> scale_of(A y, A dy) {
  if constexpr (GRAD_MODE == FLAT || GRAD_MODE == SIGN) return {A(1), A(1), dy};
  const A large = sizeof(A) == 4 ? A(1.8446744073709552e19) : A(1.157920892373162e77);  // 2^64, 2^256
  const A limit = sizeof(A) == 4 ? A(1e30) : A(1e300);
  const A before = y < A(1) / limit ? large : (y > limit ? A(1) / large : A(1));
  const A inverse = reciprocal(y * before);
  const bool zero = y == A(0) && GRAD_MODE != BELOW_ONE;
  return {zero ? A(0) : before, zero ? A(0) : inverse, zero ? A(0) : dy};
}

template <typename A, int GRAD_MODE>
__device__ __forceinline__ A gradient(A x, const Scale<A>& by, A q) {
  if constexpr (GRAD_MODE == FLAT) return A(0);
  const A sign = x != x ? x : (x > A(0) ? A(1) : (x < A(0) ? A(-1) : A(0)));
  if constexpr (GRAD_MODE == SIGN) return sign * by.dy;
  const A ratio = x * by.before * by.inverse, size = magnitude(ratio);
  if constexpr (GRAD_MODE == LINEAR) return ratio * by.dy;
  if constexpr (GRAD_MODE == QUADRATIC) return ratio * size * by.dy;
  if constexpr (GRAD_MODE == ROOT) return sign * root(size) * by.dy;
  if constexpr (GRAD_MODE == ROOT_CUBED) return ratio * root(size) * by.dy;
  const A value = sign * power(size, q) * by.dy;
  if constexpr (GRAD_MODE != BELOW_ONE) return value;
  // The power of a ratio that underflows is infinite, and 0 times that is NaN. With an infinite norm the formula says NaN.
  const bool lost = size == A(0) && by.dy == A(0) && by.inverse > A(0);
  return x == A(0) || lost ? A(0) : value;
}

// GRAD_THREADS and ROW_THREADS, threads per block, are defined by ops/p_norm/cuda.py.

// Minimum resident blocks per multiprocessor for __launch_bounds__ (0: compiler's choice); the power of a double is a
// call, which needs registers.
template <typename T, int GRAD_MODE>
constexpr int GRAD_RESIDENT = sizeof(T) == 8 && (GRAD_MODE == GENERAL || GRAD_MODE == BELOW_ONE) ? 8 : 0;

// grad_rows: threads compute P flat vectors each, whatever rows they lie in.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  vectors / (ROW_THREADS · P)      Block  ROW_THREADS
// Needs    fewer than 2^31 elements; shift: elements from an aligned address to x and dx       Writes  dx
// Why      all accesses are vectors whatever the length of rows; a vector may span two rows or more
template <typename T, int V, int GRAD_MODE, int P>
__global__ void __launch_bounds__(ROW_THREADS, GRAD_RESIDENT<T, GRAD_MODE>) grad_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q, int size,
    int shift, Divisor length) {
  using A = Wide<T>;
  constexpr int STEP = ROW_THREADS * V;
  const int first = (blockIdx.x * ROW_THREADS * P + threadIdx.x) * V - shift;
  VectorWord<T, V> words[P];
  unsigned int rows[P];
  T norms[P], grads[P];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int at = first + p * STEP;
    words[p] = fetch_evict_last<T, V>(x + at, at >= 0 && at + V <= size);
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int at = first + p * STEP;
    if (at < 0 || at + V > size) continue;
    rows[p] = quotient(at, length);
    norms[p] = y[rows[p]];
    grads[p] = dy[rows[p]];
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int at = first + p * STEP;
    if (at >= size) continue;
    if (at < 0 || at + V > size) {
      for (int i = max(at, 0); i < min(at + V, size); ++i) {
        const unsigned int row = quotient(i, length);
        const Scale<A> by = scale_of<A, GRAD_MODE>(widen(y[row]), widen(dy[row]));
        dx[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(x[i]), by, q));
      }
      continue;
    }
    unsigned int row = rows[p];
    unsigned int left = (row + 1) * length.value - at;  // elements until the next row
    Scale<A> by = scale_of<A, GRAD_MODE>(widen(norms[p]), widen(grads[p]));
    Vector<T, V> vector = as_vector<T, V>(words[p]);
    if (left >= V) {
#pragma unroll
      for (int i = 0; i < V; ++i) vector.at[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(vector.at[i]), by, q));
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (left == 0) {
          row += 1;
          left = length.value;
          by = scale_of<A, GRAD_MODE>(widen(y[row]), widen(dy[row]));
        }
        left -= 1;
        vector.at[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(vector.at[i]), by, q));
      }
    }
    store_evict_last<T, V>(dx + at, vector);
  }
}

// grad_rows_aligned: grad_rows for rows of whole vectors.
// Layout   x, dx[rows][length] in vectors, `size` in all      Grid  size / (ROW_THREADS · P)      Block  ROW_THREADS
// Needs    fewer than 2^31 elements, aligned rows              Writes  dx
// Why      every vector has one norm
template <typename T, int V, int GRAD_MODE, int P>
__global__ void __launch_bounds__(ROW_THREADS, GRAD_RESIDENT<T, GRAD_MODE>) grad_rows_aligned(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q,
    unsigned int size, Divisor length) {
  using A = Wide<T>;
  const unsigned int first = blockIdx.x * ROW_THREADS * P + threadIdx.x;
  VectorWord<T, V> words[P];
  T norms[P], grads[P];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const unsigned int at = first + p * ROW_THREADS;
    words[p] = fetch_evict_last<T, V>(x + at * V, at < size);
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const unsigned int at = first + p * ROW_THREADS, row = quotient(at, length);
    if (at >= size) continue;
    norms[p] = y[row];
    grads[p] = dy[row];
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const unsigned int at = first + p * ROW_THREADS;
    if (at >= size) continue;
    const Scale<A> by = scale_of<A, GRAD_MODE>(widen(norms[p]), widen(grads[p]));
    Vector<T, V> vector = as_vector<T, V>(words[p]);
#pragma unroll
    for (int i = 0; i < V; ++i) vector.at[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(vector.at[i]), by, q));
    store_evict_last<T, V>(dx + at * V, vector);
  }
}

template <int GRAD_MODE>
constexpr int ROWS_16BIT_RESIDENT = GRAD_MODE == BELOW_ONE ? 12 : 0;  // 12: at most 40 registers, without spills

// grad_rows_16bit: grad_rows for 16-bit types.
// Layout   as grad_rows                          Grid, Block, Needs, Writes  as grad_rows
// Why      a vector of rows that are no shorter spans at most two: elements are computed and rounded in pairs
template <typename T, int V, int GRAD_MODE, int P>
__global__ void __launch_bounds__(ROW_THREADS, ROWS_16BIT_RESIDENT<GRAD_MODE>) grad_rows_16bit(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q, int size,
    int shift, Divisor length) {
  using A = Wide<T>;
  constexpr int STEP = ROW_THREADS * V;
  const int first = (blockIdx.x * ROW_THREADS * P + threadIdx.x) * V - shift;
  const auto whole = [&](int at) { return at >= 0 && at + V <= size; };
  const auto together = [&](int at) { return whole(at) && length.value >= V; };  // in two rows at most
  VectorWord<T, V> words[P];
  T norms[P], grads[P];
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int at = first + p * STEP;
    words[p] = fetch_evict_last<T, V>(x + at, together(at));
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int at = first + p * STEP;
    if (!together(at)) continue;
    const unsigned int row = quotient(at, length);
    norms[p] = y[row];
    grads[p] = dy[row];
  }
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int at = first + p * STEP;
    if (!together(at)) continue;
    const unsigned int next = quotient(at, length) + 1;
    const int left = next * length.value - at;  // elements until the next row
    const Scale<A> by = scale_of<A, GRAD_MODE>(widen(norms[p]), widen(grads[p]));
    Scale<A> further = by;
    if (left < V) further = scale_of<A, GRAD_MODE>(widen(y[next]), widen(dy[next]));
    Vector<T, V> vector = as_vector<T, V>(words[p]);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const bool ours = i < left;
      const Scale<A> mine = {
          ours ? by.before : further.before, ours ? by.inverse : further.inverse, ours ? by.dy : further.dy};
      vector.at[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(vector.at[i]), mine, q));
    }
    store_evict_last<T, V>(dx + at, vector);
  }
  // The rest: vectors in more rows, and elements at the ends.
  const auto graded = [&](T element, int i) {
    const unsigned int row = quotient(i, length);
    return narrow<T>(gradient<A, GRAD_MODE>(widen(element), scale_of<A, GRAD_MODE>(widen(y[row]), widen(dy[row])), q));
  };
#pragma unroll 1
  for (int at = first; at < first + P * STEP; at += STEP) {
    if (together(at)) continue;
    if (whole(at)) {
      Vector<T, V> vector = load<T, V>(x + at);
#pragma unroll
      for (int i = 0; i < V; ++i) vector.at[i] = graded(vector.at[i], at + i);
      store_evict_last<T, V>(dx + at, vector);
      continue;
    }
#pragma unroll 1
    for (int i = max(at, 0); i < min(at + V, size); ++i) dx[i] = graded(x[i], i);
  }
}

// Norms of a vector: of neighbouring results, one for each element anywhere, or the same for all.
enum { NEIGHBOURS, EACH_ITS_OWN, THE_SAME };

// grad_short_columns: a vector per thread in memory order; an element where there are few.
// Layout   NEIGHBOURS: x, dx[a][r1][c]; y, dy[a][c], `run` is 1 and `kept` is c in vectors
//          else: x, dx[a][r1][b][r2]; y, dy[a][b], `kept` is b and `run` is r2 in elements; THE_SAME: in vectors
// Grid     vectors / SWEPT_THREADS      Block  SWEPT_THREADS; as many as elements if these are fewer      Writes  dx
// Needs    few columns; whole vectors along c, or along r2 for THE_SAME; aligned x and dx
// Why      norms of few columns stay in the L1 cache, so that one pass in memory order is fastest
// `size` counts vectors; EACH_ITS_OWN: elements.
template <int V>
constexpr int SWEPT_THREADS = V == 1 ? SINGLE_THREADS : ROW_THREADS;

template <typename T, int V, int GRAD_MODE, int NORMS>
__global__ void __launch_bounds__(SWEPT_THREADS<V>) grad_short_columns(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q,
    unsigned int size, Divisor run, Divisor kept, Divisor rows) {
  using A = Wide<T>;
  constexpr bool OWN = NORMS == EACH_ITS_OWN;
  const unsigned int own = blockIdx.x * SWEPT_THREADS<V> + threadIdx.x;
  const auto result = [&](unsigned int line) {
    const unsigned int row = quotient(line, kept), column = remainder(line, row, kept);
    return static_cast<long long>(quotient(row, rows)) * kept.value + column;
  };
  Vector<T, V> values, norms, grads;
  const long long at = static_cast<long long>(own) * V;
  if constexpr (OWN && V > 1) {
    values = as_vector<T, V>(fetch_evict_last<T, V>(x + at, at + V <= size));
  }
  if constexpr (OWN) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const unsigned int element = at + i < size ? at + i : size - 1;
      if (V == 1 || at + V > size) values.at[i] = x[element];
      const long long norm = result(quotient(element, run));
      norms.at[i] = y[norm], grads.at[i] = dy[norm];
    }
  } else {
    const unsigned int vector = own < size ? own : size - 1;
    values = load_evict_last<T, V>(x + static_cast<long long>(vector) * V);
    if constexpr (NORMS == NEIGHBOURS) {
      norms = load<T, V>(y + result(vector) * V), grads = load<T, V>(dy + result(vector) * V);
    } else {
      const long long norm = result(quotient(vector, run));
      norms.at[0] = y[norm], grads.at[0] = dy[norm];
    }
  }
  Scale<A> by = scale_of<A, GRAD_MODE>(widen(norms.at[0]), widen(grads.at[0]));
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i > 0 && NORMS != THE_SAME) by = scale_of<A, GRAD_MODE>(widen(norms.at[i]), widen(grads.at[i]));
    values.at[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(values.at[i]), by, q));
  }
  if (OWN ? at + V <= size : own < size) {
    store_evict_last<T, V>(dx + at, values);
  } else if (OWN && V > 1) {
#pragma unroll
    for (int i = 0; i < V - 1; ++i) {
      if (at + i < size) dx[at + i] = values.at[i];
    }
  }
}

// Calls `use` for every vector along a thread's columns, with its offset and index, in order, several loads in flight;
// `prepare` is called while the first are loaded.
template <typename T, int V, typename Prepare, typename Use>
__device__ __forceinline__ void for_each_vector(const T* x, Columns<V>& at, const Prepare& prepare, const Use& use) {
  const int rows = blockDim.y;
  if (at.r2 != 1) {
    prepare();
#pragma unroll 1
    for (; at.index < at.end; at.index += rows) {
      const long long place = at.next();
      use(load_evict_last<T, V>(x + place), place, at.index);
    }
    return;
  }
  constexpr int TOGETHER = vectors_in_flight<T>();
  VectorWord<T, V> words[TOGETHER];
  const auto load_next = [&] {
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      words[j] = fetch_evict_last<T, V>(x + at.place + j * at.step, at.index + j * rows < at.end);
    }
  };
  load_next();
  prepare();
  while (at.index < at.end) {
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      if (at.index + j * rows >= at.end) continue;
      use(as_vector<T, V>(words[j]), at.place + j * at.step, at.index + j * rows);
    }
    at.index += TOGETHER * rows;
    at.place += TOGETHER * at.step;
    load_next();
  }
}

// grad_columns: threads follow columns, with the norms' factors in registers.
// Layout   x, dx[a][r1][b][r2][c] by Columns; y, dy[a][b][c]      Grid  a b column blocks × splits      Block  (lanes, rows)
// Writes   dx
// Why      factors are computed once per column
template <typename T, int V, int GRAD_MODE>
__global__ void __launch_bounds__(GRAD_THREADS) grad_columns(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q,
    Layout layout) {
  using A = Wide<T>;
  Columns<V> at(layout, blockIdx.y);
  if (!at.ours) return;
  Scale<A> by[V];
  const auto prepare = [&] {
    const Vector<T, V> norms = load<T, V>(y + at.result), grads = load<T, V>(dy + at.result);
#pragma unroll
    for (int i = 0; i < V; ++i) by[i] = scale_of<A, GRAD_MODE>(widen(norms.at[i]), widen(grads.at[i]));
  };
  for_each_vector<T, V>(x, at, prepare, [&](Vector<T, V> vector, long long place, long long) {
#pragma unroll
    for (int i = 0; i < V; ++i) vector.at[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(vector.at[i]), by[i], q));
    store_evict_last<T, V>(dx + place, vector);
  });
}
