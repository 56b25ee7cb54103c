// View of a tensor as a matrix whose columns run over separate images.
#pragma once
#include "divide.cuh"

// Element (row, j) has offset j / view.post * view.image + row * view.row + j % view.post.
DEFINE_View;  // of launch.py

__device__ __forceinline__ long long view_offset(const View& view, int row, int j) {
  const unsigned int image = quotient(j, view.post);
  return image * view.image + row * view.row + remainder(j, image, view.post);
}
