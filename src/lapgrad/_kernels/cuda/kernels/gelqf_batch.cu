// gelqf for batches of matrices with up to 128 rows and columns: A = L Q by Householder reflections of the rows, as in
// reflection.cuh. Q is the first rows of H_r ... H_1, computed from the last reflection back.
#include "reflection.cuh"

// One group of R lanes per matrix; lane i has row i in C registers. R >= m and C >= n are 4, 8 or 16. The row that is reflected is
// broadcast by shuffles; each lane then needs only the product with its own row, and no sum over lanes. Q may be null.
// Shared memory: a tile of R x C per group.
template <typename T, int R, int C>
__global__ void factor_small(T* L, Index l_item, Index l_row, Index l_col, T* Q, Index q_item, Index q_row, Index q_col,
                             const T* A, Index a_item, Index a_row, Index a_col, Index rows, Index columns, Index items,
                             Index positive, Index* first_failure) {
  constexpr int ld = padded<T>(C), kSteps = R < C ? R : C;
  const int lane = threadIdx.x % R, group = threadIdx.x / R;
  const Index item = static_cast<Index>(blockIdx.x) * (blockDim.x / R) + group;
  const int n = static_cast<int>(columns), rank = static_cast<int>(rows < columns ? rows : columns);
  const int m = item < items ? static_cast<int>(rows) : 0;
  T* const tile = shared_memory<T>() + group * kRectangleStride<T, R, C>;
  load_rectangle<T, R, C>(tile, Matrix<const T>{A + item * a_item, a_row, a_col}, m, n, lane);
  __syncwarp();
  T a[C], x[C], own_tau = 0;
  read_row(a, tile + lane * ld);
  unsigned flipped = 0;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if (k >= rank) break;
    const T alpha = __shfl_sync(kAllLanes, a[k], k, R);
    T unit = 1, square, product, largest = 1;
#pragma unroll 1
    for (bool again = false;; again = true) {
      square = product = 0;
#pragma unroll
      for (int i = k + 1; i < C; ++i) {
        x[i] = __shfl_sync(kAllLanes, a[i], k, R) * unit;
        square += x[i] * x[i];
        product += a[i] * x[i];
      }
      const bool ordinary = is_ordinary(alpha, square);
      if (again || !__any_sync(kAllLanes, !ordinary)) break;
      if (!ordinary) {
        largest = 0;
#pragma unroll
        for (int i = k + 1; i < C; ++i) largest = larger(fabs(x[i]), largest);
        unit = find_unit(larger(fabs(alpha), largest));
      }
    }
    Reflection<T> h = make_reflection(alpha * unit, square, largest == T(0) && square == square);
    if (unit != T(1)) h.beta /= unit;
    const T weight = lane > k ? h.tau * (a[k] + h.scale * product) : T(0);
    const T scaled = lane == k ? -h.scale : weight * h.scale;  // so that row k becomes v
    a[k] = lane == k ? h.beta : a[k] - weight;
#pragma unroll
    for (int i = k + 1; i < C; ++i) a[i] = (lane == k ? T(0) : a[i]) - scaled * x[i];
    if (lane == k) own_tau = h.tau;
    if (positive && h.beta < T(0)) {
      flipped |= 1u << k;
      a[k] = lane >= k ? -a[k] : a[k];
    }
  }

  bool finite = true;
#pragma unroll
  for (int i = 0; i < C; ++i) {
    const bool inside = i <= lane && i < rank;
    x[i] = inside ? a[i] : T(0);
    finite = finite && isfinite(x[i]);
  }
  const unsigned spoilt = __ballot_sync(kAllLanes, !finite && lane < m) >> (threadIdx.x % 32 / R * R);
  const int first = __ffs(R == 32 ? spoilt : spoilt & ((1u << R % 32) - 1));
  if (lane == 0 && first) report_failure(first_failure, item, first);
  write_row(tile + lane * ld, x);
  __syncwarp();
  store_rectangle<T, R, C>(Matrix<T>{L + item * l_item, l_row, l_col}, tile, m, rank, lane);
  if (!Q) return;

#pragma unroll
  for (int k = kSteps - 1; k >= 0; --k) {
    if (k < rank) {
      const T tau = __shfl_sync(kAllLanes, own_tau, k, R);
      T product = 0;
#pragma unroll
      for (int i = k + 1; i < C; ++i) {
        x[i] = __shfl_sync(kAllLanes, a[i], k, R);
        product += a[i] * x[i];
      }
      // So far, rows below k of Q have a zero in column k and row k is a unit vector; rows before k still hold reflections.
      const T weight = lane > k ? tau * product : lane == k ? tau : T(0);
      a[k] = lane > k ? -weight : lane == k ? T(1) - tau : a[k];
#pragma unroll
      for (int i = k + 1; i < C; ++i) a[i] = (lane == k ? T(0) : a[i]) - weight * x[i];
    }
  }
#pragma unroll
  for (int i = 0; i < C; ++i) a[i] = flipped >> lane & 1 ? -a[i] : a[i];
  __syncwarp();
  write_row(tile + lane * ld, a);
  __syncwarp();
  store_rectangle<T, R, C>(Matrix<T>{Q + item * q_item, q_row, q_col}, tile, m ? rank : 0, n, lane);
}

// One block per matrix: P lanes share S rows; each lane has C columns of them, P apart, in registers. The row that is reflected is
// passed through shared memory. Every group of P lanes computes its norm for itself, so that one barrier per step is enough (two
// buffers are used in turn). n <= P C, m <= S blockDim / P.
// Shared memory: two rows, each with one more number, tau and the sign for each row, one number.
template <typename T, int P, int C, int S>
__global__ void __launch_bounds__(128 / S * P) factor_medium(T* L, Index l_item, Index l_row, Index l_col, T* Q, Index q_item, Index q_row, Index q_col,
                              const T* A, Index a_item, Index a_row, Index a_col, Index rows, Index columns,
                              Index positive, Index* first_failure) {
  constexpr int kColumns = P * C;
  const int m = static_cast<int>(rows), n = static_cast<int>(columns), rank = m < n ? m : n;
  const int part = threadIdx.x % P, group = threadIdx.x / P, groups = blockDim.x / P;
  const Index item = blockIdx.x;
  T* const buffers = shared_memory<T>();
  T* const taus = buffers + 2 * (kColumns + 1);
  T* const signs = taus + kColumns;
  int* const spoilt_row = reinterpret_cast<int*>(signs + kColumns);
  const Matrix<const T> source{A + item * a_item, a_row, a_col};
  const Matrix<T> lower{L + item * l_item, l_row, l_col}, rest{Q + item * q_item, q_row, q_col};

  T a[S][C];
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < C; ++i) {
      const int row = group + s * groups, column = i * P + part;
      a[s][i] = row < m && column < n ? source(row, column) : T(0);
    }
  if (threadIdx.x == 0) *spoilt_row = m + 1;

#pragma unroll
  for (int b = 0; b < C; ++b)  // column k is in register b of the lanes with part == k - b P
#pragma unroll 1
    for (int k = b * P; k < (b + 1) * P && k < rank; ++k) {
      T* const buffer = buffers + k % 2 * (kColumns + 1);
      const bool has_k = part == k - b * P;
#pragma unroll
      for (int s = 0; s < S; ++s)
        if (group + s * groups == k) {
          if (has_k) buffer[kColumns] = a[s][b];
#pragma unroll
          for (int i = b; i < C; ++i) buffer[i * P + part] = i > b || part > k - b * P ? a[s][i] : T(0);
        }
      __syncthreads();
      const T alpha = buffer[kColumns];
      T x[C], unit = 1, square, product[S], largest = 1;
#pragma unroll 1
      for (bool again = false;; again = true) {
        square = 0;
#pragma unroll
        for (int s = 0; s < S; ++s) product[s] = 0;
#pragma unroll
        for (int i = b; i < C; ++i) {
          x[i] = buffer[i * P + part] * unit;
          square += x[i] * x[i];
#pragma unroll
          for (int s = 0; s < S; ++s) product[s] += a[s][i] * x[i];
        }
        square = sum_lanes(square, P);
        if (again || is_ordinary(alpha, square)) break;  // the same in all threads
        largest = 0;
#pragma unroll
        for (int i = b; i < C; ++i) largest = larger(fabs(x[i]), largest);
        largest = max_lanes(largest, P);
        unit = find_unit(larger(fabs(alpha), largest));
      }
      Reflection<T> h = make_reflection(alpha * unit, square, largest == T(0) && square == square);
      if (unit != T(1)) h.beta /= unit;
      const bool flip = positive && h.beta < T(0);
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const int row = group + s * groups;
        const T in_k = __shfl_sync(kAllLanes, a[s][b], k - b * P, P);
        const T weight = h.tau * (in_k + h.scale * sum_lanes(product[s], P)), scaled = weight * h.scale;
        if (row > k) {
#pragma unroll
          for (int i = b; i < C; ++i) a[s][i] -= scaled * x[i];
          if (has_k) a[s][b] = in_k - weight;
        } else if (row == k) {
#pragma unroll
          for (int i = b; i < C; ++i) a[s][i] = i > b || part > k - b * P ? x[i] * h.scale : a[s][i];
          if (has_k) a[s][b] = h.beta;
        }
        if (flip && has_k && row >= k) a[s][b] = -a[s][b];
      }
      if (threadIdx.x == 0) {
        taus[k] = h.tau;
        signs[k] = flip ? T(-1) : T(1);
      }
    }

  __syncthreads();
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int row = group + s * groups;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < C; ++i) {
      const int column = i * P + part;
      const T value = column <= row ? a[s][i] : T(0);
      if (row < m && column < rank) {
        lower(row, column) = value;
        finite = finite && isfinite(value);
      }
    }
    if (!finite) atomicMin(spoilt_row, row + 1);
  }
  __syncthreads();
  if (threadIdx.x == 0 && *spoilt_row <= m) report_failure(first_failure, item, *spoilt_row);
  if (!Q) return;

#pragma unroll
  for (int b = C - 1; b >= 0; --b)
#pragma unroll 1
    for (int k = ((b + 1) * P < rank ? (b + 1) * P : rank) - 1; k >= b * P; --k) {
      T* const buffer = buffers + k % 2 * (kColumns + 1);
      const bool has_k = part == k - b * P;
#pragma unroll
      for (int s = 0; s < S; ++s)
        if (group + s * groups == k) {
#pragma unroll
          for (int i = b; i < C; ++i) buffer[i * P + part] = i > b || part > k - b * P ? a[s][i] : T(has_k);
        }
      __syncthreads();
      const T tau = taus[k];
      T x[C], product[S] = {};
#pragma unroll
      for (int s = 0; s < S; ++s)
        if (has_k && group + s * groups > k) a[s][b] = 0;  // the entry of L there has been stored; Q has a zero so far
#pragma unroll
      for (int i = b; i < C; ++i) {
        x[i] = buffer[i * P + part];
#pragma unroll
        for (int s = 0; s < S; ++s) product[s] += a[s][i] * x[i];
      }
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const int row = group + s * groups;
        const T weight = tau * sum_lanes(product[s], P);
        if (row > k) {
#pragma unroll
          for (int i = b; i < C; ++i) a[s][i] -= weight * x[i];
        } else if (row == k) {
#pragma unroll
          for (int i = b + 1; i < C; ++i) a[s][i] = -tau * x[i];
          if (part >= k - b * P) a[s][b] = T(has_k) - tau * x[b];
        }
      }
    }
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int row = group + s * groups;
    if (row >= rank) continue;
#pragma unroll
    for (int i = 0; i < C; ++i)
      if (i * P + part < n) rest(row, i * P + part) = signs[row] * a[s][i];
  }
}
