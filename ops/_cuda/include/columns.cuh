// Traversal of the columns of (a, r1, b, r2, c), for kernels that write one element per element that they read.
#pragma once

DEFINE_Layout;  // of ops/_cuda/reduction/launch.py

// The columns of one thread, and its steps along them. Block (lanes, rows): lanes along c with V columns each, and every
// rows-th reduced index; grid (a b column blocks, splits). Blocks are too short for avoidable 64-bit divisions.
template <int V>
struct Columns {
  long long column, result, index, end, place;
  long long start, stride;  // of index 0, and from one to the next, where r2 is 1
  bool ours;
  long long inner = 0, inner_step = 0, step, wrap = 0, r2;

  // Starts at the first index of part `split`.
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

  // Calls `load` for every offset, several steps ahead of `use` with the result.
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
