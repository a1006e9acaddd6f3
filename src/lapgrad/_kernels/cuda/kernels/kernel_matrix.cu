// Kernel matrices K_ij = k(f_i, g_j) of covariance functions that are types (covariance.cuh), and their gradients: one pass over the
// matrix each. Features are row-major, one point after another.
#include "block.cuh"
#include "covariance.cuh"

// Rows and columns of the tile of a thread block in fill_matrix, and of one step of differentiate_matrix: a thread has a column
// there and a row here. tests/house/test_constants.py compares them with Python.
constexpr int kFillRows = 32, kPoints = 128, kStep = 16;

// The length of an array of features or scalars in registers; C++ allows no array of length 0.
template <typename T, int length>
struct Registers {
  T at[length > 0 ? length : 1];

  __device__ void load(const T* source) {
#pragma unroll
    for (int i = 0; i < length; ++i) at[i] = source[i];
  }
};

// K := k(F, G) + diag(noise). With `same_points` G is F; then, with `lower_only`, tiles above the diagonal are left
// undefined. `noise` may be null; its entries are noise_step (0 or 1) elements apart. grid = (columns / kPoints, rows
// / kFillRows, at most 65535); kPoints threads; shared memory: kFillRows x kFeatures.
template <typename T, class K>
__global__ void __launch_bounds__(kPoints)
    fill_matrix(T* matrix, Index row, const T* F, const T* G, const T* scalars, const T* noise, Index noise_step, Index n, Index m,
                Index same_points, Index lower_only) {
  constexpr int d = K::kFeatures;
  T* const rows = shared_memory<T>();
  const int thread = threadIdx.x;
  const Index column = static_cast<Index>(blockIdx.x) * kPoints + thread;
  const bool inside = column < m;
  Registers<T, d> g;
  Registers<T, K::kScalars> s;
  g.load(G + (inside ? column : 0) * d);
  s.load(scalars);
  for (Index top = static_cast<Index>(blockIdx.y) * kFillRows; top < n; top += static_cast<Index>(gridDim.y) * kFillRows) {
    const int height = static_cast<int>(n - top < kFillRows ? n - top : kFillRows);
    if (lower_only && static_cast<Index>(blockIdx.x) * kPoints >= top + height) continue;  // the same for all threads
    __syncthreads();
    for (int i = thread; i < height * d; i += kPoints) rows[i] = F[top * d + i];
    __syncthreads();
    if (!inside) continue;
#pragma unroll 2
    for (int r = 0; r < height; ++r) {
      Registers<T, d> f;
      f.load(rows + r * d);
      const bool same = same_points && top + r == column;
      typename K::template At<T> k;
      k.evaluate(f.at, g.at, s.at, same);
      T value = k.value;
      if (same && noise != nullptr) value += noise[column * noise_step];
      matrix[(top + r) * row + column] = value;
    }
  }
}

// The gradient of sum_ij c_ij k(f_i, g_j) for f_i and the scalars, of the columns of one slice. A thread has a row, and adds up over
// the columns in registers. Columns pass through shared memory, kStep at a time, together with the cotangents C; these are read in
// the order in which they lie in memory, whichever of their two strides is 1.
//     of_F (slices, n, kFeatures), times `weight`; of_scalars (slices, blocks of rows, kScalars), in double
// grid = (rows / kPoints, slices of `width` columns); kPoints threads; shared memory: kStep x kFeatures and kPoints x (kStep + 1)
// numbers, and 4 doubles.
// A multiprocessor holds four blocks at a time if features leave them enough registers, else two.
template <typename T, class K>
__global__ void __launch_bounds__(kPoints, K::kFeatures <= 10 ? 4 : 2)
    differentiate_matrix(T* of_F, double* of_scalars, const T* cotangents, Index c_row, Index c_col, const T* F, const T* G,
                         const T* scalars, Index n, Index m, Index width, Index same_points, double weight) {
  constexpr int d = K::kFeatures, p = K::kScalars;
  constexpr int kPadded = kStep + 1;
  double* const of_warps = shared_memory<double>();
  T* const columns = reinterpret_cast<T*>(of_warps + kPoints / 32);
  T* const tile = columns + kStep * d;
  const int thread = threadIdx.x;
  const Index top = static_cast<Index>(blockIdx.x) * kPoints, row = top + thread;
  const Index first = static_cast<Index>(blockIdx.y) * width, last = first + width < m ? first + width : m;
  const bool inside = row < n;
  Registers<T, d> f, of_f;
  Registers<T, p> s;
  Registers<double, p> of_s;
  f.load(F + (inside ? row : 0) * d);
  s.load(scalars);
#pragma unroll
  for (int i = 0; i < d; ++i) of_f.at[i] = 0;
#pragma unroll
  for (int i = 0; i < p; ++i) of_s.at[i] = 0;
  for (Index left = first; left < last; left += kStep) {
    const int count = static_cast<int>(last - left < kStep ? last - left : kStep);
    __syncthreads();
    for (int i = thread; i < count * d; i += kPoints) columns[i] = G[left * d + i];
#pragma unroll 4
    for (int turn = 0; turn < kStep; ++turn) {
      const int number = turn * kPoints + thread;
      const int i = c_col == 1 ? number / kStep : number % kPoints, j = c_col == 1 ? number % kStep : number / kPoints;
      if (top + i < n && j < count) tile[i * kPadded + j] = cotangents[(top + i) * c_row + (left + j) * c_col];
    }
    __syncthreads();
    if (!inside) continue;
    Registers<T, p> here;
#pragma unroll
    for (int i = 0; i < p; ++i) here.at[i] = 0;
#pragma unroll 2
    for (int j = 0; j < count; ++j) {
      Registers<T, d> g;
      g.load(columns + j * d);
      typename K::template At<T> k;
      k.evaluate(f.at, g.at, s.at, same_points && row == left + j);
      k.pull_back(tile[thread * kPadded + j], f.at, g.at, s.at, of_f.at, here.at);
    }
#pragma unroll
    for (int i = 0; i < p; ++i) of_s.at[i] += here.at[i];
  }
  if (inside) {
    T* const target = of_F + (static_cast<Index>(blockIdx.y) * n + row) * d;
#pragma unroll
    for (int i = 0; i < d; ++i) target[i] = static_cast<T>(weight) * of_f.at[i];
  }
  double* const sums = of_scalars + (static_cast<Index>(blockIdx.y) * gridDim.x + blockIdx.x) * p;
#pragma unroll
  for (int i = 0; i < p; ++i) {
    const double of_warp = sum_lanes(of_s.at[i]);
    __syncthreads();
    if (thread % 32 == 0) of_warps[thread / 32] = of_warp;
    __syncthreads();
    if (thread == 0) {
      double total = 0;
      for (int warp = 0; warp < kPoints / 32; ++warp) total += of_warps[warp];
      sums[i] = total;
    }
  }
}
