// Observations minus their means, in a unit that keeps their squares within range, and the gradient. One block of 256
// threads has one item of n rows and d columns: a lane has a column, and eight warps share the rows. Shared memory: 8
// x 32 + 8 doubles.
#include "spectral.cuh"

constexpr int kWarps = 8, kThreads = 32 * kWarps;

// Returns to every warp the sum over all warps of each lane's number.
__device__ inline double sum_warps(double value, double* scratch) {
  const int lane = threadIdx.x % 32;
  scratch[threadIdx.x] = value;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += scratch[warp * 32 + lane];
  __syncthreads();
  return sum;
}

// Returns the largest number of the block to all threads.
__device__ inline double max_block(double value, double* scratch) {
  value = max_lanes(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) value = scratch[warp] > value ? scratch[warp] : value;
  __syncthreads();
  return value;
}

// mean, centred, unit := the means of the columns, (X - mean) / unit and the power of two at or below the largest |x - mean|, or
// `least` if that is larger; 1 if all is zero. Where a number is not finite, or where degrees > 0 and a variance with that divisor
// overflows, centred is NaN. Results are contiguous.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    centre(const T* X, Index x_item, Index x_row, Index x_col, T* mean, T* centred, T* unit, double least, Index degrees, Index n,
           Index d) {
  double* const scratch = shared_memory<double>();
  const Index item = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Matrix<const T> source{X + item * x_item, x_row, x_col};
  T* const means = mean + item * d;
  T* const target = centred + item * n * d;
  double largest = least, spoilt = 0;
  for (Index begin = 0; begin < d; begin += 32) {
    const Index c = begin + lane;
    double sum = 0;
    if (c < d)
      for (Index r = warp; r < n; r += kWarps) sum += static_cast<double>(source(r, c));
    const T middle = T(sum_warps(sum, scratch) / static_cast<double>(n));
    if (c >= d) continue;
    if (warp == 0) means[c] = middle;
    for (Index r = warp; r < n; r += kWarps) {
      const T value = source(r, c) - middle;
      target[r * d + c] = value;
      const double size = absolute(static_cast<double>(value));
      largest = size > largest ? size : largest;
      if (!(value - value == T(0))) spoilt = 1;
    }
  }
  largest = max_block(largest, scratch);
  spoilt = max_block(spoilt, scratch);
  const double limit = sizeof(T) == 8 ? 1000.0 : 120.0;
  double exponent = largest > 0 ? floor(log2(largest)) : 0.0;
  exponent = exponent > limit ? limit : exponent < -limit ? -limit : exponent;
  const T power = T(exp2(exponent));
  if (threadIdx.x == 0) unit[item] = power;

  // An entry is below 2 in this unit, so that a variance is at most this.
  const T most = degrees > 0 ? power * power * T(4.0 * static_cast<double>(n) / static_cast<double>(degrees)) : T(0);
  const bool may_overflow = !(most - most == T(0));
  for (Index begin = 0; begin < d; begin += 32) {
    const Index c = begin + lane;
    double sum = 0;
    if (c < d)
      for (Index r = warp; r < n; r += kWarps) {
        const T value = target[r * d + c] / power;
        target[r * d + c] = value;
        sum += static_cast<double>(value) * static_cast<double>(value);
      }
    if (!may_overflow) continue;
    const T variance = T(sum_warps(sum, scratch) / static_cast<double>(degrees)) * (power * power);
    if (c < d && !(variance - variance == T(0))) spoilt = 1;
  }
  if (may_overflow) spoilt = max_block(spoilt, scratch);
  if (spoilt == 0) return;
  for (Index begin = 0; begin < d; begin += 32)
    for (Index r = warp; r < n; r += kWarps)
      if (begin + lane < d) target[r * d + begin + lane] = T(0) / T(0);
}

// gX := G - (column sums of G - g_mean) / n, G = g / unit. g_mean, contiguous, may be null; gX is contiguous.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    centre_vjp(T* gX, const T* g, Index g_item, Index g_row, Index g_col, const T* g_mean, const T* unit, Index n, Index d) {
  double* const scratch = shared_memory<double>();
  const Index item = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Matrix<const T> source{g + item * g_item, g_row, g_col};
  const T inverse = T(1) / unit[item];
  for (Index begin = 0; begin < d; begin += 32) {
    const Index c = begin + lane;
    double sum = 0;
    if (c < d)
      for (Index r = warp; r < n; r += kWarps) sum += static_cast<double>(source(r, c) * inverse);
    sum = sum_warps(sum, scratch);
    if (c >= d) continue;
    if (g_mean) sum -= static_cast<double>(g_mean[item * d + c]);
    const T shift = T(sum / static_cast<double>(n));
    for (Index r = warp; r < n; r += kWarps) gX[(item * n + r) * d + c] = source(r, c) * inverse - shift;
  }
}
