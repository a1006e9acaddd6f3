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
    if (row == chosen) {
#pragma unroll
      for (int j = 0; j < K; ++j) chosen_row[j] = r[j];
    }
    if (row == k) {
      pivots[item * step + first + k] = first + chosen + 1;
#pragma unroll
      for (int j = 0; j < K; ++j) other_row[j] = r[j];
    }
    __syncthreads();
    if (row == k || row == chosen) {
#pragma unroll
      for (int j = 0; j < K; ++j) r[j] = row == k ? chosen_row[j] : other_row[j];
    }
    const T top = chosen_row[k];
    if (row > k && row < rows) {
      const T weight = top != T(0) ? r[k] / top : T(0);
      r[k] = weight;
#pragma unroll
      for (int j = k + 1; j < K; ++j) r[j] -= weight * chosen_row[j];
    }
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

// The exponents with which matrices or right-hand sides are scaled, from the largest entry of each item; 0 for zeros and NaN.
template <typename T>
__device__ int choose_item_exponent(const T* norms, Index item) {
  return norms && norms[item] > T(0) ? choose_exponent(norms[item]) : 0;
}

// The determinants of items from factors of any order, and which items failed. One block per item. norms, factor_norms: the largest
// entry of each matrix, and of its factors, NaN if one is NaN; null: not checked. Results that are null are not written. The determinant
// is mantissa 2^exponent. Failures, with code 1: entries that are not finite; with `strict` also zero pivots, and matrices near the ends of the range. Shared memory: two numbers for each warp.
template <typename T>
__global__ void finish_factors(const T* LU, Index lu_item, Index lu_diagonal, const int* pivots, Index pivot_item, T* determinant,
                               T* sign, T* logarithm, T* mantissa, int* exponent, const T* norms, const T* factor_norms,
                               Index order, Index strict, Index* first_failure) {
  const int n = static_cast<int>(order), lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const Index item = blockIdx.x;
  T* const mantissas = shared_memory<T>();
  T* const exponents = mantissas + warps;
  Scaled<T> d{T(1), 0};
  for (int k = threadIdx.x; k < n; k += blockDim.x) {
    d.multiply(LU[item * lu_item + k * lu_diagonal]);
    if (pivots[item * pivot_item + k] != k + 1) d.mantissa = -d.mantissa;
  }
  d = multiply_lanes<T, 32>(d);
  if (lane == 0) {
    mantissas[warp] = d.mantissa;
    exponents[warp] = static_cast<T>(d.exponent);
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < warps; ++w) {
    d.multiply(mantissas[w]);
    d.exponent += static_cast<int>(exponents[w]);
  }
  Determinants<T>{determinant, sign, logarithm}.store(item, d, d.mantissa == T(0));
  if (mantissa) {
    mantissa[item] = d.mantissa;
    exponent[item] = d.exponent;
  }
  if (!norms) return;
  const bool failed = !isfinite(norms[item]) || !isfinite(factor_norms[item]) ||
                      (strict && (d.mantissa == T(0) || choose_item_exponent(norms, item) != 0));
  if (failed) report_failure(first_failure, item, 1);
}

// target := source 2^(exponent + sign e), where e is the exponent for the item's largest entry, norms[item], and exponent that in
// last[item * step], if given. grid = (rows, items), and as many columns as it takes.
template <typename T>
__global__ void scale_items(T* target, Index t_item, Index t_row, Index t_col, const T* source, Index s_item, Index s_row, Index s_col,
                            Index columns, const T* norms, Index sign, const int* last, Index step) {
  const Index item = blockIdx.y, row = blockIdx.x;
  const int exponent = (last ? last[item * step] : 0) + static_cast<int>(sign) * choose_item_exponent(norms, item);
  T* const to = target + item * t_item + row * t_row;
  const T* const from = source + item * s_item + row * s_row;
  for (Index j = threadIdx.x; j < columns; j += blockDim.x) {
    const T value = from[j * s_col];
    to[j * t_col] = exponent != 0 ? scale_by_power(value, exponent) : value;
  }
}
