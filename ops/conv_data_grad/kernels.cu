// conv_data_grad from columns, the product of filter and dy: each pixel of dx gathers its columns, plus an addend.
//
// Three spatial axes; missing ones, in front, have length 1. T is the type of dx, C that of the columns.

#include "divide.cuh"
#include "vector.cuh"

struct Axes {  // shape of the convolution, by spatial axis
  int kernel[3], out[3], padding[3], dilation[3];
  Divisor size[3], stride[3];
};

struct Columns {  // strides of the columns, in elements
  long long image, group, channel, tap, pixel;
};

// Index along an axis of dy that tap `i` connects to `at` of dx, or -1.
__device__ __forceinline__ int source(const Axes& axes, int axis, int at, int i) {
  const int moved = at + axes.padding[axis] - i * axes.dilation[axis];
  if (moved < 0) return -1;
  const int place = quotient(moved, axes.stride[axis]);
  return place < axes.out[axis] && place * static_cast<int>(axes.stride[axis].value) == moved ? place : -1;
}

// fold: threads gather the columns of one pixel of dx each.
// Layout   columns by Columns, dx in either data format      Grid  any      Block  256      Writes  dx
// Why      every column is read once, without atomics
template <typename T, typename C, bool CHANNELS_LAST>
__global__ void __launch_bounds__(256, 4) fold(
    const C* __restrict__ column, const T* __restrict__ addend, T* __restrict__ dx, unsigned int size, Axes axes,
    Columns strides, Divisor channels, Divisor per_group) {
  for (unsigned int index = blockIdx.x * 256u + threadIdx.x; index < size; index += gridDim.x * 256u) {
    unsigned int rest = index, channel = 0;
    if (CHANNELS_LAST) {
      rest = quotient(index, channels);
      channel = remainder(index, rest, channels);
    }
    int at[3];
#pragma unroll
    for (int axis = 2; axis >= 0; --axis) {
      const unsigned int whole = quotient(rest, axes.size[axis]);
      at[axis] = remainder(rest, whole, axes.size[axis]);
      rest = whole;
    }
    unsigned int image = rest;
    if (!CHANNELS_LAST) {
      image = quotient(rest, channels);
      channel = remainder(rest, image, channels);
    }
    const unsigned int group = quotient(channel, per_group), inner = remainder(channel, group, per_group);
    const C* const from = column + image * strides.image + group * strides.group + inner * strides.channel;
    Wide<C> total = 0;
    int tap = 0;
    for (int i = 0; i < axes.kernel[0]; ++i) {
      const int d = source(axes, 0, at[0], i);
      for (int j = 0; j < axes.kernel[1]; ++j) {
        const int h = source(axes, 1, at[1], j);
        for (int k = 0; k < axes.kernel[2]; ++k, ++tap) {
          const int w = source(axes, 2, at[2], k);
          if (d < 0 || h < 0 || w < 0) continue;
          const long long pixel = (static_cast<long long>(d) * axes.out[1] + h) * axes.out[2] + w;
          total += widen(from[tap * strides.tap + pixel * strides.pixel]);
        }
      }
    }
    if (addend != nullptr) total += widen(addend[index]);
    dx[index] = narrow<T>(total);
  }
}
