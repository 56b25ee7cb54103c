// d = a b (+ addend), batched over groups and with the depth shared among `splits`, from sm_80 on.
//
// A matrix is read through a View: its columns (or, for b stored by rows, its depth) run over images
// that lie apart, so that (N, C, P) tensors need no transposition. SIZE x SIZE results a block, a
// pipeline of three stages, the result through shared memory so that rows leave as whole lines.

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

constexpr int STAGES = 3;

// `length` elements to the second cache: each 16 bytes once, as every request takes a turn of the multiprocessor.
template <typename T>
__device__ __forceinline__ void prefetch_to_l2(const T* from, int length) {
#if __CUDA_ARCH__ >= 900
  const unsigned long long first = reinterpret_cast<unsigned long long>(from) / 16 * 16;
  const unsigned long long end = (reinterpret_cast<unsigned long long>(from + length) + 15) / 16 * 16;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(first), "r"(static_cast<unsigned int>(end - first)));
#else
  for (int i = 0; i < length; i += 32 / sizeof(T)) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
#endif
}

// The part of a matrix that a block adds, a row a thread, image by image.
template <int SIZE, typename T>
__device__ __forceinline__ void prefetch_tile(
    const T* matrix, const View& view, int row, int rows, int column, int columns) {
  if (row + static_cast<int>(threadIdx.x) >= rows || threadIdx.x >= SIZE) return;
  const int end = min(column + SIZE, columns);
  while (column < end) {
    const unsigned int image = quotient(column, view.post), within = remainder(column, image, view.post);
    const int length = min(end - column, static_cast<int>(view.post.value - within));
    prefetch_to_l2(matrix + image * view.image + (row + threadIdx.x) * view.row + within, length);
    column += length;
  }
}

// What a thread brings of one factor in every stage: packs of V elements below each other. ALONG: the factor is
// stored (SIZE, depth), rows of the view from `first`; else (depth, SIZE), columns of the view from `first`.
template <typename T, int V, bool ALONG_DEPTH, int SIZE>
struct Fetch {
  static constexpr int LENGTH = ALONG_DEPTH ? DEPTH<T> : SIZE, PACKS = LENGTH / V;
  static constexpr int ROWS = ALONG_DEPTH ? SIZE : DEPTH<T>, STEP = MMA_THREADS / PACKS;
  static constexpr int LINE = ALONG_DEPTH ? ALONG<T> : SIZE + 8;
  const T* from;
  const View& view;
  int slot, row, column, rows, columns;  // rows, columns: from where on there is nothing

  __device__ __forceinline__ Fetch(const T* factor, const View& view, int first, int end, int k, int k_end)
      : view(view) {
    row = (ALONG_DEPTH ? first : k) + threadIdx.x / PACKS;
    column = (ALONG_DEPTH ? k : first) + threadIdx.x % PACKS * V;
    rows = ALONG_DEPTH ? end : k_end;
    columns = ALONG_DEPTH ? k_end : end;
    slot = threadIdx.x / PACKS * LINE + threadIdx.x % PACKS * V;
    from = factor + (ALONG_DEPTH ? row * view.row : column < columns ? place(view, row, column) : 0);
  }

  __device__ __forceinline__ void next(T* tile) {
    const T* source = from;
    if (ALONG_DEPTH && column < columns) source += place(view, 0, column);
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
      const bool valid = column < columns && row + i < rows;
      copy_async<T, V>(tile + slot + i * LINE, valid ? source : from, valid);
      source += STEP * view.row;
    }
    if (ALONG_DEPTH) {
      column += DEPTH<T>;
    } else {
      row += DEPTH<T>;
      from += DEPTH<T> * view.row;
    }
  }
};

// T: type of a and b; O: of the result and the addend; VA, VB, VD: elements of one access to a, b and d.
template <typename T, typename O, bool A_ALONG, bool B_ALONG, int VA, int VB, int VD, int PARTS, int SIZE>
__global__ void __launch_bounds__(MMA_THREADS, SIZE < TILE ? 3 : A_ALONG && B_ALONG ? 1 : 2) gemm(
    const T* __restrict__ a, const T* __restrict__ b, const O* __restrict__ addend, O* __restrict__ d,
    const __grid_constant__ View of_a, const __grid_constant__ View of_b, const __grid_constant__ View of_d,
    const __grid_constant__ Size size) {
  constexpr int ELEMENTS = SIZE * ALONG<T>, PITCH = SIZE + 8;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const tiles = reinterpret_cast<T*>(memory);
  const int column_tile = quotient(blockIdx.x, size.row_tiles);
  const int row = remainder(blockIdx.x, column_tile, size.row_tiles) * SIZE, column = column_tile * SIZE;
  const int k = blockIdx.z * size.share, k_end = min(k + size.share, size.depth);
  const int stages = (k_end - k + DEPTH<T> - 1) / DEPTH<T>;
  Fetch<T, VA, A_ALONG, SIZE> fetch_a(a + blockIdx.y * of_a.group, of_a, row, size.rows, k, k_end);
  Fetch<T, VB, B_ALONG, SIZE> fetch_b(b + blockIdx.y * of_b.group, of_b, column, size.columns, k, k_end);
  const auto start = [&](int stage) {
    T* const tile = tiles + stage % STAGES * 2 * ELEMENTS;
    fetch_a.next(tile);
    fetch_b.next(tile + ELEMENTS);
  };
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < stages) start(stage);
    commit();
  }
  constexpr int PACKS = SIZE / VD, STEP = MMA_THREADS / PACKS;
  const int j = threadIdx.x % PACKS * VD, top = threadIdx.x / PACKS;
  const long long to = blockIdx.y * of_d.group + blockIdx.z * of_d.split + place(of_d, row + top, column + j);
  const bool writes = column + j < size.columns;
  if (addend != nullptr) {
    prefetch_tile<SIZE>(addend + blockIdx.y * of_d.group, of_d, row, size.rows, column, size.columns);
  }
  const int warp = threadIdx.x / 32, warp_row = warp / 4 * SIZE / 2, warp_column = warp % 4 * SIZE / 4;
  Sums<SIZE / 32, SIZE / 32> sum;
  for (int stage = 0; stage < stages; ++stage) {
    wait_for_all_but<STAGES - 2>();
    __syncthreads();
    if (stage + STAGES - 1 < stages) start(stage + STAGES - 1);
    commit();
    const T* const tile = tiles + stage % STAGES * 2 * ELEMENTS;
    multiply<A_ALONG, B_ALONG, PARTS, PITCH>(sum, tile, tile + ELEMENTS, warp_row, warp_column);
  }
  wait_for_all_but<0>();
  __syncthreads();
  float* const result = reinterpret_cast<float*>(memory);
  lay_out<PITCH>(result, sum, warp_row, warp_column);
  __syncthreads();
  if (!writes) return;
#pragma unroll(VD == 1 ? 16 : 8)
  for (int i = 0; i < SIZE; i += STEP) {
    if (row + top + i >= size.rows) return;
    const float* const from = result + (top + i) * PITCH + j;
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

template <typename T, typename O, bool A_ALONG, bool B_ALONG, int VA, int V, int VD, int PARTS, int SIZE>
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
