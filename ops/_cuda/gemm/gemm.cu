// d = a b (+ addend), batched over groups and with the depth divided among `splits`, from sm_80 on.
//
// A matrix is read through a View: its columns (or, for a K-major b, its depth) run over separate
// images, so that (N, C, P) tensors need no transposition.

#include "add_splits.cuh"
#include "mma.cuh"
#include "view.cuh"

DEFINE_Size;  // of launch.py

#if __CUDA_ARCH__ >= 800

constexpr int STAGES = 3;

// A thread's loads of one factor: in every stage, vectors of V elements in consecutive rows. K_MAJOR: the tile is
// (SIZE, depth), rows of the view from `first`; else (depth, SIZE), columns of the view from `first`.
template <typename T, int V, bool K_MAJOR, int SIZE>
struct Fetch {
  static constexpr int LENGTH = K_MAJOR ? DEPTH<T> : SIZE, VECTORS = LENGTH / V;
  static constexpr int ROWS = K_MAJOR ? SIZE : DEPTH<T>, STEP = MMA_THREADS / VECTORS;
  static constexpr int LINE = K_MAJOR ? K_MAJOR_PITCH<T> : SIZE + 8;
  const T* from;
  const View& view;
  int slot, row, column, rows, columns;  // rows, columns: bounds of the matrix

  __device__ __forceinline__ Fetch(const T* factor, const View& view, int first, int end, int k, int k_end)
      : view(view) {
    row = (K_MAJOR ? first : k) + threadIdx.x / VECTORS;
    column = (K_MAJOR ? k : first) + threadIdx.x % VECTORS * V;
    rows = K_MAJOR ? end : k_end;
    columns = K_MAJOR ? k_end : end;
    slot = threadIdx.x / VECTORS * LINE + threadIdx.x % VECTORS * V;
    from = factor + (K_MAJOR ? row * view.row : column < columns ? view_offset(view, row, column) : 0);
  }

  __device__ __forceinline__ void next(T* tile) {
    const T* source = from;
    if (K_MAJOR && column < columns) source += view_offset(view, 0, column);
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
      const bool valid = column < columns && row + i < rows;
      load_async<T, V>(tile + slot + i * LINE, valid ? source : from, valid);
      source += STEP * view.row;
    }
    if (K_MAJOR) {
      column += DEPTH<T>;
    } else {
      row += DEPTH<T>;
      from += DEPTH<T> * view.row;
    }
  }
};

// gemm: a block computes SIZE x SIZE results of one group and split, with a pipeline of three stages.
// Layout   a (rows, depth) if A_K_MAJOR, b (columns, depth) if B_K_MAJOR, else transposed; d (rows, columns), by Views
// Grid     row tiles · column tiles × groups × splits          Block  MMA_THREADS
// Needs    vectors of VA, VB and VD elements at every access   Writes  d, or with splits float32 partials by View::split
// Why      rows of d are stored as whole cache lines, through shared memory
// T: type of a and b; O: of d and the addend. PARTS: 3 for float32 accuracy, 1 for TF32.
template <typename T, typename O, bool A_K_MAJOR, bool B_K_MAJOR, int VA, int VB, int VD, int PARTS, int SIZE>
__global__ void __launch_bounds__(MMA_THREADS, SIZE < TILE ? 3 : A_K_MAJOR && B_K_MAJOR ? 1 : 2) gemm(
    const T* __restrict__ a, const T* __restrict__ b, const O* __restrict__ addend, O* __restrict__ d,
    const __grid_constant__ View of_a, const __grid_constant__ View of_b, const __grid_constant__ View of_d,
    const __grid_constant__ Size size) {
  constexpr int ELEMENTS = SIZE * K_MAJOR_PITCH<T>, PITCH = SIZE + 8;
  extern __shared__ __align__(16) unsigned char memory[];
  T* const tiles = reinterpret_cast<T*>(memory);
  const int column_tile = quotient(blockIdx.x, size.row_tiles);
  const int row = remainder(blockIdx.x, column_tile, size.row_tiles) * SIZE, column = column_tile * SIZE;
  const int k = blockIdx.z * size.share, k_end = min(k + size.share, size.depth);
  const int stages = (k_end - k + DEPTH<T> - 1) / DEPTH<T>;
  Fetch<T, VA, A_K_MAJOR, SIZE> fetch_a(a + blockIdx.y * of_a.group, of_a, row, size.rows, k, k_end);
  Fetch<T, VB, B_K_MAJOR, SIZE> fetch_b(b + blockIdx.y * of_b.group, of_b, column, size.columns, k, k_end);
  const auto start = [&](int stage) {
    T* const tile = tiles + stage % STAGES * 2 * ELEMENTS;
    fetch_a.next(tile);
    fetch_b.next(tile + ELEMENTS);
  };
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < stages) start(stage);
    cp_async_commit_group();
  }
  constexpr int VECTORS = SIZE / VD, STEP = MMA_THREADS / VECTORS;
  const int j = threadIdx.x % VECTORS * VD, top = threadIdx.x / VECTORS;
  const long long to = blockIdx.y * of_d.group + blockIdx.z * of_d.split + view_offset(of_d, row + top, column + j);
  const bool writes = column + j < size.columns;
  const int warp = threadIdx.x / 32, warp_row = warp / 4 * SIZE / 2, warp_column = warp % 4 * SIZE / 4;
  Sums<SIZE / 32, SIZE / 32> sum;
  for (int stage = 0; stage < stages; ++stage) {
    cp_async_wait_group<STAGES - 2>();
    __syncthreads();
    if (stage + STAGES - 1 < stages) start(stage + STAGES - 1);
    cp_async_commit_group();
    const T* const tile = tiles + stage % STAGES * 2 * ELEMENTS;
    multiply<A_K_MAJOR, B_K_MAJOR, PARTS, PITCH>(sum, tile, tile + ELEMENTS, warp_row, warp_column);
  }
  cp_async_wait_group<0>();
  __syncthreads();
  float* const result = reinterpret_cast<float*>(memory);
  store_tile<PITCH>(result, sum, warp_row, warp_column);
  __syncthreads();
  if (!writes) return;
  constexpr int PASSES = SIZE / STEP, BATCH = PASSES < 8 ? PASSES : VD == 1 ? 16 : 8;
#pragma unroll 1
  for (int i = 0; i < PASSES; i += BATCH) {
    Vector<O, VD> vectors[BATCH];  // the whole addend in flight before its first use
    const int first = row + top + i * STEP, rows = size.rows - first;
    const long long from = to + i * STEP * of_d.row;
    if (addend != nullptr) {
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        if (k * STEP < rows) vectors[k] = load<O, VD>(addend + from + k * STEP * of_d.row);
      }
    }
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      const float* const values = result + (top + (i + k) * STEP) * PITCH + j;
#pragma unroll
      for (int part = 0; part < VD; ++part) {
        vectors[k].at[part] = narrow<O>(addend != nullptr ? values[part] + widen(vectors[k].at[part]) : values[part]);
      }
      if (k * STEP < rows) store<O, VD>(d + from + k * STEP * of_d.row, vectors[k]);
    }
  }
}

#else

template <typename T, typename O, bool A_K_MAJOR, bool B_K_MAJOR, int VA, int V, int VD, int PARTS, int SIZE>
__global__ void gemm(const T*, const T*, const O*, O*, View, View, View, Size) {
  __trap();  // older devices use the BLAS
}

#endif
