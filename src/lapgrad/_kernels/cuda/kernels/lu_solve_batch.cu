// Solutions and inverses from LU factors of batches of matrices up to order 128, as lu_batch.cu leaves them.
#include "lu_solve.cuh"

// origin[i] := the row of A that is row i of the factors, for one matrix, by one thread.
__device__ inline void trace_exchanges(int* origin, const int* pivots, int n) {
  for (int i = 0; i < n; ++i) origin[i] = i;
  for (int k = 0; k < n; ++k) {
    const int other = pivots[k] - 1, held = origin[k];
    origin[k] = origin[other];
    origin[other] = held;
  }
}

// Multiplies a column that is near the ends of the range by a power of two; returns its exponent.
template <typename T, int N>
__device__ int scale_column(T (&x)[N]) {
  T largest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) largest = fabs(x[i]) > largest ? fabs(x[i]) : largest;
  const int exponent = largest > T(0) ? choose_exponent(largest) : 0;
  if (exponent != 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = scale_by_power(x[i], exponent);
  }
  return exponent;
}

// X := A^-1 B, or A^-T B, from factors of A times 2^pivots[n]; orders up to 32. One thread per column. A block has `groups` items with
// `width` threads each, or one item and a chunk of `width` of its columns. grid = (blocks of items) * chunks.
// Shared memory: a tile per item, then N ints per item.
template <typename T, int N>
__global__ void solve_small(T* X, Index x_item, Index x_row, Index x_col, const T* LU, const int* pivots, const T* B, Index b_item,
                            Index b_row, Index b_col, Index order, Index columns, Index items, Index groups, Index width,
                            Index chunks, Index transpose) {
  constexpr int ld = padded<T>(N);
  const int n = static_cast<int>(order), group = static_cast<int>(threadIdx.x / width);
  const Index first_item = blockIdx.x / chunks * groups, item = first_item + group;
  const Index column = blockIdx.x % chunks * width + threadIdx.x % width;
  T* const tiles = shared_memory<T>();
  int* const origins = reinterpret_cast<int*>(tiles + groups * kTileStride<T, N>);
  for (int e = threadIdx.x; e < static_cast<int>(groups) * N * N; e += blockDim.x) {
    const int g = e / (N * N), j = e / N % N, i = e % N;
    const bool inside = first_item + g < items && i < n && j < n;
    const T value = inside ? LU[((first_item + g) * n + j) * n + i] : T(i == j);
    tiles[g * kTileStride<T, N> + j * ld + i] = i == j ? T(1) / value : value;
  }
  if (threadIdx.x < groups && first_item + threadIdx.x < items)
    trace_exchanges(origins + threadIdx.x * N, pivots + (first_item + threadIdx.x) * (n + 1), n);
  __syncthreads();
  if (group >= groups || item >= items || column >= columns) return;
  const T* const tile = tiles + group * kTileStride<T, N>;
  const int* const origin = origins + group * N;
  const T* const source = B + item * b_item + column * b_col;
  T* const target = X + item * x_item + column * x_col;
  T x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = i < n ? source[(transpose ? i : origin[i]) * b_row] : T(0);
  const int back = pivots[item * (n + 1) + n] - scale_column<T, N>(x);
  if (transpose) {
    solve_upper_turned<T, N>(x, tile, ld);
    solve_lower_turned<T, N>(x, tile, ld);
  } else {
    solve_lower<T, N>(x, tile, ld);
    solve_upper<T, N>(x, tile, ld);
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < n) target[(transpose ? origin[i] : i) * x_row] = back != 0 ? scale_by_power(x[i], back) : x[i];
}

// x -= F y for the 16 x 16 block F of the factors at row `row` and column `column`, or of their transpose.
template <typename T>
__device__ void subtract_block(T (&x)[kPanel], const T (&y)[kPanel], const T* tile, int ld, int row, int column, bool transpose) {
  T line[kPanel];
  if (transpose) {
#pragma unroll
    for (int i = 0; i < kPanel; ++i) {
      read_row(line, tile + (row + i) * ld + column);
#pragma unroll
      for (int k = 0; k < kPanel; ++k) x[i] -= line[k] * y[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPanel; ++k) {
      read_row(line, tile + (column + k) * ld + row);
#pragma unroll
      for (int i = 0; i < kPanel; ++i) x[i] -= line[i] * y[k];
    }
  }
}

// The same for orders up to 128, and for inverses: a null B is the identity. One item, or chunk of its columns, per block. A column is
// solved in panels of 16, and kept in X between them: row i in row `place`, which is where it belongs in the end. Pivots are `pivot_item`
// apart; only with a B do they have an exponent. X is multiplied by weights[item], if given, and with `by_determinant` by the
// determinant; where A is singular it is zero then. info (items), 0 before, := the status, n + 1 where X is not finite, if `reported`
// names it. Those of items whose weight is not zero are failures.
// Shared memory: the factors, one number and two ints for each row, three numbers.
template <typename T>
__global__ void solve_medium(T* X, Index x_item, Index x_row, Index x_col, const T* LU, const int* pivots, Index pivot_item,
                             const T* B, Index b_item, Index b_row, Index b_col, Index order, Index columns, Index width,
                             Index chunks, Index transpose, const T* weights, Index w_item, Index by_determinant, Index reported,
                             int* info, Index* first_failure) {
  const int n = static_cast<int>(order), panels = (n + kPanel - 1) / kPanel, size = panels * kPanel, ld = padded<T>(size);
  const Index item = blockIdx.x / chunks;
  const Index column = blockIdx.x % chunks * width + threadIdx.x;
  T* const tile = shared_memory<T>();
  T* const common = tile + size * ld;  // the determinant's mantissa and exponent
  int* const origin = reinterpret_cast<int*>(common + 2);
  int* const zero_pivot = origin + size;
  const int* const own_pivots = pivots + item * pivot_item;
  if (threadIdx.x == 0) *zero_pivot = n + 1;
  __syncthreads();
  for (int e = threadIdx.x; e < size * size; e += blockDim.x) {
    const int j = e / size, i = e % size;
    const T value = i < n && j < n ? LU[(item * n + j) * n + i] : T(i == j);
    if (i == j && value == T(0)) atomicMin(zero_pivot, i + 1);
    tile[j * ld + i] = value;
  }
  if (threadIdx.x == 0) {
    trace_exchanges(origin, own_pivots, n);
    for (int i = n; i < size; ++i) origin[i] = i;
  }
  __syncthreads();
  const T weight = weights ? weights[item * w_item] : T(1);
  const int status = *zero_pivot <= n ? *zero_pivot : 0;
  if (by_determinant && threadIdx.x < 32) {
    Scaled<T> d{T(1), 0};
    for (int k = threadIdx.x; k < n; k += 32) {
      d.multiply(tile[k * ld + k]);
      if (own_pivots[k] != k + 1) d.mantissa = -d.mantissa;
    }
    d = multiply_lanes<T, 32>(d);
    if (threadIdx.x == 0) {
      common[0] = d.mantissa;
      common[1] = static_cast<T>(d.exponent);
    }
  }
  if (blockIdx.x % chunks == 0 && threadIdx.x == 0 && status) {
    if (info && is_reported(status, n, reported)) info[item] = status;
    if (weight != T(0) && is_reported(status, n, reported)) report_failure(first_failure, item, status);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < size; k += blockDim.x) tile[k * (ld + 1)] = T(1) / tile[k * (ld + 1)];
  __syncthreads();
  if (threadIdx.x >= width || column >= columns) return;
  const T* const source = B ? B + item * b_item + column * b_col : nullptr;
  T* const target = X + item * x_item + column * x_col;
  const auto place = [&](int i) -> T& { return target[(transpose ? origin[i] : i) * x_row]; };
  int exponent = 0;
  if (B) {
    T largest = 0;
    for (int i = 0; i < n; ++i) {
      const T entry = fabs(source[i * b_row]);
      largest = entry > largest ? entry : largest;
    }
    exponent = largest > T(0) ? choose_exponent(largest) : 0;
  }
  for (int start = 0; start < size; start += kPanel) {
    T x[kPanel];
#pragma unroll
    for (int i = 0; i < kPanel; ++i) {
      const int row = transpose ? start + i : origin[start + i];
      x[i] = start + i >= n ? T(0) : B ? source[row * b_row] : T(row == column);
      if (exponent != 0) x[i] = scale_by_power(x[i], exponent);
    }
#pragma unroll 1
    for (int before = 0; before < start; before += kPanel) {
      T y[kPanel];
#pragma unroll
      for (int k = 0; k < kPanel; ++k) y[k] = place(before + k);
      subtract_block(x, y, tile, ld, start, before, transpose);
    }
    if (transpose)
      solve_upper_turned<T, kPanel>(x, tile + start * (ld + 1), ld);
    else
      solve_lower<T, kPanel>(x, tile + start * (ld + 1), ld);
#pragma unroll
    for (int i = 0; i < kPanel; ++i)
      if (start + i < n) place(start + i) = x[i];
  }
  const int back = B ? own_pivots[n] - exponent : 0;
  bool finite = true;
  for (int start = size - kPanel; start >= 0; start -= kPanel) {
    T x[kPanel];
#pragma unroll
    for (int i = 0; i < kPanel; ++i) x[i] = start + i < n ? place(start + i) : T(0);
#pragma unroll 1
    for (int after = start + kPanel; after < size; after += kPanel) {
      T y[kPanel];
#pragma unroll
      for (int k = 0; k < kPanel; ++k) y[k] = after + k < n ? place(after + k) : T(0);
      subtract_block(x, y, tile, ld, start, after, transpose);
    }
    if (transpose)
      solve_lower_turned<T, kPanel>(x, tile + start * (ld + 1), ld);
    else
      solve_upper<T, kPanel>(x, tile + start * (ld + 1), ld);
#pragma unroll
    for (int i = 0; i < kPanel; ++i) {
      finite = finite && isfinite(x[i]);
      if (start + i < n) place(start + i) = x[i];
    }
  }
  if (weights || back != 0) {
    for (int i = 0; i < n; ++i) {
      T& value = target[i * x_row];
      if (by_determinant)
        value = scale_by_power(value * (weight * common[0]), static_cast<int>(common[1]));
      else
        value = scale_by_power(value * weight, back);
      if (status && weights) value = 0;
    }
  }
  if (finite || status) return;
  if (info && is_reported(n + 1, n, reported)) info[item] = n + 1;
  if (weight != T(0) && is_reported(n + 1, n, reported)) report_failure(first_failure, item, n + 1);
}
