// Position of a sample of a deformable convolution: it counts strictly inside (-1, H) x (-1, W), corners outside the
// image are 0; comparisons are false for NaN.
#pragma once
#include "divide.cuh"
#include "vector.cuh"

DEFINE_Conv;  // of cuda.py

template <typename A>
struct Sample {
  int at[4];  // offsets of the corners in a plane, -1 if outside: upper left, upper right, lower left, lower right
  A lh, lw, mask;

  __device__ __forceinline__ A weight(int corner) const {
    return (corner / 2 ? lh : A(1) - lh) * (corner % 2 ? lw : A(1) - lw);
  }
};

template <typename T>
__device__ __forceinline__ Sample<Wide<T>> find(
    const Conv& conv, const T* offset, const T* mask, int image, int group, int tap, int pixel) {
  using A = Wide<T>;
  const int pixels = conv.pixels.value;
  const int i = quotient(tap, conv.kernel_width), j = remainder(tap, i, conv.kernel_width);
  const int row = quotient(pixel, conv.out_width), column = remainder(pixel, row, conv.out_width);
  const int groups = conv.channels / conv.per_group;
  const long long entry = static_cast<long long>(image * groups + group) * conv.taps + tap;
  const A h = A(row * conv.stride_h - conv.padding_h + i * conv.dilation_h) + widen(offset[2 * entry * pixels + pixel]);
  const A w =
      A(column * conv.stride_w - conv.padding_w + j * conv.dilation_w) + widen(offset[(2 * entry + 1) * pixels + pixel]);
  Sample<A> found;
  found.mask = mask == nullptr ? A(1) : A(widen(mask[entry * pixels + pixel]));
  const bool inside = h > A(-1) && h < A(conv.height) && w > A(-1) && w < A(conv.width);
  const A top = inside ? floor(h) : A(0), left = inside ? floor(w) : A(0);
  found.lh = inside ? h - top : A(0);
  found.lw = inside ? w - left : A(0);
  const int y = static_cast<int>(top), x = static_cast<int>(left);
#pragma unroll
  for (int corner = 0; corner < 4; ++corner) {
    const int cy = y + corner / 2, cx = x + corner % 2;
    const bool valid = inside && cy >= 0 && cy < conv.height && cx >= 0 && cx < conv.width;
    found.at[corner] = valid ? cy * conv.width + cx : -1;
  }
  return found;
}
