// Plan of the fused deformable convolution: sizes, tiles and the sequence of stages.
#pragma once
#include "sampling.cuh"

constexpr int CONSUMERS = 256, PRODUCERS = 256;  // threads; consumers have the lower indices
constexpr int LINE = 128;      // bytes of a row of a stage: 64 elements of 16 bits, or HALVES halves of each float
constexpr int LANES = 8;       // lanes per sample, 16 bytes of channels each
constexpr int OCTETS = PRODUCERS / LANES;
constexpr int AHEAD = 2;       // samples in flight per thread
constexpr int LOADS = 16;      // loads of the filter in flight per thread
constexpr int ALL_CONSUMERS = 1;  // named barrier
constexpr int ROW_SCALES = 1024;  // bytes of a block's row scales

constexpr int REGISTERS = 128;  // average registers per thread
template <typename T, int HALVES, int N>  // registers per producer thread; float32 has two sets of sums
constexpr int SAMPLING = sizeof(T) == 2 ? 152 : HALVES == 2 ? 96 : N == 128 ? 104 : 112;

DEFINE_Plan;  // of fused_layout.py

// Pixel of an image at position `index` in the order of strips.
__device__ __forceinline__ int pixel_at(const Plan& plan, int index) {
  const int strip = quotient(index, plan.strip_pixels), within = remainder(index, strip, plan.strip_pixels);
  const int width = plan.conv.out_width.value, height = plan.conv.pixels.value / width;
  const int rows = min(plan.strip, height - strip * plan.strip), column = within / rows;
  return (strip * plan.strip + within - column * rows) * width + column;
}

template <typename T>
constexpr int VECTOR = 16 / sizeof(T);
template <int HALVES>
constexpr int DEPTH = LINE / 2 / HALVES;  // channels of a stage
template <typename T, int HALVES>
constexpr int READS = DEPTH<HALVES> / LANES / VECTOR<T>;  // reads of a lane per stage and corner

// Channel of a stage that is the j-th of the part-th eight, in the order of lanes that read twice.
template <typename T, int HALVES>
__device__ __forceinline__ int channel_of(int part, int j) {
  constexpr int EACH = 8 / READS<T, HALVES>;
  return j / EACH * (LANES * EACH) + part * EACH + j % EACH;
}

struct alignas(16) SamplePosition {  // upper left corner's line times 16, plus a bit for each corner inside the image
  int corner;
  float lh, lw, mask;
};

struct SampleLines {  // lines of x and weights of a sample's corners
  uint4 line;
  float4 weight;
};

// Tap and chunk of channels of a stage: a span of chunks for every tap, then the next span.
struct Step {
  int inner, tap, super;

  __device__ __forceinline__ Step(const Plan& plan, int stage) {
    const int run = stage / plan.span;
    inner = stage - run * plan.span;
    super = run / plan.conv.taps;
    tap = run - super * plan.conv.taps;
  }
  __device__ __forceinline__ int chunk(const Plan& plan) const { return super * plan.span + inner; }

  __device__ __forceinline__ void next_run(const Plan& plan) {
    inner = 0;
    if (++tap == plan.conv.taps) {
      tap = 0;
      ++super;
    }
  }
};
