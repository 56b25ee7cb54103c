// View of a tensor as a matrix whose columns run over separate images.
#pragma once
#include "divide.cuh"

struct View {  // element (row, j) has offset j / post * image + row * row_stride + j % post
  long long image, row, group, split;  // strides in elements
  Divisor post;
};

__device__ __forceinline__ long long view_offset(const View& view, int row, int j) {
  const unsigned int image = quotient(j, view.post);
  return image * view.image + row * view.row + remainder(j, image, view.post);
}
