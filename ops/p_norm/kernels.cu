// p_norm and its gradient. Modes select the summed function, or the factor of the gradient.
#include "columns.cuh"
#include "reduce_columns.cuh"
#include "reduce_elements.cuh"
#include "reduce_rows.cuh"

enum Mode { COUNT, ABS, ROOT_3, SQUARE, ROOT_5, CUBE, POWER, LARGEST, SMALLEST };  // ROOT_3, ROOT_5: x^1.5, x^2.5

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }
__device__ __forceinline__ float root(float x) {  // to one unit in the last place
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float normal_root(float x) {  // to one unit in the last place; 0 for a subnormal number
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ double normal_root(double x) { return sqrt(x); }
__device__ __forceinline__ float reciprocal(float x) {  // to one unit in the last place
  float result;
  asm("rcp.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / x; }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
// Maximum or minimum; NaN if either is.
template <bool SMALLEST, typename A>
__device__ __forceinline__ A outermost(A a, A b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(A) == 4) {
    A result;
    if constexpr (SMALLEST) {
      asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    } else {
      asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    }
    return result;
  }
#endif
  return (SMALLEST ? b < a : b > a) || b != b ? b : a;
}
__device__ __forceinline__ float accurate_power(float x, float p) { return powf(x, p); }
__device__ __forceinline__ double accurate_power(double x, double p) { return pow(x, p); }

// x^p for x >= 0. Its error is p (|log2 x| + 1) epsilons, which the op's bound counts.
__device__ __forceinline__ float power(float x, float p) {
  float logarithm, result;
  asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
  asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(p * logarithm));
  return result;
}
__device__ __forceinline__ double power(double x, double p) { return pow(x, p); }

template <typename A, int MODE>
struct Accumulator {
  using type = A;
};
template <typename A>
struct Accumulator<A, COUNT> {
  using type = unsigned long long;  // exact beyond 2^24
};

template <typename T, int MODE>
struct Norm {
  using Input = T;
  using Output = T;
  using A = Wide<T>;
  using Acc = typename Accumulator<A, MODE>::type;
  static constexpr bool TWO = false;
  A p, inverse;  // the order and its reciprocal

  static __device__ __forceinline__ A infinity() {  // neutral for |x|^p at p < 0, and for a minimum
    return static_cast<A>(__int_as_float(0x7f800000));
  }
  __device__ __forceinline__ T neutral() const {
    return narrow<T>(MODE == SMALLEST || (MODE == POWER && p < A(0)) ? infinity() : A(0));
  }
  __device__ __forceinline__ Acc identity() const { return MODE == SMALLEST ? Acc(infinity()) : Acc(0); }
  __device__ __forceinline__ Acc take(Acc sum, T element, T) const {
    const A x = magnitude(widen(element));
    if constexpr (MODE == COUNT) return sum + (x != A(0));
    if constexpr (MODE == ABS) return sum + x;
    if constexpr (MODE == SQUARE) return sum + x * x;
    if constexpr (MODE == CUBE) return sum + x * x * x;
    if constexpr (MODE == ROOT_3) return sum + x * normal_root(x);
    if constexpr (MODE == ROOT_5) return sum + x * x * normal_root(x);
    if constexpr (MODE == POWER) return sum + power(x, p);
    return merge(sum, static_cast<Acc>(x));
  }
  __device__ __forceinline__ Acc merge(Acc a, Acc b) const {
    if constexpr (MODE == LARGEST || MODE == SMALLEST) return outermost<MODE == SMALLEST>(a, b);
    return a + b;
  }
  __device__ __forceinline__ T finish(Acc sum) const {
    if constexpr (MODE == COUNT || MODE == ABS || MODE == LARGEST || MODE == SMALLEST) return narrow<T>(static_cast<A>(sum));
    if constexpr (MODE == SQUARE) return narrow<T>(root(static_cast<A>(sum)));
    return narrow<T>(accurate_power(static_cast<A>(sum), inverse));
  }
};

// ---- gradient ------------------------------------------------------------------------------------------------------

enum GradMode { FLAT, SIGN, LINEAR, QUADRATIC, ROOT, ROOT_CUBED, GENERAL, BELOW_ONE };  // porder 0, 1, 2, 3, 1.5, 2.5, >1, <1

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
  return GRAD_MODE == BELOW_ONE && x == A(0) ? A(0) : value;
}

constexpr int GRAD_THREADS = 256;

constexpr int ROW_THREADS = 128;

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

// grad_short_columns: a vector per thread, along c.
// Layout   x, dx[a][r1][c]; y, dy[a][c]      Grid  vectors / ROW_THREADS      Block  ROW_THREADS      Writes  dx
// Needs    rows of few whole vectors
// Why      norms of few columns stay in the L1 cache, so that one pass in memory order is fastest

template <typename T, int V, int GRAD_MODE>
__global__ void __launch_bounds__(ROW_THREADS) grad_short_columns(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Wide<T> q,
    unsigned int size, Divisor vectors, Divisor rows) {
  using A = Wide<T>;
  const unsigned int vector = blockIdx.x * ROW_THREADS + threadIdx.x;
  if (vector >= size) return;
  const unsigned int row = quotient(vector, vectors), column = remainder(vector, row, vectors);
  const long long at = static_cast<long long>(vector) * V;
  const long long result = (static_cast<long long>(quotient(row, rows)) * vectors.value + column) * V;
  Vector<T, V> values = load_evict_last<T, V>(x + at);
  const Vector<T, V> norms = load<T, V>(y + result), grads = load<T, V>(dy + result);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const Scale<A> by = scale_of<A, GRAD_MODE>(widen(norms.at[i]), widen(grads.at[i]));
    values.at[i] = narrow<T>(gradient<A, GRAD_MODE>(widen(values.at[i]), by, q));
  }
  store_evict_last<T, V>(dx + at, values);
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
  const auto bring = [&] {
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      words[j] = fetch_evict_last<T, V>(x + at.place + j * at.step, at.index + j * rows < at.end);
    }
  };
  bring();
  prepare();
  while (at.index < at.end) {
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      if (at.index + j * rows >= at.end) continue;
      use(as_vector<T, V>(words[j]), at.place + j * at.step, at.index + j * rows);
    }
    at.index += TOGETHER * rows;
    at.place += TOGETHER * at.step;
    bring();
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

// ---- porder +-inf --------------------------------------------------------------------------------------------------
//
// Elements that tie for the norm share dy. Kernels write the result as if the extremum were unique, count ties meanwhile,
// and rewrite the tied elements if there are several, which is rare. x is read once.

template <typename T>
struct TieShare {  // gradient of each of `count` elements that tie for one norm
  Wide<T> norm, share;
  // Zeros never tie: their share would be zero anyway.
  __device__ __forceinline__ TieShare(T y, T dy, Wide<T> count = 1)
      : norm(widen(y) > 0 ? widen(y) : Wide<T>(-1)), share(count > 1 ? widen(dy) / count : widen(dy)) {}
  // Threshold that |x| of tied elements equals. If it is NaN all elements may tie, as zero times dy is not zero.
  __device__ __forceinline__ Wide<T> threshold() const {
    const Wide<T> other = Wide<T>(0) * share;
    return other == Wide<T>(0) ? norm : other;
  }
  __device__ __forceinline__ bool tie(T x) const {  // NaN ties with any norm
    return magnitude(widen(x)) == norm || widen(x) != widen(x);
  }
  __device__ __forceinline__ T of(T x) const {
    if (widen(x) != widen(x)) return x;
    if (magnitude(widen(x)) != norm) return narrow<T>(Wide<T>(0) * share);
    return narrow<T>(widen(x) > 0 ? share : -share);
  }
};

template <typename T>
__device__ __forceinline__ bool may_tie(T x, Wide<T> threshold) {  // NaN does
  const Wide<T> size = magnitude(widen(x));
  return !(size < threshold) && !(size > threshold);
}

template <typename T>
struct Paired;
template <>
struct Paired<__half> {
  using type = __half2;
};
template <>
struct Paired<__nv_bfloat16> {
  using type = __nv_bfloat162;
};

// Compares two elements with their thresholds: 16 bits are set for each that may tie.
template <typename T>
__device__ __forceinline__ unsigned int tie_bits_of_pair(unsigned int two, typename Paired<T>::type thresholds) {
  return __hequ2_mask(__habs2(reinterpret_cast<const typename Paired<T>::type&>(two)), thresholds);
}

// Compares eight elements with one threshold: a bit is set for each that may tie.
template <typename T>
__device__ __forceinline__ unsigned int tie_bits(const uint4& word, T threshold) {
  const typename Paired<T>::type thresholds(threshold, threshold);
  const auto of = [&](unsigned int two) { return tie_bits_of_pair<T>(two, thresholds); };
  const unsigned int bits =
      (of(word.x) & 0x20001u) | (of(word.y) & 0x80004u) | (of(word.z) & 0x200010u) | (of(word.w) & 0x800040u);
  return (bits | bits >> 16) & 0xffu;
}

// Whether any element of a vector may tie, each with its own threshold.
template <typename T, int V>
__device__ __forceinline__ bool any_may_tie(const Vector<T, V>& vector, const Vector<T, V>& thresholds) {
  if constexpr (V == 8) {
    using P = typename Paired<T>::type;
    unsigned int found = 0;
#pragma unroll
    for (int i = 0; i < V; i += 2) {
      found |= tie_bits_of_pair<T>(reinterpret_cast<const unsigned int&>(vector.at[i]), reinterpret_cast<const P&>(thresholds.at[i]));
    }
    return found != 0;
  } else {
    bool found = false;
#pragma unroll
    for (int i = 0; i < V; ++i) found |= may_tie(vector.at[i], widen(thresholds.at[i]));
    return found;
  }
}

// Range of x and dx in aligned vectors: elements [low, high) past `from`, or all if vectors are WHOLE. I: type of the
// number of elements.
template <typename T, int V, typename I, bool WHOLE = false>
struct Part {
  using W = VectorWord<T, V>;
  const T* from;
  T* to;
  I low, high, vectors;

  __device__ __forceinline__ Part(const T* from, T* to, I low, I high)
      : from(from), to(to), low(low), high(high), vectors((high + V - 1) / V) {}

  __device__ __forceinline__ bool ours(I at) const { return WHOLE || (at >= low && at < high); }
  __device__ __forceinline__ W fetch(I vector) const { return fetch_evict_last<T, V>(from + vector * V, vector < vectors); }
  __device__ __forceinline__ void write(const Vector<T, V>& given, I vector) const {
    if (WHOLE || (vector * V >= low && vector * V + V <= high)) {
      store_evict_last<T, V>(to + vector * V, given);
      return;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (ours(vector * V + i)) to[vector * V + i] = given.at[i];
    }
  }
};

// Range of `length` elements from `begin` on. shift: elements from an aligned address to x and dx.
template <typename T, int V, typename I>
__device__ __forceinline__ Part<T, V, I> part_from(const T* x, T* dx, long long begin, I length, int shift) {
  const long long first = (begin + shift) / V * V - shift;
  const I low = static_cast<I>(begin - first);
  return {x + first, dx + first, low, low + length};
}

constexpr int MOST_ROWS = ROW_THREADS;  // maximum rows of a block
constexpr int SHORT_EACH = 2;           // vectors per thread

// grad_inf_short_rows: one thread block computes several consecutive rows, whose vectors stay in registers.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows / most      Block  ROW_THREADS
// Needs    rows no shorter than a vector; all rows of a block at most SHORT_EACH vectors per thread      Writes  dx
// Why      few threads per row; a vector may span two rows
template <typename T, int V>
__global__ void __launch_bounds__(ROW_THREADS) grad_inf_short_rows(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long rows,
    int most, int shift, Divisor length) {
  constexpr int HELD = SHORT_EACH;
  using At = Part<T, V, int>;
  __shared__ unsigned int counts[MOST_ROWS];
  __shared__ T thresholds[MOST_ROWS + 1];
  const long long first = static_cast<long long>(blockIdx.x) * most;
  const int ours = static_cast<int>(min(static_cast<long long>(most), rows - first));
  const At at = part_from<T, V>(x, dx, first * length.value, ours * static_cast<int>(length.value), shift);
  y += first;
  dy += first;
  typename At::W held[HELD];
#pragma unroll
  for (int h = 0; h < HELD; ++h) held[h] = at.fetch(threadIdx.x + h * ROW_THREADS);
  if (threadIdx.x < ours) {
    counts[threadIdx.x] = 0;
    thresholds[threadIdx.x] = narrow<T>(TieShare<T>(y[threadIdx.x], dy[threadIdx.x]).threshold());
  }
  __syncthreads();
  unsigned int out = 0;  // a bit for each element that may tie
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    const int index = threadIdx.x + h * ROW_THREADS, element = index * V - at.low;
    if (index >= at.vectors) continue;
    const int row = quotient(max(element, 0), length);
    const int left = (row + 1) * static_cast<int>(length.value) - element;  // elements until the next row
    const T threshold = thresholds[row], next = thresholds[row + 1];
    unsigned int bits = 0;
    if constexpr (V == 8) {
      const unsigned int ours = (1u << min(left, V)) - 1;
      bits = (tie_bits<T>(held[h], threshold) & ours) | (tie_bits<T>(held[h], next) & ~ours);
    } else {
      const Vector<T, V> vector = as_vector<T, V>(held[h]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        bits |= static_cast<unsigned int>(may_tie(vector.at[i], widen(i < left ? threshold : next))) << i;
      }
    }
    out |= bits << h * V;
    at.write(as_vector<T, V>(typename At::W{}), index);
  }
  // Sets elements that may tie to their share, as if unique unless ties are counted.
  const auto fix_up = [&](bool counted) {
    for (unsigned int bits = out; bits != 0;) {
      const int bit = 31 - __clz(bits), place = (threadIdx.x + bit / V * ROW_THREADS) * V + bit % V;
      bits ^= 1u << bit;
      if (!at.ours(place)) continue;
      const int row = quotient(place - at.low, length);
      if (counted && counts[row] <= 1) continue;
      const TieShare<T> shares(y[row], dy[row], counted ? static_cast<Wide<T>>(counts[row]) : Wide<T>(1));
      if (!counted && shares.tie(at.from[place])) atomicAdd(&counts[row], 1u);
      at.to[place] = shares.of(at.from[place]);
    }
  };
  fix_up(false);
  __syncthreads();
  fix_up(true);
}

constexpr int ROW_EACH = 4, PART_EACH = 4;  // vectors per thread
constexpr int PARTS_RESIDENT = 5;           // minimum resident blocks per multiprocessor

// grad_inf_rows_block: one thread block computes one row, whose vectors stay in registers.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows      Block  GRAD_THREADS
// Needs    a row of at most ROW_EACH vectors per thread                   Writes  dx
// Why      ties are counted before anything is written
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS) grad_inf_rows_block(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, int length,
    int shift) {
  using At = Part<T, V, int>;
  __shared__ unsigned int found;
  const long long row = blockIdx.x;
  const At at = part_from<T, V>(x, dx, row * length, length, shift);
  typename At::W held[ROW_EACH];
#pragma unroll
  for (int h = 0; h < ROW_EACH; ++h) held[h] = at.fetch(threadIdx.x + h * GRAD_THREADS);
  const T norm = y[row], grad = dy[row];
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const TieShare<T> alone(norm, grad);
  const Wide<T> threshold = alone.threshold();
  bool any[ROW_EACH];  // whether any element of a vector may tie
  unsigned int tied = 0;
#pragma unroll
  for (int h = 0; h < ROW_EACH; ++h) {
    const int index = threadIdx.x + h * GRAD_THREADS;
    const Vector<T, V> vector = as_vector<T, V>(held[h]);
    any[h] = false;
#pragma unroll
    for (int i = 0; i < V; ++i) any[h] |= may_tie(vector.at[i], threshold);
    any[h] &= index < at.vectors;
    if (!any[h]) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) tied += at.ours(index * V + i) && alone.tie(vector.at[i]);
  }
  if (tied > 0) atomicAdd(&found, tied);
  __syncthreads();
  const TieShare<T> shares(norm, grad, static_cast<Wide<T>>(found));
#pragma unroll
  for (int h = 0; h < ROW_EACH; ++h) {
    const int index = threadIdx.x + h * GRAD_THREADS;
    if (index >= at.vectors) continue;
    const Vector<T, V> vector = as_vector<T, V>(held[h]);
    Vector<T, V> given = as_vector<T, V>(typename At::W{});
    if (any[h]) {
#pragma unroll
      for (int i = 0; i < V; ++i) given.at[i] = shares.of(vector.at[i]);
    }
    at.write(given, index);
  }
}

// Writes a vector's gradient and returns the number of ties. AGAIN: rewrites a vector with elements that may tie.
template <bool AGAIN, typename T, int V, typename I, bool WHOLE>
__device__ __forceinline__ int write_ties(
    const Part<T, V, I, WHOLE>& at, const VectorWord<T, V>& word, I index, const TieShare<T>& shares, Wide<T> threshold) {
  const Vector<T, V> vector = as_vector<T, V>(word);
  Vector<T, V> given = as_vector<T, V>(VectorWord<T, V>{});
  bool any = false;
  int tied = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) any |= may_tie(vector.at[i], threshold);
  if (any) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      given.at[i] = shares.of(vector.at[i]);
      tied += at.ours(index * V + i) && shares.tie(vector.at[i]);
    }
  }
  if (any || !AGAIN) at.write(given, index);
  return tied;
}

// grad_inf_rows_loop: one thread block computes one row in several passes over its threads.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows      Block  GRAD_THREADS      Writes  dx
// Why      rows longer than a block's registers, and enough of them to fill the device
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS) grad_inf_rows_loop(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long length,
    int shift) {
  constexpr int TOGETHER = 4, TURN = TOGETHER * GRAD_THREADS;
  using At = Part<T, V, long long>;
  __shared__ unsigned long long found;
  const long long row = blockIdx.x;
  const At at = part_from<T, V>(x, dx, row * length, length, shift);
  const T norm = y[row], grad = dy[row];
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const TieShare<T> alone(norm, grad);
  const Wide<T> threshold = alone.threshold();
  unsigned long long mine = 0;
  long long first = 0, last = -1;  // iteration in which elements may tie, by its first vector
  typename At::W words[TOGETHER];  // of the next iteration, loaded before those of this one are written
  const auto bring = [&](long long begin) {
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) words[j] = at.fetch(begin + j * GRAD_THREADS);
  };
  bring(threadIdx.x);
  for (long long begin = threadIdx.x; begin < at.vectors; begin += TURN) {
    typename At::W now[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) now[j] = words[j];
    bring(begin + TURN);
    int tied = 0;
#pragma unroll
    for (int j = 0; j < TOGETHER; ++j) {
      const long long index = begin + j * GRAD_THREADS;
      if (index < at.vectors) tied += write_ties<false>(at, now[j], index, alone, threshold);
    }
    if (tied == 0) continue;
    if (mine == 0) first = begin;
    last = begin;
    mine += tied;
  }
  if (mine > 0) atomicAdd(&found, mine);
  __syncthreads();
  if (found <= 1) return;
  const TieShare<T> shares(norm, grad, static_cast<Wide<T>>(found));
  const long long end = min(at.vectors, last + TURN);
  for (long long index = first; index < end; index += GRAD_THREADS) {
    write_ties<true>(at, at.fetch(index), index, shares, threshold);
  }
}

// grad_inf_rows_grid: each block computes a part of a row; fix-up blocks rewrite ties across parts.
// Layout   x, dx[rows][length]; y, dy[rows]      Grid  rows · parts + rows · fixups      Block  GRAD_THREADS
// Needs    share ≤ PART_EACH · GRAD_THREADS vectors; fewer than 2^32 elements per row; WHOLE: aligned rows of vectors
// Writes   dx; arrived[rows] counts arrivals, seen[rows][fixups] what fix-ups have read, marked[rows][parts] parts with ties
// Waits    fix-up blocks wait for all parts of their row. They start last, and ops/p_norm/cuda.py limits their number to
//          the resident blocks, so that every part makes progress
// Why      parts end after one load, so that memory is read in order; ties across parts are rare
template <typename T, int V, bool WHOLE>
__global__ void __launch_bounds__(GRAD_THREADS, PARTS_RESIDENT) grad_inf_rows_grid(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long length,
    int shift, int share, unsigned int blocks, Divisor parts, Divisor fixups, unsigned long long* arrived,
    unsigned long long* seen, unsigned char* marked) {
  using At = Part<T, V, int, WHOLE>;
  __shared__ unsigned int found, several[GRAD_THREADS], many;
  const auto part_of = [&](long long row, unsigned int part) {
    const long long start = row * length, past = static_cast<long long>(part) * share * V;
    const int ahead = WHOLE ? 0 : static_cast<int>((start + shift) & (V - 1));
    const long long first = start - ahead + past, left = length + ahead - past;
    return At(x + first, dx + first, part == 0 ? ahead : 0, static_cast<int>(min(left, static_cast<long long>(share) * V)));
  };
  typename At::W words[PART_EACH];
  const auto bring = [&](const At& at) {
#pragma unroll
    for (int h = 0; h < PART_EACH; ++h) words[h] = at.fetch(threadIdx.x + h * GRAD_THREADS);
  };
  if (blockIdx.x < blocks) {
    const unsigned int row = quotient(blockIdx.x, parts), part = remainder(blockIdx.x, row, parts);
    const At at = part_of(row, part);
    bring(at);
    if (threadIdx.x == 0) found = 0;
    const TieShare<T> alone(y[row], dy[row]);
    const Wide<T> threshold = alone.threshold();
    int tied = 0;
#pragma unroll
    for (int h = 0; h < PART_EACH; ++h) {
      const int index = threadIdx.x + h * GRAD_THREADS;
      if (index < at.vectors) tied += write_ties<false>(at, words[h], index, alone, threshold);
    }
    if (__syncthreads_or(tied)) {
      if (tied > 0) atomicAdd(&found, static_cast<unsigned int>(tied));
      if (threadIdx.x == 0) marked[blockIdx.x] = 1;
      __syncthreads();
    }
    if (threadIdx.x == 0) arrive(arrived + row, found);
    return;
  }
  const unsigned int fixup = blockIdx.x - blocks, row = quotient(fixup, fixups);
  if (threadIdx.x == 0) found = wait_for_arrivals(arrived + row, seen + fixup, parts.value);
  __syncthreads();
  if (found <= 1) return;
  const TieShare<T> shares(y[row], dy[row], static_cast<Wide<T>>(found));
  const Wide<T> threshold = shares.threshold();
  marked += static_cast<long long>(row) * parts.value;
  const unsigned int use = GRAD_THREADS * fixups.value;
  for (unsigned int first = remainder(fixup, row, fixups); first < parts.value; first += use) {
    if (threadIdx.x == 0) many = 0;
    __syncthreads();
    const unsigned int mine = first + threadIdx.x * fixups.value;
    if (mine < parts.value && marked[mine] != 0) {
      several[atomicAdd(&many, 1u)] = mine;
      marked[mine] = 0;
    }
    __syncthreads();
    for (unsigned int i = 0; i < many; ++i) {
      const At at = part_of(row, several[i]);
      bring(at);
#pragma unroll
      for (int h = 0; h < PART_EACH; ++h) {
        const int index = threadIdx.x + h * GRAD_THREADS;
        if (index < at.vectors) write_ties<true>(at, words[h], index, shares, threshold);
      }
    }
    __syncthreads();
  }
}

// INF_RESIDENT, resident blocks per multiprocessor, and MOST_LANES, threads along columns, are defined by
// ops/p_norm/cuda.py.

// grad_inf_columns_grid: threads follow columns; splits of a column exchange their number of ties.
// Layout   x, dx[a][r1][b][r2][c] by Columns; y, dy[a][b][c]      Grid  a b column blocks × splits      Block  (lanes, rows)
// Needs    with splits, at most INF_RESIDENT blocks per multiprocessor
// Writes   dx; counts[a][b][c], a word for sum_over_blocks(), which it leaves zero
// Waits    blocks that find ties wait for all splits of their columns
// Why      any layout, with one read of x
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS, INF_RESIDENT) grad_inf_columns_grid(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Layout layout,
    unsigned long long* counts) {
  using W = VectorWord<T, V>;
  __shared__ unsigned int found[MOST_LANES * V];
  __shared__ Wide<T> totals[MOST_LANES * V];
  __shared__ W norms[MOST_LANES], grads[MOST_LANES];
  const int threads = blockDim.x * blockDim.y, slot = threadIdx.y * blockDim.x + threadIdx.x;
  const int columns = blockDim.x * V, splits = gridDim.y;
  for (int column = slot; column < columns; column += threads) found[column] = 0;
  Columns<V> at(layout, blockIdx.y);
  Vector<T, V> thresholds;
  const auto prepare = [&] {
    if (at.ours) {
      const W norm = fetch<T, V>(y + at.result), grad = fetch<T, V>(dy + at.result);
      norms[threadIdx.x] = norm;
      grads[threadIdx.x] = grad;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        thresholds.at[i] = narrow<T>(TieShare<T>(as_vector<T, V>(norm).at[i], as_vector<T, V>(grad).at[i]).threshold());
      }
    }
    __syncthreads();
  };
  // Writes a vector, whose elements share with those counted. Returns whether any may tie.
  const auto write = [&](const Vector<T, V>& vector, long long place, bool counted) {
    Vector<T, V> given = as_vector<T, V>(W{});
    const bool any = any_may_tie(vector, thresholds);
    if (any) {
      const Vector<T, V> norm = as_vector<T, V>(norms[threadIdx.x]), grad = as_vector<T, V>(grads[threadIdx.x]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int column = threadIdx.x * V + i;
        const TieShare<T> shares(norm.at[i], grad.at[i], counted ? totals[column] : Wide<T>(1));
        given.at[i] = shares.of(vector.at[i]);
        if (!counted && shares.tie(vector.at[i])) atomicAdd(&found[column], 1u);
      }
    }
    store_evict_last<T, V>(dx + place, given);
    return any;
  };
  bool several = false;
  long long last = -1;  // index of a vector in which some stand out
  for_each_vector<T, V>(x, at, prepare, [&](const Vector<T, V>& vector, long long place, long long index) {
    if (!write(vector, place, false)) return;
    several = last >= 0;
    last = index;
  });
  __syncthreads();
  for (int column = slot; column < columns; column += threads) {
    const int further = column - static_cast<int>(threadIdx.x) * V;
    unsigned long long count = found[column];
    if (splits > 1 && at.column + further < layout.c) count = sum_over_blocks(&counts[at.result + further], count, splits);
    totals[column] = static_cast<Wide<T>>(count);
  }
  __syncthreads();
  if (last < 0) return;
  bool shared = false;
#pragma unroll
  for (int i = 0; i < V; ++i) shared = shared || totals[threadIdx.x * V + i] > 1;
  if (!shared) return;
  const long long origin = (at.start - at.column) * layout.r2 + at.column;
#pragma unroll 1
  for (long long index = several ? layout.share * blockIdx.y + threadIdx.y : last; index <= last; index += blockDim.y) {
    const long long outward = layout.r2 == 1 ? index : index / layout.r2, inward = index - outward * layout.r2;
    const long long place = origin + outward * at.stride + inward * layout.c;
    write(load<T, V>(x + place), place, true);
  }
}

constexpr int COLUMNS_EACH = 8;  // maximum rows per thread
template <int V>
constexpr int COLUMNS_RESIDENT = V == 8 ? 2 : V == 2 ? 3 : 4;

// grad_inf_columns_block: one thread block computes its columns, whose vectors stay in registers.
// Layout   x, dx[a][r1][c]; y, dy[a][c]      Grid  a column blocks      Block  (lanes, rows)
// Needs    at most COLUMNS_EACH rows per thread, fewer than 256 in all      Writes  dx
// Why      ties are counted, in a byte per column, before anything is written
template <typename T, int V>
__global__ void __launch_bounds__(GRAD_THREADS, COLUMNS_RESIDENT<V>) grad_inf_columns_block(
    const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, Layout layout) {
  using A = Wide<T>;
  using W = VectorWord<T, V>;
  constexpr int WORDS = (V + 3) / 4;
  __shared__ unsigned int found[WORDS][MOST_LANES];
  const Columns<V> at(layout, 0);
  const int left = static_cast<int>(at.end - at.index), rows = blockDim.y;
  W held[COLUMNS_EACH];
#pragma unroll
  for (int h = 0; h < COLUMNS_EACH; ++h) held[h] = fetch_evict_last<T, V>(x + at.place + h * at.step, h * rows < left);
  Vector<T, V> norms = as_vector<T, V>(W{}), dues = norms;  // dues: share of a tie, dy until ties are counted
  if (at.ours) {
    norms = load<T, V>(y + at.result);
    dues = load<T, V>(dy + at.result);
  }
  bool all = false;  // zero times some dy is no zero: all elements get something
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const TieShare<T> alone(norms.at[i], dues.at[i]);
    norms.at[i] = narrow<T>(alone.norm);
    all |= alone.threshold() != alone.norm;
  }
  if (threadIdx.y == 0) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) found[w][threadIdx.x] = 0;
  }
  __syncthreads();
  unsigned int given_some = 0, tied[WORDS] = {};  // a bit per vector, a byte per column
#pragma unroll
  for (int h = 0; h < COLUMNS_EACH; ++h) {
    const Vector<T, V> vector = as_vector<T, V>(held[h]);
    if (h * rows >= left || !(all || any_may_tie(vector, norms))) continue;
    given_some |= 1u << h;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      tied[i / 4] += static_cast<unsigned int>(may_tie(vector.at[i], widen(norms.at[i]))) << i % 4 * 8;
    }
  }
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    if (tied[w] > 0) atomicAdd(&found[w][threadIdx.x], tied[w]);
  }
  __syncthreads();
  if (given_some > 0) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const unsigned int count = found[i / 4][threadIdx.x] >> i % 4 * 8 & 0xffu;
      if (count > 1) dues.at[i] = narrow<T>(widen(dues.at[i]) / static_cast<A>(count));
    }
  }
#pragma unroll
  for (int h = 0; h < COLUMNS_EACH; ++h) {
    if (h * rows >= left) continue;
    Vector<T, V> given = as_vector<T, V>(W{});
    if (given_some >> h & 1) {
      const Vector<T, V> vector = as_vector<T, V>(held[h]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const A value = widen(vector.at[i]), due = widen(dues.at[i]);
        given.at[i] = narrow<T>(!may_tie(vector.at[i], widen(norms.at[i])) ? A(0) * due
                                : value != value                           ? value
                                                                           : (value > 0 ? due : -due));
      }
    }
    store_evict_last<T, V>(dx + at.place + h * at.step, given);
  }
}

// ---- the design document's plan, and one scalar kernel --------------------------------------------------------------

// grad_part: y_part = dy y^-(p-1), on the reduced shape, an element per thread.
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_part(
    const T* __restrict__ y, const T* __restrict__ dy, Wide<T>* __restrict__ part, Wide<T> q, long long size) {
  using A = Wide<T>;
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const A norm = widen(y[index]);
  part[index] = norm == A(0) ? A(0) : widen(dy[index]) * accurate_power(norm, -q);
}

// grad_spread: y_part broadcast to the shape of x, an element per thread.
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_spread(
    const Wide<T>* __restrict__ part, Wide<T>* __restrict__ spread, Layout layout, long long size) {
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const long long outer = index / layout.c, group = outer / layout.r2;
  const long long b = group % layout.b, a = group / (layout.b * layout.r1);
  spread[index] = part[(a * layout.b + b) * layout.c + index % layout.c];
}

// grad_fuse: dx = |x|^(p-1) sign(x) y_part, an element per thread.
template <typename T>
__global__ void __launch_bounds__(GRAD_THREADS) grad_fuse(
    const T* __restrict__ x, const Wide<T>* __restrict__ spread, T* __restrict__ dx, Wide<T> q, long long size) {
  using A = Wide<T>;
  const long long index = static_cast<long long>(blockIdx.x) * GRAD_THREADS + threadIdx.x;
  if (index >= size) return;
  const A value = widen(x[index]), part = spread[index];
  const A sign = value > A(0) ? A(1) : (value < A(0) ? A(-1) : value);
  dx[index] = narrow<T>(value == A(0) ? A(0) : accurate_power(magnitude(value), q) * sign * part);
}
