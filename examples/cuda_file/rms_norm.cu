// RMS normalization of the last axis: one thread block per row.
extern "C" __global__ void rms_norm(const float* x, const float* weight, float* out, int columns, float eps) {
  __shared__ float partial[256];
  const long long row = static_cast<long long>(blockIdx.x) * columns;
  float squares = 0;
  for (int column = threadIdx.x; column < columns; column += 256) squares += x[row + column] * x[row + column];
  partial[threadIdx.x] = squares;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  const float scale = rsqrtf(partial[0] / columns + eps);
  for (int column = threadIdx.x; column < columns; column += 256)
    out[row + column] = x[row + column] * scale * weight[column];
}
