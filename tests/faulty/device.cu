// Kernels that go wrong, named after how they do.

extern "C" __global__ void illegal_access(float* y) { *reinterpret_cast<float*>(0x10) = y[0]; }
extern "C" __global__ void device_assert(float* y) { assert(y == nullptr); }
extern "C" __global__ void endless_kernel(volatile float* y) { while (y[0] != 12345.0f) {} }
extern "C" __global__ void overrun(float* y, unsigned int length) { y[length + threadIdx.x] = 1.0f; }
