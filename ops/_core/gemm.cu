// d = a b (+ addend), batched over groups and with the depth shared among `splits`, from sm_80 on.
//
// A matrix is read through a View: its columns (or, for b stored by rows, its depth) run over images
// that lie apart, so that (N, C, P) tensors need no transposition. 128 x 128 results a block, a
// pipeline of four stages, the result through shared memory so that rows leave as whole lines.

#include "divide.cuh"
#include "mma.cuh"

struct View {  // element (row, j) lies at j / post * image + row * row_stride + j % post
  long long image, row, group, split;  // strides in elements
  Divisor post;
};

struct Size {
  int rows, columns, depth;  // of one group
  int share;                 // of the depth, for each split
  Divisor row_tiles;
};

__device__ __forceinline__ long long place(const View& view, int row, int j) {
  const unsigned int image = quotient(j, view.post);
  return image * view.image + row * view.row + remainder(j, image, view.post);
}

#if __CUDA_ARCH__ >= 800

constexpr int STAGES = 4;

// One tile of a stage. ALONG_DEPTH: stored (TILE, depth) in memory, rows of the view from `first`; else
// (depth, TILE), columns of the view from `first`.
template <typename T, int V, bool ALONG_DEPTH>
__device__ __forceinline__ void fetch(T* tile, const T* from, const View& view, int first, int end, int k, int k_end) {
  constexpr int LENGTH = ALONG_DEPTH ? DEPTH<T> : TILE, PACKS = LENGTH / V;
  constexpr int ROWS = ALONG_DEPTH ? TILE : DEPTH<T>, STEP = MMA_THREADS / PACKS, LINE = ALONG_DEPTH ? ALONG<T> : ACROSS;
  const int pack = threadIdx.x % PACKS * V, row = threadIdx.x / PACKS;
  const int column = (ALONG_DEPTH ? k : first) + pack, column_end = ALONG_DEPTH ? k_end : end;
  const int top = (ALONG_DEPTH ? first : k) + row, bottom = ALONG_DEPTH ? end : k_end;
  const long long start = column < column_end ? place(view, top, column) : 0;
#pragma unroll
  for (int i = 0; i < ROWS; i += STEP) {
    const bool valid = column < column_end && top + i < bottom;
    copy_async<T, V>(tile + (row + i) * LINE + pack, from + (valid ? start + i * view.row : 0), valid);
  }
}

// T: type of a and b; O: of the result and the addend; VA, V: elements of one access to a, and to b and d.
template <typename T, typename O, bool A_ALONG, bool B_ALONG, int VA, int V, int VD, int PARTS>
__global__ void __launch_bounds__(MMA_THREADS, A_ALONG && B_ALONG ? 1 : 2) gemm(
    const T* __restrict__ a, const T* __restrict__ b, const O* __restrict__ addend, O* __restrict__ d, View of_a,
    View of_b, View of_d, Size size) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* const tiles = reinterpret_cast<T*>(memory);
  const int column_tile = quotient(blockIdx.x, size.row_tiles);
  const int row = remainder(blockIdx.x, column_tile, size.row_tiles) * TILE, column = column_tile * TILE;
  const int k = blockIdx.z * size.share, k_end = min(k + size.share, size.depth);
  a += blockIdx.y * of_a.group;
  b += blockIdx.y * of_b.group;
  const auto start = [&](int stage) {
    T* const tile = tiles + stage % STAGES * 2 * TILE_ELEMENTS<T>;
    const int from = k + stage * DEPTH<T>;
    fetch<T, VA, A_ALONG>(tile, a, of_a, row, size.rows, from, k_end);
    fetch<T, V, B_ALONG>(tile + TILE_ELEMENTS<T>, b, of_b, column, size.columns, from, k_end);
  };
  const int stages = (k_end - k + DEPTH<T> - 1) / DEPTH<T>;
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < stages) start(stage);
    commit();
  }
  const int warp = threadIdx.x / 32, warp_row = warp / 4 * WARP_ROWS, warp_column = warp % 4 * WARP_COLUMNS;
  Accumulators sum;
  for (int stage = 0; stage < stages; ++stage) {
    wait_for_all_but<STAGES - 2>();
    __syncthreads();
    if (stage + STAGES - 1 < stages) start(stage + STAGES - 1);
    commit();
    const T* const tile = tiles + stage % STAGES * 2 * TILE_ELEMENTS<T>;
    multiply<A_ALONG, B_ALONG, PARTS>(sum, tile, tile + TILE_ELEMENTS<T>, warp_row, warp_column);
  }
  wait_for_all_but<0>();
  __syncthreads();
  float* const result = reinterpret_cast<float*>(memory);
  lay_out(result, sum, warp_row, warp_column);
  __syncthreads();
  constexpr int PACKS = TILE / VD, STEP = MMA_THREADS / PACKS;
  const int j = threadIdx.x % PACKS * VD, top = threadIdx.x / PACKS;
  if (column + j >= size.columns) return;
  const long long to = blockIdx.y * of_d.group + blockIdx.z * of_d.split + place(of_d, row + top, column + j);
#pragma unroll 8
  for (int i = 0; i < TILE; i += STEP) {
    if (row + top + i >= size.rows) return;
    const float* const from = result + (top + i) * ACROSS + j;
    Pack<O, VD> pack;
    if (addend != nullptr) pack = load<O, VD>(addend + to + i * of_d.row);
#pragma unroll
    for (int part = 0; part < VD; ++part) {
      pack.at[part] = narrow<O>(addend != nullptr ? from[part] + widen(pack.at[part]) : from[part]);
    }
    store<O, VD>(d + to + i * of_d.row, pack);
  }
}

#else

template <typename T, typename O, bool A_ALONG, bool B_ALONG, int VA, int V, int VD, int PARTS>
__global__ void gemm(const T*, const T*, const O*, O*, View, View, View, Size) {
  __trap();  // older devices take the product of their BLAS
}

#endif

// to = sum of `splits` partial results of `size` elements each, in order.
template <typename O>
__global__ void add_splits(const float* __restrict__ partial, O* __restrict__ to, long long size, int splits) {
  for (long long index = blockIdx.x * 256LL + threadIdx.x; index < size; index += gridDim.x * 256LL) {
    float total = partial[index];
    for (int split = 1; split < splits; ++split) total += partial[split * size + index];
    to[index] = narrow<O>(total);
  }
}
