// conv_data_grad without columns: dy is repacked once, and every tap of the filter reads it from shared memory, sm_80 on.
//
// `prepare` repacks dy as lines of one pixel's channels with margins of zeros, so that a tap is a constant distance in
// lines, and packs the filter by stages. `convolve` loads the patch of lines that its pixels touch, for a chunk of
// channels, once for all taps. With strides, a tile has pixels of one residue class, which have common taps. If a class
// has few channels, all classes are rows of one product.
//
// float32 is split into two halves of 11 bits each, and three of the four products are summed. Powers of two scale the
// largest of each row of the filter, and of each line, to [2^14, 2^15): values within 2^-16 of it lose nothing, the
// error of smaller ones is at most 2^-40 of it, and an infinite value gives NaN. The products of 16 channels are summed
// separately and then added with rounding, as tensor cores truncate.

#include "gather_plan.cuh"
#include "gather_prepare.cuh"
#include "mma.cuh"

#if __CUDA_ARCH__ >= 800

template <int J>
__device__ __forceinline__ void load_columns(unsigned int (&to)[J][2], const unsigned int (&from)[J / 2], int piece) {
#pragma unroll
  for (int j = 0; j < J; j += 2) {
    unsigned int four[4];
    ldmatrix<false>(four, from[j / 2] ^ piece);
    to[j][0] = four[0], to[j][1] = four[1], to[j + 1][0] = four[2], to[j + 1][1] = four[3];
  }
}

// Multiplies one tap of one chunk. from: this lane's lines; filter: its row; scale: of the columns that this lane sums.
template <int I, int J>
__device__ __forceinline__ void multiply_tap(
    Sums<I, J>& sum, const unsigned int (&from)[J / 2], const unsigned char* filter, int swizzled,
    const float (&scale)[J][2], const float*) {
  const __half* const halves = nullptr;
  unsigned int high_b[J][2], low_b[J][2];
  load_columns<J>(high_b, from, 0);
  load_columns<J>(low_b, from, 32);
#pragma unroll
  for (int i = 0; i < I; ++i) {
    unsigned int high[4], low[4];
    ldmatrix<false>(high, filter + i * 16 * LINE + swizzled);
    ldmatrix<false>(low, filter + i * 16 * LINE + (swizzled ^ 32));
    float step[J][4] = {};  // consecutive products have different columns, and so are independent
#pragma unroll
    for (int j = 0; j < J; ++j) mma_m16n8k16(step[j], low, high_b[j], halves);
#pragma unroll
    for (int j = 0; j < J; ++j) mma_m16n8k16(step[j], high, low_b[j], halves);
#pragma unroll
    for (int j = 0; j < J; ++j) mma_m16n8k16(step[j], high, high_b[j], halves);
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        sum.at[i][j][part] = fmaf(step[j][part], scale[j][part % 2], sum.at[i][j][part]);
      }
  }
}

template <int I, int J, typename T>
__device__ __forceinline__ void multiply_tap(
    Sums<I, J>& sum, const unsigned int (&from)[J / 2], const unsigned char* filter, int swizzled,
    const float (&)[J][2], const T* type) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    unsigned int b[J][2];
    load_columns<J>(b, from, 32 * k);
#pragma unroll
    for (int i = 0; i < I; ++i) {
      unsigned int a[4];
      ldmatrix<false>(a, filter + i * 16 * LINE + (swizzled ^ 32 * k));
#pragma unroll
      for (int j = 0; j < J; ++j) mma_m16n8k16(sum.at[i][j], a, b[j], type);
    }
  }
}

// Sequence of stages: chunk by chunk, `stage_taps` taps each; the last stage of a chunk may have fewer.
struct StageCursor {
  int chunk, tap = 0, slot = 0, patch = 0;
  __device__ __forceinline__ explicit StageCursor(int chunk) : chunk(chunk) {}
  __device__ __forceinline__ void next(const Plan& plan, int taps) {
    slot = slot + 1 == RING ? 0 : slot + 1;
    tap += plan.stage_taps;
    if (tap < taps) return;
    tap = 0;
    ++chunk;
    patch = patch + 1 == plan.patches ? 0 : patch + 1;
  }
};

// Adds the partial results of all splits of a tile, in order, in the last block to arrive; returns false in the others.
template <int THREADS, int I, int J>
__device__ __forceinline__ bool add_splits(Sums<I, J>& sum, float4* partial, unsigned int* counter, int splits) {
  __shared__ unsigned int arrived;
  constexpr int SIZE = I * J * THREADS;
  float4* const mine = partial + blockIdx.z * SIZE + threadIdx.x;
#pragma unroll
  for (int i = 0; i < I * J; ++i) {
    const float(&at)[4] = sum.at[i / J][i % J];
    mine[i * THREADS] = make_float4(at[0], at[1], at[2], at[3]);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    arrived = atomicAdd(counter, 1u);
    __threadfence();
  }
  __syncthreads();
  if (arrived != splits - 1) return false;
  __threadfence();
  if (threadIdx.x == 0) *counter = 0;  // for the next launch
  sum = Sums<I, J>();
  for (int split = 0; split < splits; ++split) {
    const float4* const from = partial + split * SIZE + threadIdx.x;
#pragma unroll
    for (int i = 0; i < I * J; ++i) {
      const float4 part = __ldcg(from + i * THREADS);
      float(&at)[4] = sum.at[i / J][i % J];
      at[0] += part.x, at[1] += part.y, at[2] += part.z, at[3] += part.w;
    }
  }
  return true;
}

// convolve: R x Q warps compute a tile of 16 I R channels of dx by 8 J Q pixels of one pass.
// Layout   lines and packed filter as `prepare` writes them
// Grid     tiles of columns · passes · tiles of rows × groups × splits, each with a share of the chunks
// Block    32 R Q            Writes  dx; with splits, partial results and arrival counters, which it leaves zero
// Why      dy is read once per tile and chunk, for all taps
// G: unrolled taps per stage if blocks share a depth; 0 if one block has all of it: enough blocks are then resident to
// hide latency, and the short loop is faster. With 4, the last stage of a chunk may have fewer.
template <typename T, int R, int Q, int I, int J, int G>
__global__ void __launch_bounds__(32 * R * Q, J == 8 || (R == 2 && G > 0) ? 2 : 3) convolve(
    const uint4* __restrict__ lines, const float* __restrict__ scales, const uint4* __restrict__ packed,
    const float* __restrict__ row_scales, const T* __restrict__ addend, T* __restrict__ dx,
    float4* __restrict__ partial, unsigned int* __restrict__ counters, const __grid_constant__ Plan plan) {
  constexpr int THREADS = 32 * R * Q, ROWS = 16 * I * R, COLUMNS = 8 * J * Q, PIECES = LINE / 16;
  constexpr int PITCH = COLUMNS + 8;
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ int shifts[MOST_TAPS];
  const int tile = blockIdx.x / plan.row_tiles, row_tile = blockIdx.x - tile * plan.row_tiles;
  const int column_tile = tile / plan.passes;
  const Pass& pass = plan.pass[tile - column_tile * plan.passes];
  if (column_tile >= pass.tiles || (pass.taps == 0 && blockIdx.z > 0)) return;
  const int unit = quotient(column_tile, pass.unit_tiles);
  const int offset = remainder(column_tile, unit, pass.unit_tiles) * COLUMNS;
  const int first = unit * pass.unit + offset, columns = min(pass.unit - offset, COLUMNS);
  const int first_chunk = blockIdx.z * plan.share, chunks = min(plan.share, plan.chunks - first_chunk);
  const int stages = chunks * ((pass.taps + plan.stage_taps - 1) / plan.stage_taps);
  const int least = pass.taps > 0 ? least_distance(plan, pass) : 0;
  const int start = (Pixel(pass, first).line(plan) + least) / 8 * 8;  // first line of the patch

  unsigned char* const filters = memory + plan.patches * plan.patch * (LINE + 4);
  const int filter_bytes = (G == 0 ? plan.stage_taps : G) * ROWS * LINE, patch_bytes = plan.patch * LINE;
  float* const patch_scales = reinterpret_cast<float*>(memory + plan.patches * patch_bytes);
  const uint4* const from_lines =
      lines + (static_cast<long long>(blockIdx.y) * plan.chunks * plan.lines + start) * PIECES;
  const float* const from_scales = scales + static_cast<long long>(blockIdx.y) * plan.chunks * plan.lines + start;
  const long long group_lines = static_cast<long long>(plan.chunks) * pass.taps * plan.row_tiles * ROWS;
  const uint4* const from_filter = packed + (pass.filter + blockIdx.y * group_lines + row_tile * ROWS) * PIECES;

  const auto taps_of = [&](const StageCursor& cursor) {
    return G == 0 || G == 4 ? min(plan.stage_taps, pass.taps - cursor.tap) : G;
  };
  const auto load_stage = [&](const StageCursor& cursor) {
    if (cursor.tap == 0) {
      uint4* const to = reinterpret_cast<uint4*>(memory + cursor.patch * patch_bytes);
      const uint4* const from = from_lines + static_cast<long long>(cursor.chunk) * plan.lines * PIECES;
      for (int i = threadIdx.x; i < plan.patch * PIECES; i += THREADS) load_async<uint4, 1>(to + i, from + i, true);
      if constexpr (sizeof(T) == 4) {
        float* const scale_to = patch_scales + cursor.patch * plan.patch;
        const float* const scale_from = from_scales + static_cast<long long>(cursor.chunk) * plan.lines;
        for (int i = threadIdx.x * 4; i < plan.patch; i += THREADS * 4) {
          load_async<float, 4>(scale_to + i, scale_from + i, true);
        }
      }
    }
    uint4* const to = reinterpret_cast<uint4*>(filters + cursor.slot * filter_bytes);
    const int stride = plan.row_tiles * ROWS * PIECES, taps = taps_of(cursor);
    const uint4* const from = from_filter + static_cast<long long>(cursor.chunk * pass.taps + cursor.tap) * stride;
    const auto copy = [&](int i) {
      load_async<uint4, 1>(to + i, from + i / (ROWS * PIECES) * stride + i % (ROWS * PIECES), true);
    };
    if constexpr (G == 0) {
#pragma unroll 4
      for (int i = threadIdx.x; i < taps * ROWS * PIECES; i += THREADS) copy(i);
    } else {
#pragma unroll
      for (int at = 0; at < G * ROWS * PIECES; at += THREADS) {
        if (at + threadIdx.x < taps * ROWS * PIECES) copy(at + threadIdx.x);
      }
    }
  };

  for (int tap = threadIdx.x; tap < pass.taps; tap += THREADS) {
    int to[AXES];
    reach(to, plan, pass, tap);
    shifts[tap] = distance(plan, to) - least;
  }
  StageCursor ahead(first_chunk), cursor(first_chunk);
#pragma unroll
  for (int stage = 0; stage < RING - 1; ++stage) {
    if (stage < stages) {
      load_stage(ahead);
      ahead.next(plan, pass.taps);
    }
    cp_async_commit_group();
  }
  if constexpr (sizeof(T) == 2) {  // float32 has no registers for it
    if (addend != nullptr && plan.last && blockIdx.z == 0) {
      request_addend<THREADS>(addend, plan, pass, row_tile * ROWS, ROWS, first, columns);
    }
  }
  const int lane = threadIdx.x % 32, inner = lane % 8, which = lane / 8, warp = threadIdx.x / 32;
  const int warp_row = warp % R * 16 * I, warp_column = warp / R * 8 * J;
  const int begin = least - start;
  const auto relative = [&](int column) {  // line within the patch, without a tap's distance
    return Pixel(pass, first + min(column, columns - 1)).line(plan) + begin;
  };
  int column_lines[J / 2], sum_lines[J];  // lines that this lane loads; lines that it sums, two in one number
#pragma unroll
  for (int j = 0; j < J; j += 2) column_lines[j / 2] = relative(warp_column + 8 * (j + which / 2) + inner);
#pragma unroll
  for (int j = 0; j < J; ++j) {
    const int column = warp_column + 8 * j + lane % 4 * 2;
    sum_lines[j] = sizeof(T) == 4 ? relative(column) | relative(column + 1) << 16 : 0;
  }
  const int row_offset = (warp_row + which % 2 * 8 + inner) * LINE, swizzled = ((which / 2) ^ swizzle(inner)) * 16;
  Sums<I, J> sum;
  for (int stage = 0; stage < stages; ++stage) {
    cp_async_wait_group<RING - 2>();
    __syncthreads();
    if (stage + RING - 1 < stages) {
      load_stage(ahead);
      ahead.next(plan, pass.taps);
    }
    cp_async_commit_group();
    const unsigned int patch = shared_address(memory + cursor.patch * patch_bytes);
    const float* const scale_lines = patch_scales + cursor.patch * plan.patch;
    const unsigned char* const filter = filters + cursor.slot * filter_bytes + row_offset;
    const auto multiply = [&](int tap) {
      const int shift = shifts[cursor.tap + tap];
      unsigned int from[J / 2];
      float scale[J][2];
#pragma unroll
      for (int j = 0; j < J / 2; ++j) {
        const int line = column_lines[j] + shift;
        from[j] = patch + line * LINE + ((which % 2) ^ swizzle(line)) * 16;
      }
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int j = 0; j < J; ++j) {
          scale[j][0] = scale_lines[(sum_lines[j] & 0xffff) + shift];
          scale[j][1] = scale_lines[(sum_lines[j] >> 16) + shift];
        }
      }
      multiply_tap<I, J>(sum, from, filter + tap * ROWS * LINE, swizzled, scale, static_cast<const T*>(nullptr));
    };
    const int taps = taps_of(cursor);
    if constexpr (G == 0 || (sizeof(T) == 4 && I * J == 16)) {  // limited by the registers of the largest float32 tile
#pragma unroll 1
      for (int tap = 0; tap < taps; ++tap) multiply(tap);
    } else {
#pragma unroll
      for (int tap = 0; tap < G; ++tap) {
        if (tap < taps) multiply(tap);
      }
    }
    cursor.next(plan, pass.taps);
  }
  cp_async_wait_group<0>();
  if constexpr (G > 0) {
    const long long all = static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x;
    float4* const mine = partial + all * plan.splits * (I * J * THREADS);
    if (stages > 0 && !add_splits<THREADS>(sum, mine, counters + all, plan.splits)) return;
  }
  __syncthreads();
  float* const result = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int i = 0; i < I; ++i)
#pragma unroll
    for (int j = 0; j < J; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const to = result + (warp_row + 16 * i + lane / 4 + 8 * half) * PITCH + warp_column + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(sum.at[i][j][2 * half], sum.at[i][j][2 * half + 1]);
      }
  __syncthreads();
  const int group_pass = blockIdx.y * plan.passes + (tile - column_tile * plan.passes);
  const int each = plan.per_group.value;
  const long long area = static_cast<long long>(plan.full[0]) * plan.full[1] * plan.full[2];
  const float* const undo = row_scales + static_cast<long long>(group_pass) * plan.rows;
  // channels first: a thread has one column, so that neighbouring threads store neighbouring pixels; else one row
  constexpr int FAST = THREADS < COLUMNS ? THREADS : COLUMNS;
  static_assert(COLUMNS % FAST == 0 && THREADS % FAST == 0 && THREADS % ROWS == 0, "whole rows");
  if (!plan.last) {
#pragma unroll 1
    for (int j = threadIdx.x % FAST; j < columns; j += FAST) {
      const Pixel pixel(pass, first + j);
      const long long from = (static_cast<long long>(pixel.image) * plan.channels + blockIdx.y * each) * area;
      const auto put = [&](int i, int channel, int dx_offset) {
        const long long at = from + channel * area + dx_offset;
        float value = result[i * PITCH + j];
        if constexpr (sizeof(T) == 4) value *= stages > 0 ? undo[row_tile * ROWS + i] : 0;
        if (addend != nullptr) value += widen(addend[at]);
        dx[at] = narrow<T>(value);
      };
      const int end = min(plan.rows - row_tile * ROWS, ROWS);
      if (plan.merged) {
#pragma unroll 1
        for (int i = threadIdx.x / FAST; i < end; i += THREADS / FAST) {
          const int row = row_tile * ROWS + i, part = quotient(row, plan.per_group);
          int residue[AXES];
          residues(residue, plan, pass, part);
          const int dx_offset = pixel.dx_offset(plan, residue);
          if (dx_offset >= 0) put(i, remainder(row, part, plan.per_group), dx_offset);
        }
      } else {
        const int dx_offset = pixel.dx_offset(plan, pass.residue);
#pragma unroll 8
        for (int i = threadIdx.x / FAST; i < end; i += THREADS / FAST) put(i, row_tile * ROWS + i, dx_offset);
      }
    }
    return;
  }
  constexpr int DOWN = THREADS < ROWS ? THREADS : ROWS;
#pragma unroll 1
  for (int i = threadIdx.x % DOWN; i < ROWS; i += DOWN) {
    const int row = row_tile * ROWS + i;
    if (row >= plan.rows) return;
    const int part = quotient(row, plan.per_group), channel = remainder(row, part, plan.per_group);
    int residue[AXES];
    residues(residue, plan, pass, part);
    const float scale = sizeof(T) == 4 && stages > 0 ? undo[row] : 1;
#pragma unroll 4
    for (int j = threadIdx.x / DOWN; j < columns; j += THREADS / DOWN) {
      const Pixel pixel(pass, first + j);
      const int dx_offset = pixel.dx_offset(plan, residue);
      if (dx_offset < 0) continue;
      const long long at = (pixel.image * area + dx_offset) * plan.channels + blockIdx.y * each + channel;
      float value = result[i * PITCH + j] * scale;
      if (addend != nullptr) value += widen(addend[at]);
      dx[at] = narrow<T>(value);
    }
  }
}

#else

template <typename T, int R, int Q, int I, int J, int G>
__global__ void convolve(
    const uint4*, const float*, const uint4*, const float*, const T*, T*, float4*, unsigned int*, Plan) {
  __trap();  // older devices use columns and a product
}

#endif
