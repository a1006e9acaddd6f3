// The terms of the bound of a sparse Gaussian process, each computed by one block of threads (formulas:
// _kernels/torch/sgp_bound.py). torch's operations would take some forty launches.
#include "block.cuh"

constexpr int kBoundThreads = 256;
constexpr double kLogTwoPi = 1.8378770664093454836;

// Returns the sum over the block to all its threads. Shared memory: one number per warp.
__device__ inline double sum_block(double value, double* of_warps) {
  value = sum_lanes(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (int warp = 0; warp < kBoundThreads / 32; ++warp) total += of_warps[warp];
  return total;
}

// The same for the largest value.
__device__ inline double max_block(double value, double* of_warps) {
  value = max_lanes(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  double largest = of_warps[0];
  for (int warp = 1; warp < kBoundThreads / 32; ++warp) largest = of_warps[warp] > largest ? of_warps[warp] : largest;
  return largest;
}

// out := the bound, |Y|^2 - |c|^2 / v, and the variances minus tr W. Diagonals and squares are `step` elements apart.
template <typename T>
__global__ void __launch_bounds__(kBoundThreads)
    compute_bound(T* out, const T* W, Index w_step, const T* squares, Index s_step, const T* L, Index l_step,
                  const T* c, const T* variances, const T* noise, Index U, Index k, double n) {
  double* const of_warps = shared_memory<double>();
  double explained = 0, logs = 0, solved = 0, given = 0;
  for (Index i = threadIdx.x; i < U; i += kBoundThreads) {
    explained += W[i * w_step];
    logs += log(L[i * l_step]);
  }
  for (Index i = threadIdx.x; i < U * k; i += kBoundThreads) solved += c[i] * c[i];
  for (Index i = threadIdx.x; i < k; i += kBoundThreads) given += squares[i * s_step];
  explained = sum_block(explained, of_warps);
  logs = sum_block(logs, of_warps);
  solved = sum_block(solved, of_warps);
  given = sum_block(given, of_warps);
  if (threadIdx.x > 0) return;
  const double v = noise[0], outputs = static_cast<double>(k);
  const double left = given - solved / v, unexplained = variances[0] - explained;
  out[0] = 0.5 * ((left + outputs * unexplained) / v + outputs * (n * (log(v) + kLogTwoPi) + 2.0 * logs));
  out[1] = left;
  out[2] = unexplained;
}

// out := the gradient for v, and the bound of the imprecision; I is subtracted from `inverse`, which is M^-1. `largest` says that
// pivots are reciprocal.
template <typename T>
__global__ void __launch_bounds__(kBoundThreads)
    differentiate_bound(T* out, const T* bound, T* inverse, Index i_step, const T* a, const T* g,
                        const T* pivots, Index p_step, Index largest, const T* norm, const T* noise, Index U, Index k,
                        double n, double roundings) {
  double* const of_warps = shared_memory<double>();
  double trace = 0, of_a = 0, of_g = 0, extreme = largest ? pivots[0] : -pivots[0];
  for (Index i = threadIdx.x; i < U; i += kBoundThreads) {
    const T entry = inverse[i * i_step], pivot = pivots[i * p_step];
    const double size = largest ? pivot : -pivot;
    trace += entry;
    inverse[i * i_step] = entry - T(1);
    extreme = size > extreme ? size : extreme;
  }
  for (Index i = threadIdx.x; i < U * k; i += kBoundThreads) {
    of_a += a[i] * a[i];
    of_g += g[i] * g[i];
  }
  trace = sum_block(trace, of_warps);
  of_a = sum_block(of_a, of_warps);
  of_g = sum_block(of_g, of_warps);
  extreme = max_block(extreme, of_warps);
  if (threadIdx.x > 0) return;
  const double v = noise[0], outputs = static_cast<double>(k), order = static_cast<double>(U);
  const double reciprocal = largest ? extreme : 1.0 / -extreme;
  out[0] = 0.5 / v * (of_a - (bound[1] + outputs * bound[2]) / v + outputs * (n - order + trace));
  out[1] = roundings * norm[0] * norm[0] * (outputs / v * reciprocal * reciprocal + v * of_g);
}
