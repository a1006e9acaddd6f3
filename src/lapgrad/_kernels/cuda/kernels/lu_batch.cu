// LU factorisation with partial pivoting of batches of matrices up to order 128, P A = L U, and what is computed from the factors:
// determinants, solutions and inverses.
//
// Factors are stored transposed: element (j, i) of LU is entry (i, j) of L below the diagonal, of U on and above it. Pivots are
// LAPACK's: step k has exchanged rows k and pivots[k] (both from 1).
#include "lu_solve.cuh"

// Lane i has row i of a matrix of order n and gets row i of its factors, with the rows in their new order. A group of N lanes; `order`
// is n for all groups of the warp. Rows are exchanged only at the end: until then every lane keeps its row, and its
// place in the new order. The tile (N x N) receives the factors, transposed. `origin` := the row that lane `lane`
// got, `pivot` := pivots[lane] - 1. Returns the first k (from 1) whose pivot is zero, else 0.
template <typename T, int N>
__device__ int eliminate(T (&a)[N], T* tile, int order, int lane, int& origin, int& pivot) {
  constexpr int ld = padded<T>(N);
  const int base = threadIdx.x % 32 / N * N;
  const auto find_first = [&](bool mark) {
    const unsigned marks = __ballot_sync(kAllLanes, mark) >> base;
    return __ffs(N == 32 ? marks : marks & ((1u << N % 32) - 1)) - 1;
  };
  int place = lane, failed = 0;
  bool waits = true;
  pivot = lane;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (k >= order) break;
    unsigned best = waits ? rank_pivot<5>(a[k], lane) : 0;
#pragma unroll
    for (int distance = N / 2; distance > 0; distance /= 2) {
      const unsigned other = __shfl_xor_sync(kAllLanes, best, distance);
      best = other > best ? other : best;
    }
    int chosen = 31 - static_cast<int>(best % 32);
    if (__any_sync(kAllLanes, best < 32)) {  // a column of zeros, or of numbers without leading bits
      const int other = find_first(waits && a[k] != T(0)), same = find_first(place == k);
      if (best < 32) chosen = other >= 0 ? other : same;
    }
    const T top = __shfl_sync(kAllLanes, a[k], chosen, N);
    const int from = __shfl_sync(kAllLanes, place, chosen, N);
    if (lane == k) pivot = from;
    if (lane == chosen) {
      place = k;
      waits = false;
    } else if (place == k) {
      place = from;
    }
    if (top == T(0) && !failed) failed = k + 1;
    const T weight = waits && top != T(0) ? a[k] / top : T(0);
    if (waits) a[k] = weight;
#pragma unroll
    for (int j = k + 1; j < N; ++j) a[j] -= weight * __shfl_sync(kAllLanes, a[j], chosen, N);
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < N; ++j) tile[j * ld + place] = a[j];
  // The lane whose row belongs in place i sends its number to lane i.
  origin = lane;
#pragma unroll 1
  for (int i = 0; i < N; ++i) {
    const int found = find_first(place == i);
    if (lane == i) origin = found;
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < N; ++j) a[j] = tile[j * ld + lane];
  return failed;
}

// Orders up to 32: one group of N lanes per matrix, lane i has row i. Whatever is not null is written: LU (contiguous) and pivots
// (`pivot_item` apart), the determinant, and the inverse X.
// With `scaled`, A is multiplied by a power of two where its entries are near the ends of the range, and pivots[n] := its exponent.
// X is multiplied by weights[item], if given, and with `by_determinant` by the determinant: cofactors.
// Where A is singular, X with weights is zero. info (items) := the status, n + 1 where X is not finite, of statuses that
// `reported` names, else 0. Those of items whose weight is not zero are failures.
// Shared memory: a tile per group.
template <typename T, int N>
__global__ void factor_small(T* LU, int* pivots, Index pivot_item, T* determinant, T* sign, T* logarithm, T* X, Index x_item, Index x_row,
                             Index x_col, const T* A, Index a_item, Index a_row, Index a_col, Index order, Index items, Index scaled,
                             const T* weights, Index w_item, Index by_determinant, Index reported, int* info,
                             Index* first_failure) {
  constexpr int ld = padded<T>(N);
  const int lane = threadIdx.x % N, group = threadIdx.x / N;
  const Index item = static_cast<Index>(blockIdx.x) * (blockDim.x / N) + group;
  const int n = item < items ? static_cast<int>(order) : 0, base = threadIdx.x % 32 / N * N;
  T* const tile = shared_memory<T>() + group * kTileStride<T, N>;
  const auto find_first = [&](bool mark) {  // from 1; 0: none
    const unsigned marks = __ballot_sync(kAllLanes, mark) >> base;
    return __ffs(N == 32 ? marks : marks & ((1u << N % 32) - 1));
  };
  load_rectangle<T, N, N>(tile, Matrix<const T>{A + item * a_item, a_row, a_col}, n, n, lane);
  __syncwarp();
  T a[N];
  read_row(a, tile + lane * ld);
  bool finite = true;
  T largest = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    finite = finite && isfinite(a[j]);
    largest = fabs(a[j]) > largest ? fabs(a[j]) : largest;
    if (lane >= n) a[j] = T(j == lane);  // padded by the identity
  }
  const int spoilt = find_first(!finite);
  int exponent = 0;
  if (scaled) {
    exponent = choose_exponent(max_lanes(largest, N));
    if (exponent != 0 && lane < n) {
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] = scale_by_power(a[j], exponent);
    }
  }
  int origin, pivot;
  const int failed = eliminate<T, N>(a, tile, static_cast<int>(order), lane, origin, pivot);
  finite = true;
#pragma unroll
  for (int j = 0; j < N; ++j) finite = finite && isfinite(a[j]);
  const int spoilt_later = find_first(!finite && lane < n);
  const int bad = spoilt ? spoilt : spoilt_later;
  int status = bad ? -bad : failed;

  const T diagonal = tile[lane * ld + lane];
  Scaled<T> d{T(1), 0};
  d.multiply(lane < n ? diagonal : T(1));
  if (lane < n && pivot != lane) d.mantissa = -d.mantissa;
  d = multiply_lanes<T, N>(d);
  if (lane == 0 && n) Determinants<T>{determinant, sign, logarithm}.store(item, d, status > 0);
  if (pivots && lane < n) pivots[item * pivot_item + lane] = pivot + 1;
  if (pivots && scaled && lane == 0 && n) pivots[item * pivot_item + n] = exponent;
  if (LU) store_square<T, N>(Matrix<T>{LU + item * order * order, order, 1}, tile, n, lane);
  const T weight = weights && n ? weights[item * w_item] : T(1);
  if (X) {
    __syncwarp();
    tile[lane * ld + lane] = T(1) / diagonal;
    __syncwarp();
    // Lane j has column j of the inverse: row i of the right-hand side P e_j is 1 where that row was row j.
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] = T(__shfl_sync(kAllLanes, origin, i, N) == lane);
    solve_lower<T, N>(a, tile, ld);
    solve_upper<T, N>(a, tile, ld);
    finite = true;
    const Matrix<T> target{X + item * x_item, x_row, x_col};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < n && lane < n) {
        finite = finite && isfinite(a[i]);
        T value = a[i] * weight;
        if (by_determinant) value = scale_by_power(a[i] * (weight * d.mantissa), d.exponent);
        if (status && weights) value = 0;
        target(i, lane) = value;
      }
    }
    if (find_first(!finite) && status == 0) status = n + 1;
  }
  if (lane > 0 || n == 0) return;
  if (info) info[item] = is_reported(status, n, reported) ? status : 0;
  if (weight != T(0) && is_reported(status, n, reported)) report_failure(first_failure, item, status);
}

// Orders up to 128: one block per matrix, in panels of 16 columns. The matrix is in shared memory, transposed: element (j, i) is entry
// (i, j). In a panel thread i has row i; afterwards the rows of the other columns are exchanged and U solved, a thread per column, and the
// rest is updated in blocks of 16 x 16, each by 16 threads. The matrix is padded to a multiple of 16 by the identity. Arguments as
// in factor_small, without inverses. Threads: 2 per row.
// Shared memory: the matrix, the panel by rows, two rows of the panel, the largest candidates of the warps, pivots, four numbers.
template <typename T>
__global__ void factor_medium(T* LU, int* pivots, Index pivot_item, T* determinant, T* sign, T* logarithm, const T* A,
                              Index a_item, Index a_row, Index a_col, Index order, Index scaled, Index reported, int* info,
                              Index* first_failure) {
  constexpr int ld_panel = padded<T>(kPanel);
  const int n = static_cast<int>(order), size = (n + kPanel - 1) / kPanel * kPanel, ld = padded<T>(size);
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32;
  const Index item = blockIdx.x;
  T* const M = shared_memory<T>();
  T* const panel = M + size * ld;
  T* const chosen_row = panel + size * ld_panel;
  T* const other_row = chosen_row + kPanel;
  T* const largest_of_warp = other_row + kPanel;
  unsigned* const best_of_warp = reinterpret_cast<unsigned*>(largest_of_warp + 8);
  int* const exchanges = reinterpret_cast<int*>(best_of_warp + 8);
  // The first row that is not finite, of the matrix and of the factors; the first zero pivot; a row that is not zero.
  int* const notes = exchanges + size;
  const Matrix<const T> source{A + item * a_item, a_row, a_col};
  if (thread == 0) {
    notes[0] = notes[1] = notes[2] = size + 1;
    notes[3] = size;
  }
  __syncthreads();
  const bool by_rows = lies_by_rows(source);
  T largest = 0;
  for (int e = thread; e < size * size; e += threads) {
    const int i = by_rows ? e / size : e % size, j = by_rows ? e % size : e / size;
    const T value = i < n && j < n ? source(i, j) : T(i == j);
    if (!isfinite(value)) atomicMin(notes, i + 1);
    if (i < n && j < n && fabs(value) > largest) largest = fabs(value);
    M[j * ld + i] = value;
  }
  int exponent = 0;
  if (scaled) {
    largest = max_lanes(largest);
    if (lane == 0) largest_of_warp[warp] = largest;
    __syncthreads();
    for (int w = 0; w < threads / 32; ++w) largest = largest_of_warp[w] > largest ? largest_of_warp[w] : largest;
    exponent = choose_exponent(largest);
    if (exponent != 0)
      for (int e = thread; e < n * n; e += threads) M[e / n * ld + e % n] = ldexp(M[e / n * ld + e % n], exponent);
  }
  __syncthreads();

  for (int start = 0; start < size; start += kPanel) {
    const int row = thread, warps = (size + 31) / 32;
    T r[kPanel];
    if (row < size) {
#pragma unroll
      for (int c = 0; c < kPanel; ++c) r[c] = M[(start + c) * ld + row];
    }
#pragma unroll
    for (int c = 0; c < kPanel; ++c) {
      const int k = start + c;
      unsigned best = row >= k && row < size ? rank_pivot<7>(r[c], row) : 0;
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        const unsigned other = __shfl_xor_sync(kAllLanes, best, distance);
        best = other > best ? other : best;
      }
      if (lane == 0 && warp < warps) best_of_warp[warp] = best;
      __syncthreads();
      best = best_of_warp[0];
      for (int w = 1; w < warps; ++w) best = best_of_warp[w] > best ? best_of_warp[w] : best;
      int chosen = 127 - static_cast<int>(best % 128);
      if (best < 128) {  // a column of zeros, or of numbers without leading bits; the same in all threads
        if (row >= k && row < size && r[c] != T(0)) atomicMin(notes + 3, row);
        __syncthreads();
        chosen = notes[3] < size ? notes[3] : k;
        __syncthreads();
        if (thread == 0) notes[3] = size;
      }
      if (row == k) exchanges[k] = chosen;
      const T pivot = eliminate_column(r, c, k, chosen, row, size, chosen_row, other_row);
      if (pivot == T(0) && row == k) atomicMin(notes + 2, k + 1);
    }
    if (row < size) {
#pragma unroll
      for (int c = 0; c < kPanel; ++c) M[(start + c) * ld + row] = r[c];
      write_row(panel + row * ld_panel, r);
    }
    __syncthreads();
    const int below = start + kPanel;
    for (int column = thread; column < size; column += threads) {
      if (column >= start && column < below) continue;
      T* const entries = M + column * ld;
      for (int k = start; k < below; ++k) {
        const int other = exchanges[k];
        const T held = entries[k];
        entries[k] = entries[other];
        entries[other] = held;
      }
      if (column < start) continue;
      T u[kPanel];
      read_row(u, entries + start);
#pragma unroll
      for (int c = 0; c < kPanel; ++c)
#pragma unroll
        for (int j = c + 1; j < kPanel; ++j) u[j] -= panel[(start + j) * ld_panel + c] * u[c];
      write_row(entries + start, u);
    }
    __syncthreads();
    // a_ij -= sum_c l_ic u_cj
    const int blocks = (size - below) / kPanel, p = thread % 16 / 4, q = thread % 4;
    for (int number = thread / 16; number < blocks * blocks; number += threads / 16) {
      const int block_column = below + number / blocks * kPanel, block_row = below + number % blocks * kPanel;
      subtract_product(M + block_column * ld + block_row, ld, M + block_column * ld + start, ld,
                       panel + block_row * ld_panel, ld_panel, p, q);
    }
    __syncthreads();
  }

  for (int e = thread; e < n * n; e += threads) {
    const int j = e / n, i = e % n;
    const T value = M[j * ld + i];
    if (!isfinite(value)) atomicMin(notes + 1, i + 1);
    if (LU) LU[item * n * n + e] = value;
  }
  if (pivots) {
    for (int k = thread; k < n; k += threads) pivots[item * pivot_item + k] = exchanges[k] + 1;
    if (scaled && thread == 0) pivots[item * pivot_item + n] = exponent;
  }
  __syncthreads();
  if (warp > 0) return;
  const int status = notes[0] <= n ? -notes[0] : notes[1] <= n ? -notes[1] : notes[2] <= n ? notes[2] : 0;
  Scaled<T> d{T(1), 0};
  for (int k = lane; k < n; k += 32) {
    d.multiply(M[k * ld + k]);
    if (exchanges[k] != k) d.mantissa = -d.mantissa;
  }
  d = multiply_lanes<T, 32>(d);
  if (lane > 0) return;
  Determinants<T>{determinant, sign, logarithm}.store(item, d, status > 0);
  if (info) info[item] = is_reported(status, n, reported) ? status : 0;
  if (is_reported(status, n, reported)) report_failure(first_failure, item, status);
}
