// Waits for a number of clock cycles: the slowdown that `opgauge inject` plants.

extern "C" __global__ void wait(long long cycles) {
  const long long begun = clock64();
  while (clock64() - begun < cycles) {
  }
}
