// LU factorisation with partial pivoting of batches of matrices above order 128: panels of columns are factored here, and the columns
// after them are updated by products.
//
// The matrix is stored transposed, W (items x n x n, contiguous): element (j, i) is entry (i, j), so that a panel is a block of rows of W.
#include "lu_solve.cuh"

// Factors the `columns` <= K columns from `start` on, and the rows from there on, n - start <= threads of them. One block per item;
// a thread has one row, in K registers. pivots (items x step) receives the places (from 1) of the rows that were exchanged; only the rows of
// the panel's own columns are.
// Shared memory: two rows of K, a number for each warp, two ints.
template <typename T, int K>
__global__ void __launch_bounds__(K == 32 ? 512 : 1024)
    factor_panel(T* W, int* pivots, Index step, Index order, Index start) {
  const int n = static_cast<int>(order), first = static_cast<int>(start), rows = n - first, columns = rows < K ? rows : K;
  const int row = threadIdx.x, lane = row % 32, warp = row / 32, warps = (rows + 31) / 32;
  const Index item = blockIdx.x;
  T* const own = W + item * n * n + static_cast<Index>(first) * n + first;
  T* const chosen_row = shared_memory<T>();
  T* const other_row = chosen_row + K;
  unsigned* const best_of_warp = reinterpret_cast<unsigned*>(other_row + K);
  int* const regular_row = reinterpret_cast<int*>(best_of_warp + 32);
  if (threadIdx.x == 0) *regular_row = rows;
  T r[K];
#pragma unroll
  for (int c = 0; c < K; ++c) r[c] = row < rows && c < columns ? own[c * n + row] : T(0);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k >= columns) break;
    unsigned best = row >= k && row < rows ? rank_pivot<10>(r[k], row) : 0;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const unsigned other = __shfl_xor_sync(kAllLanes, best, distance);
      best = other > best ? other : best;
    }
    if (lane == 0 && warp < warps) best_of_warp[warp] = best;
    __syncthreads();
    best = lane < warps ? best_of_warp[lane] : 0;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const unsigned other = __shfl_xor_sync(kAllLanes, best, distance);
      best = other > best ? other : best;
    }
    int chosen = 1023 - static_cast<int>(best % 1024);
    if (best < 1024) {  // a column of zeros, or of numbers without leading bits; the same in all threads
      if (row >= k && row < rows && r[k] != T(0)) atomicMin(regular_row, row);
      __syncthreads();
      chosen = *regular_row < rows ? *regular_row : k;
      __syncthreads();
      if (threadIdx.x == 0) *regular_row = rows;
    }
    if (row == k) pivots[item * step + first + k] = first + chosen + 1;
    eliminate_column(r, k, k, chosen, row, rows, chosen_row, other_row);
  }
  if (row >= rows) return;
#pragma unroll
  for (int c = 0; c < K; ++c)
    if (c < columns) own[c * n + row] = r[c];
}

// Exchanges the rows of the columns outside of a panel of K, and solves those after it with the panel's triangle: U = L11^-1 A12. One
// thread per column; grid = (columns / threads, items). Shared memory: K x K numbers, K ints.
template <typename T, int K>
__global__ void exchange_rows(T* W, const int* pivots, Index step, Index order, Index start) {
  constexpr int ld = padded<T>(K);
  const int n = static_cast<int>(order), first = static_cast<int>(start), columns = n - first < K ? n - first : K;
  const Index item = blockIdx.y;
  T* const own = W + item * n * n;
  T* const triangle = shared_memory<T>();  // transposed, as in W
  int* const exchanges = reinterpret_cast<int*>(triangle + K * ld);
  for (int e = threadIdx.x; e < K * K; e += blockDim.x) {
    const int j = e / K, i = e % K;
    triangle[j * ld + i] = i < columns && j < i ? own[static_cast<Index>(first + j) * n + first + i] : T(i == j);
  }
  for (int k = threadIdx.x; k < columns; k += blockDim.x) exchanges[k] = pivots[item * step + first + k] - 1;
  __syncthreads();
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= n || (column >= first && column < first + columns)) return;
  T* const entries = own + static_cast<Index>(column) * n;
  if (column < first) {
    for (int k = 0; k < columns; ++k) {
      const T held = entries[first + k];
      entries[first + k] = entries[exchanges[k]];
      entries[exchanges[k]] = held;
    }
    return;
  }
  for (int k = 0; k < columns; ++k) {
    const T held = entries[first + k];
    entries[first + k] = entries[exchanges[k]];
    entries[exchanges[k]] = held;
  }
  T u[K];
#pragma unroll
  for (int k = 0; k < K; ++k) u[k] = k < columns ? entries[first + k] : T(0);
  solve_lower<T, K>(u, triangle, ld);
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (k < columns) entries[first + k] = u[k];
}

// Whether all entries of an n x m matrix that this block reads are at most `limit`, as one answer for the warp; blocks gridDim.x of them
// share the lines of the matrix, one warp each.
template <typename T>
__device__ bool is_within(const Matrix<const T>& A, int n, int m, T limit) {
  const bool by_rows = lies_by_rows(A);
  const int lines = by_rows ? n : m, length = by_rows ? m : n, warps = blockDim.x / 32;
  bool within = true;
  for (int p = blockIdx.x * warps + threadIdx.x / 32; p < lines; p += gridDim.x * warps)
    for (int q = threadIdx.x % 32; q < length; q += 32) within = within && fabs(by_rows ? A(p, q) : A(q, p)) <= limit;
  return !__any_sync(kAllLanes, !within);
}

// The determinants of items from factors of any order, and which items failed. grid = (blocks that share an item, items). Results that
// are null are not written; the determinant is mantissa 2^exponent. Failures, with code 1: entries of A, of the factors or of X, if
// given, that are not finite; with `strict` also zero pivots, and matrices near the ends of the range.
// Shared memory: three numbers for each warp.
template <typename T>
__global__ void finish_factors(const T* LU, const int* pivots, Index pivot_item, const T* A, Index a_item, Index a_row, Index a_col,
                               const T* X, Index x_item, Index x_row, Index x_col, T* determinant, T* sign, T* logarithm,
                               T* mantissa, int* exponent, Index order, Index strict, Index* first_failure) {
  // 2^32 below the largest number, and 2^64 above the smallest normal one.
  constexpr double kMost = sizeof(T) == 8 ? 0x1.fffffffffffffp+991 : 0x1.fffffep+95, kLeast = sizeof(T) == 8 ? 0x1p-958 : 0x1p-62;
  constexpr double kLargest = sizeof(T) == 8 ? 0x1.fffffffffffffp+1023 : 0x1.fffffep+127;
  const int n = static_cast<int>(order), lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const Index item = blockIdx.y;
  const T* const factors = LU + item * n * n;
  if (first_failure) {
    bool within = is_within(Matrix<const T>{factors, n, 1}, n, n, T(kLargest));
    if (A) within = within && is_within(Matrix<const T>{A + item * a_item, a_row, a_col}, n, n, strict ? T(kMost) : T(kLargest));
    if (X) within = within && is_within(Matrix<const T>{X + item * x_item, x_row, x_col}, n, n, T(kLargest));
    if (!within && lane == 0) report_failure(first_failure, item, 1);
  }
  if (blockIdx.x > 0) return;
  T* const mantissas = shared_memory<T>();
  T* const exponents = mantissas + warps;
  T* const pivots_of_warps = exponents + warps;
  Scaled<T> d{T(1), 0};
  T largest = 0;
  for (int k = threadIdx.x; k < n; k += blockDim.x) {
    const T pivot = factors[static_cast<Index>(k) * (n + 1)];
    d.multiply(pivot);
    if (pivots[item * pivot_item + k] != k + 1) d.mantissa = -d.mantissa;
    largest = fabs(pivot) > largest ? fabs(pivot) : largest;
  }
  d = multiply_lanes<T, 32>(d);
  largest = max_lanes(largest);
  if (lane == 0) {
    mantissas[warp] = d.mantissa;
    exponents[warp] = static_cast<T>(d.exponent);
    pivots_of_warps[warp] = largest;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < warps; ++w) {
    d.multiply(mantissas[w]);
    d.exponent += static_cast<int>(exponents[w]);
    largest = pivots_of_warps[w] > largest ? pivots_of_warps[w] : largest;
  }
  Determinants<T>{determinant, sign, logarithm}.store(item, d, d.mantissa == T(0));
  if (mantissa) {
    mantissa[item] = d.mantissa;
    exponent[item] = d.exponent;
  }
  if (strict && (d.mantissa == T(0) || largest < T(kLeast))) report_failure(first_failure, item, 1);
}

// target := source times a power of two for each column, for right-hand sides near the ends of the range. `exponents` (items x columns)
// receives its exponent, 0 for most columns; or, with `back`, has it, and the column is multiplied by 2^(last[item * step] - exponent).
// grid = (columns / 32, items); threads: 32 per row. Shared memory: a number per thread.
template <typename T>
__global__ void scale_columns(T* target, Index t_item, Index t_row, Index t_col, const T* source, Index s_item, Index s_row,
                              Index s_col, Index rows, Index columns, int* exponents, Index back, const int* last, Index step) {
  const Index item = blockIdx.y, column = static_cast<Index>(blockIdx.x) * 32 + threadIdx.x % 32;
  const int first = threadIdx.x / 32, stride = blockDim.x / 32;
  const Matrix<T> to{target + item * t_item, t_row, t_col};
  const Matrix<const T> from{source + item * s_item, s_row, s_col};
  const bool exists = column < columns;
  int exponent = 0;
  if (back) {
    if (exists) exponent = last[item * step] - exponents[item * columns + column];
  } else {
    T* const found = shared_memory<T>();
    T largest = 0;
    if (exists)
      for (Index i = first; i < rows; i += stride) {
        const T size = fabs(from(i, column));
        largest = size > largest ? size : largest;
      }
    found[threadIdx.x] = largest;
    __syncthreads();
    for (int other = threadIdx.x % 32; other < static_cast<int>(blockDim.x); other += 32)
      largest = found[other] > largest ? found[other] : largest;
    exponent = largest > T(0) ? choose_exponent(largest) : 0;
    if (exists && first == 0) exponents[item * columns + column] = exponent;
  }
  if (!exists) return;
  for (Index i = first; i < rows; i += stride) {
    const T value = from(i, column);
    to(i, column) = exponent != 0 ? scale_by_power(value, exponent) : value;
  }
}

// target := source 2^exponents[item]. grid = (rows, items).
template <typename T>
__global__ void scale_items(T* target, Index t_item, Index t_row, Index t_col, const T* source, Index s_item, Index s_row, Index s_col,
                            Index columns, const int* exponents) {
  const Index item = blockIdx.y, row = blockIdx.x;
  const int exponent = exponents[item];
  T* const to = target + item * t_item + row * t_row;
  const T* const from = source + item * s_item + row * s_row;
  for (Index j = threadIdx.x; j < columns; j += blockDim.x) to[j * t_col] = scale_by_power(from[j * s_col], exponent);
}

// P(i, j) := 1 where row j of A is row i of its factors. P must be zero before. One block per item. Shared memory: 2 n ints.
template <typename T>
__global__ void place_ones(T* P, Index p_item, Index p_row, Index p_col, const int* pivots, Index pivot_item, Index order) {
  const int n = static_cast<int>(order);
  int* const origin = shared_memory<int>();
  int* const exchanges = origin + n;
  for (int k = threadIdx.x; k < n; k += blockDim.x) {
    origin[k] = k;
    exchanges[k] = pivots[blockIdx.x * pivot_item + k] - 1;
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int k = 0; k < n; ++k) {
      const int other = exchanges[k], held = origin[k];
      origin[k] = origin[other];
      origin[other] = held;
    }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) P[blockIdx.x * p_item + i * p_row + origin[i] * p_col] = 1;
}
