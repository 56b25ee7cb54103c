// conv_data_grad without tensor cores: threads gather each element of dx, from columns or from dy and the filter.
//
// Three spatial axes; missing ones, in front, have length 1. T is the type of dx, C that of the columns.

#include "divide.cuh"
#include "vector.cuh"

DEFINE_Axes;  // of cuda.py
DEFINE_Columns;
DEFINE_Factors;

// Taps of an axis that connect pixels of dy to pixel `at` of dx: `count` of them from `tap` on, in steps of `step`, at
// places that begin with `place` and fall by `move`. Threads of a warp walk them together, whichever taps are theirs.
struct Reach {
  int tap, place = 0, count = 0;

  __device__ __forceinline__ Reach(const Axes& axes, int axis, int at) {
    const Divisor &by = axes.dilation[axis], &step = axes.step[axis];
    const int moved = at + axes.padding[axis], dilation = by.value;
    const int beyond = moved - (axes.out[axis] - 1) * static_cast<int>(axes.stride[axis].value);
    const int last = min(static_cast<int>(quotient(moved, by)), axes.kernel[axis] - 1);
    tap = beyond > 0 ? quotient(beyond + dilation - 1, by) : 0;
    for (int left = step.value; left > 0 && tap <= last; --left, ++tap) {
      const int rest = moved - tap * dilation;
      place = quotient(rest, axes.stride[axis]);
      if (remainder(rest, place, axes.stride[axis]) == 0) {
        count = quotient(last - tap, step) + 1;
        return;
      }
    }
  }
};

// An element of dx: its image, channel within a group, and coordinates.
struct Element {
  unsigned int image, group, inner;
  int at[3];

  template <bool CHANNELS_LAST>
  __device__ __forceinline__ void decode(
      unsigned int index, const Axes& axes, const Divisor& channels, const Divisor& per_group) {
    unsigned int rest = index, channel = 0;
    if (CHANNELS_LAST) {
      rest = quotient(index, channels);
      channel = remainder(index, rest, channels);
    }
    locate(rest, axes);
    if (!CHANNELS_LAST) {
      const unsigned int plane = image;
      image = quotient(plane, channels);
      channel = remainder(plane, image, channels);
    }
    group = quotient(channel, per_group);
    inner = remainder(channel, group, per_group);
  }

  // Splits the number of a pixel into coordinates and the number of its image, or plane.
  __device__ __forceinline__ void locate(unsigned int pixel, const Axes& axes) {
    image = pixel;
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      const unsigned int whole = quotient(image, axes.size[axis]);
      at[axis] = remainder(image, whole, axes.size[axis]);
      image = whole;
    }
  }

  // Of the taps of the filter that connect a pixel of dy to this element, N at once: `take(i, tap, pixel)` each, then
  // `finish(count)`.
  template <int N, typename Take, typename Finish>
  __device__ __forceinline__ void for_taps(const Axes& axes, const Take& take, const Finish& finish) const {
    const Reach depth(axes, 0, at[0]), height(axes, 1, at[1]), width(axes, 2, at[2]);
    int i = 0, j = 0, k = 0;
#pragma unroll 1
    for (int left = depth.count * height.count * width.count; left > 0; left -= N) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int tap_i = depth.tap + i * static_cast<int>(axes.step[0].value), d = depth.place - i * axes.move[0];
        const int tap_j = tap_i * axes.kernel[1] + height.tap + j * static_cast<int>(axes.step[1].value);
        const int row = d * axes.out[1] + height.place - j * axes.move[1];
        const int tap = tap_j * axes.kernel[2] + width.tap + k * static_cast<int>(axes.step[2].value);
        if (n < left) take(n, tap, static_cast<long long>(row) * axes.out[2] + width.place - k * axes.move[2]);
        ++k;
        if (k == width.count) k = 0, ++j;
        if (j == height.count) j = 0, ++i;
      }
      finish(min(left, N));
    }
  }
};

constexpr int FOLDED = 4;  // loads in flight

// fold: threads gather the columns of one pixel of dx each.
// Layout   columns by Columns, dx in either data format      Grid  any      Block  256      Writes  dx
// Why      every column is read once, without atomics
template <typename T, typename C, bool CHANNELS_LAST>
__global__ void __launch_bounds__(256, 4) fold(
    const C* __restrict__ column, const T* __restrict__ addend, T* __restrict__ dx, unsigned int size, Axes axes,
    Columns strides, Divisor channels, Divisor per_group) {
  for (unsigned int index = blockIdx.x * 256u + threadIdx.x; index < size; index += gridDim.x * 256u) {
    Element element;
    element.decode<CHANNELS_LAST>(index, axes, channels, per_group);
    const C* const from =
        column + element.image * strides.image + element.group * strides.group + element.inner * strides.channel;
    Wide<C> total = 0;
    C loaded[FOLDED];
    element.for_taps<FOLDED>(
        axes, [&](int i, int tap, long long pixel) { loaded[i] = from[tap * strides.tap + pixel * strides.pixel]; },
        [&](int count) {
#pragma unroll
          for (int i = 0; i < FOLDED; ++i) total += i < count ? widen(loaded[i]) : Wide<C>(0);
        });
    if (addend != nullptr) total += widen(addend[index]);
    dx[index] = narrow<T>(total);
  }
}

// The products of an element of dx by output channels `lane`, `lane + by.lanes`, ..., of TAPS taps and OUTS channels at once.
template <int TAPS, int OUTS, typename T>
__device__ __forceinline__ Wide<T> products(
    const Element& element, const Axes& axes, const Factors& by, const T* from, const T* weights, int lane) {
  const long long dy_step = by.lanes * by.dy_out, filter_step = by.lanes * by.filter_out;
  Wide<T> total = 0;
  const T *a[TAPS], *b[TAPS];
  const auto locate = [&](int t, int tap, long long pixel) {
    a[t] = from + pixel * by.dy_pixel;
    b[t] = weights + tap * by.filter_tap;
  };
  element.for_taps<TAPS>(axes, locate, [&](int count) {
    for (int o = lane; o < by.outs; o += OUTS * by.lanes) {
      VectorWord<T, 1> given[TAPS][OUTS] = {}, weight[TAPS][OUTS] = {};
#pragma unroll
      for (int t = 0; t < TAPS; ++t) {
#pragma unroll
        for (int i = 0; i < OUTS; ++i) {
          if (t >= count || o + i * by.lanes >= by.outs) continue;
          given[t][i] = fetch<T, 1>(a[t] + i * dy_step);
          weight[t][i] = fetch<T, 1>(b[t] + i * filter_step);
        }
        a[t] += OUTS * dy_step;
        b[t] += OUTS * filter_step;
      }
#pragma unroll
      for (int t = 0; t < TAPS; ++t) {
#pragma unroll
        for (int i = 0; i < OUTS; ++i) {
          total += widen(as_vector<T, 1>(given[t][i]).at[0]) * widen(as_vector<T, 1>(weight[t][i]).at[0]);
        }
      }
    }
  });
  return total;
}

// IN_FLIGHT, loads of each factor at once, and FEW_OUTS, channels of a thread up to which they are of several taps, are
// defined by cuda.py.

// multiply: `lanes` threads share the output channels of an element of dx.
// Layout   dy, filter by Factors, dx in either data format      Grid  elements · lanes / 256      Block  256
// Writes   dx
// Why      products too small for tensor cores are bound by latency: one launch, and the filter is read by the whole device
template <typename T, bool CHANNELS_LAST>
__global__ void __launch_bounds__(256, sizeof(T) == 8 ? 2 : 4) multiply(
    const T* __restrict__ dy, const T* __restrict__ filter, const T* __restrict__ addend, T* __restrict__ dx,
    unsigned int size, Axes axes, const __grid_constant__ Factors by, Divisor channels, Divisor per_group) {
  __shared__ Wide<T> sums[128];
  const unsigned int across = 256 / by.lanes, lane = threadIdx.x / across;
  const unsigned int index = blockIdx.x * across + threadIdx.x % across;
  Element element;
  element.decode<CHANNELS_LAST>(min(index, size - 1), axes, channels, per_group);
  const long long out = static_cast<long long>(element.group) * by.outs + lane;
  const T* const from = dy + element.image * by.dy_image + out * by.dy_out;
  const T* const weights = filter + out * by.filter_out + element.inner * by.filter_inner;
  const bool few = by.outs <= FEW_OUTS * by.lanes && axes.kernel[0] * axes.kernel[1] * axes.kernel[2] > 1;
  Wide<T> total = few ? products<IN_FLIGHT / FEW_OUTS, FEW_OUTS>(element, axes, by, from, weights, lane)
                      : products<1, IN_FLIGHT>(element, axes, by, from, weights, lane);
  for (unsigned int half = by.lanes / 2; half > 0; half /= 2) {
    if (lane >= half && lane < 2 * half) sums[threadIdx.x - half * across] = total;
    __syncthreads();
    if (lane < half) total += sums[threadIdx.x];
    __syncthreads();
  }
  if (lane > 0 || index >= size) return;
  if (addend != nullptr) total += widen(addend[index]);
  dx[index] = narrow<T>(total);
}

// depthwise: a thread computes V neighbouring channels of PIXELS pixels of a row, whose loads serve all TAPS along the row.
// Layout   dy, filter, addend, dx channels last      Grid  pixels of all rows x slices of channels      Block  up to 256
// Needs    TAPS along rows without dilation, at STRIDE      Writes  dx
// Why      few instructions for each vector, whose loads are independent; only taps that reach a pixel are multiplied
template <typename T, int V, int TAPS, int STRIDE>
__global__ void __launch_bounds__(256, 2) depthwise(
    const T* __restrict__ dy, const T* __restrict__ filter, const T* __restrict__ addend, T* __restrict__ dx,
    unsigned int rows, unsigned int channels, Axes axes, Divisor across, Divisor vectors, Divisor taps) {
  constexpr int LEFT = (TAPS - 1) / STRIDE, WINDOW = LEFT + (PIXELS - 1) / STRIDE + 1;
  extern __shared__ __align__(16) unsigned char memory[];
  auto* const weights = reinterpret_cast<Wide<T>*>(memory);  // [tap][channel of the slice]
  const unsigned int slice = vectors.value * V, begin = blockIdx.y * slice, here = min(slice, channels - begin);
  const unsigned int lane = quotient(threadIdx.x, vectors), channel = remainder(threadIdx.x, lane, vectors) * V;
  const unsigned int lanes = quotient(blockDim.x, vectors), place = blockIdx.x * lanes + lane, row = quotient(place, across);
  const bool exists = lane < lanes && row < rows && channel < here;
  const int first = remainder(place, row, across) * PIXELS - axes.padding[2] % STRIDE;
  const int left = (first + axes.padding[2]) / STRIDE - LEFT;
  const unsigned int plane = quotient(row, axes.size[1]), image = quotient(plane, axes.size[0]);
  const Reach depth(axes, 0, remainder(plane, image, axes.size[0])), height(axes, 1, remainder(row, plane, axes.size[1]));
  for (unsigned int i = threadIdx.x; i < here * taps.value; i += blockDim.x) {
    const unsigned int from = quotient(i, taps);
    weights[remainder(i, from, taps) * slice + from] = widen(filter[static_cast<long long>(begin) * taps.value + i]);
  }
  __syncthreads();
  if (!exists) return;
  Wide<T> total[PIXELS][V] = {};
  for (int i = 0; i < depth.count; ++i) {
    const int tap_i = depth.tap + i * static_cast<int>(axes.step[0].value), d = depth.place - i * axes.move[0];
    for (int j = 0; j < height.count; ++j) {
      const int tap_j = height.tap + j * static_cast<int>(axes.step[1].value), h = height.place - j * axes.move[1];
      const long long line = (static_cast<long long>(image) * axes.out[0] + d) * axes.out[1] + h;
      const T* const from = dy + (line * axes.out[2] + left) * channels + begin + channel;
      const Wide<T>* const by = weights + (tap_i * axes.kernel[1] + tap_j) * TAPS * slice + channel;
      VectorWord<T, V> window[WINDOW] = {};
#pragma unroll
      for (int w = 0; w < WINDOW; ++w) {
        const unsigned int column = left + w;
        if (column < static_cast<unsigned int>(axes.out[2])) window[w] = fetch<T, V>(from + w * channels);
      }
#pragma unroll
      for (int tap = 0; tap < TAPS; ++tap) {
        Wide<T> weight[V];
        constexpr int W = V * sizeof(Wide<T>) < 16 ? V : 16 / sizeof(Wide<T>);
#pragma unroll
        for (int v = 0; v < V; v += W) {
          *reinterpret_cast<Vector<Wide<T>, W>*>(weight + v) = load<Wide<T>, W>(by + tap * slice + v);
        }
#pragma unroll
        for (int pixel = 0; pixel < PIXELS; ++pixel) {
          if ((pixel - tap) % STRIDE != 0) continue;
          const Vector<T, V> given = as_vector<T, V>(window[LEFT + (pixel - tap) / STRIDE]);
#pragma unroll
          for (int v = 0; v < V; ++v) total[pixel][v] += widen(given.at[v]) * weight[v];
        }
      }
    }
  }
#pragma unroll
  for (int pixel = 0; pixel < PIXELS; ++pixel) {
    const int column = first + pixel;
    if (column < 0 || column >= static_cast<int>(axes.size[2].value)) continue;
    const long long to = (static_cast<long long>(row) * axes.size[2].value + column) * channels + begin + channel;
    Vector<T, V> result = {};
    if (addend != nullptr) result = load<T, V>(addend + to);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      result.at[v] = narrow<T>(addend != nullptr ? total[pixel][v] + widen(result.at[v]) : total[pixel][v]);
    }
    store<T, V>(dx + to, result);
  }
}
