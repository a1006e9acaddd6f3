// gelqf for batches of matrices that are too large for one block's registers: panels of up to 32 rows are factored here, and the rows
// below them are updated by products. With the reflections of a panel as the rows of V,
//     H_1 H_2 ... H_b = I - V^T T V,  T upper triangular:  T_kk = tau_k,  T_jk = -tau_k sum_{j <= i < k} T_ji (v_i . v_k) for j < k.
#include "reflection.cuh"

constexpr int kPanelWarps = 8;

// One block of 8 warps per matrix. A warp has S rows, 8 apart; a lane has C columns of them, 32 apart, in registers. `rows` <= 8 S <= 32
// rows from row `start` on are factored, with the `columns` <= 32 C columns from column `start` on. Column k of the panel is
// therefore in the first register of lane k. Work (items x height x width, contiguous) holds the rows, and receives V: zeros before the
// diagonal, ones on it. L receives the triangle on its diagonal, with columns of the sign that makes the diagonal positive; `signs`
// (items x rank) those signs. `factors` (items x panels x 8 S x 8 S) receives T of the panel number start / (8 S), zero below the
// diagonal and where there are no rows.
// Shared memory: two rows of 32 C, products of the reflections (8 S rows of 33), tau and the sign for each row.
template <typename T, int C, int S>
__global__ void __launch_bounds__(32 * kPanelWarps)
    factor_panel(T* L, Index l_item, Index l_row, Index l_col, T* work, T* factors, T* signs, Index height, Index width, Index rank,
                 Index start, Index panels) {
  constexpr int kRows = kPanelWarps * S, kColumns = 32 * C, ld = kRows + 1;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows = static_cast<int>(rank - start < kRows ? rank - start : kRows), columns = static_cast<int>(width - start);
  const Index item = blockIdx.x;
  T* const buffers = shared_memory<T>();
  T* const products = buffers + 2 * kColumns;
  T* const taus = products + kRows * ld;
  T* const turns = taus + kRows;
  T* const own = work + (item * height + start) * width + start;

  T a[S][C];
#pragma unroll
  for (int s = 0; s < S; ++s)
#pragma unroll
    for (int i = 0; i < C; ++i) {
      const int row = warp + s * kPanelWarps, column = i * 32 + lane;
      a[s][i] = row < rows && column < columns ? own[row * width + column] : T(0);
    }
  for (int place = threadIdx.x; place < kRows; place += blockDim.x) {
    taus[place] = 0;
    turns[place] = 1;
  }
  __syncthreads();

#pragma unroll 1
  for (int k = 0; k < rows; ++k) {
    T* const buffer = buffers + k % 2 * kColumns;
#pragma unroll
    for (int s = 0; s < S; ++s)
      if (warp + s * kPanelWarps == k) {
#pragma unroll
        for (int i = 0; i < C; ++i) buffer[i * 32 + lane] = a[s][i];
      }
    __syncthreads();
    const T alpha = buffer[k];
    T x[C], unit = 1, square, product[S], largest = 1;
#pragma unroll 1
    for (bool again = false;; again = true) {
      square = 0;
#pragma unroll
      for (int s = 0; s < S; ++s) product[s] = 0;
#pragma unroll
      for (int i = 0; i < C; ++i) {
        x[i] = i > 0 || lane > k ? buffer[i * 32 + lane] * unit : T(0);
        square += x[i] * x[i];
#pragma unroll
        for (int s = 0; s < S; ++s) product[s] += a[s][i] * x[i];
      }
      // All sums at once, so that their latencies overlap.
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        square += __shfl_xor_sync(kAllLanes, square, distance);
#pragma unroll
        for (int s = 0; s < S; ++s) product[s] += __shfl_xor_sync(kAllLanes, product[s], distance);
      }
      if (again || is_ordinary(alpha, square)) break;  // the same in all threads
      largest = 0;
#pragma unroll
      for (int i = 0; i < C; ++i) largest = larger(fabs(x[i]), largest);
      largest = max_lanes(largest);
      unit = find_unit(larger(fabs(alpha), largest));
    }
    Reflection<T> h = make_reflection(alpha * unit, square, largest == T(0) && square == square);
    if (unit != T(1)) h.beta /= unit;
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int row = warp + s * kPanelWarps;
      const T in_k = __shfl_sync(kAllLanes, a[s][0], k);
      const T reflected = in_k + h.scale * product[s];  // the product of the row with v; for earlier rows, of two v
      if (row > k) {
        const T weight = h.tau * reflected, scaled = weight * h.scale;
#pragma unroll
        for (int i = 0; i < C; ++i) a[s][i] -= scaled * x[i];
        if (lane == k) a[s][0] = in_k - weight;
      } else if (row == k) {
#pragma unroll
        for (int i = 0; i < C; ++i) a[s][i] = i > 0 || lane > k ? x[i] * h.scale : a[s][i];
        if (lane == k) a[s][0] = h.beta;
      } else if (lane == 0) {
        products[row * ld + k] = reflected;
      }
    }
    if (threadIdx.x == 0) {
      taus[k] = h.tau;
      turns[k] = h.beta < T(0) ? T(-1) : T(1);
    }
  }
  __syncthreads();

  const Matrix<T> lower{L + item * l_item + start * (l_row + l_col), l_row, l_col};
#pragma unroll
  for (int s = 0; s < S; ++s) {
    const int row = warp + s * kPanelWarps;
    if (row >= rows) continue;
    if (lane < rows) lower(row, lane) = lane <= row ? turns[lane] * a[s][0] : T(0);
    if (lane <= row) a[s][0] = T(lane == row);
#pragma unroll
    for (int i = 0; i < C; ++i)
      if (i * 32 + lane < columns) own[row * width + i * 32 + lane] = a[s][i];
  }
  if (threadIdx.x < rows) signs[item * rank + start + threadIdx.x] = turns[threadIdx.x];
  if (warp > 0 || lane >= kRows) return;
  T t[kRows];  // row `lane` of T
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    T sum[4] = {};  // four chains of products are faster than one
#pragma unroll
    for (int i = 0; i < k; ++i)
      if (k < rows) sum[i % 4] += t[i] * products[i * ld + k];
    t[k] = lane < k ? -taus[k] * ((sum[0] + sum[1]) + (sum[2] + sum[3])) : lane == k ? taus[k] : T(0);
  }
  T* const target = factors + ((item * panels + start / kRows) * kRows + lane) * kRows;
#pragma unroll
  for (int k = 0; k < kRows; ++k) target[k] = t[k];
}

// The last step for L, and the first for Q, by one warp per row: entries of L outside of the triangles that factor_panel wrote come from
// `work`, with the signs of their columns, and Q (rank x width) becomes its identity with the same signs. Q may be null.
// Failures: (item, row from 1) of rows of L that are not finite. grid = (rows / warps, items).
template <typename T>
__global__ void finish_lower(T* L, Index l_item, Index l_row, Index l_col, T* Q, Index q_item, Index q_row, Index q_col,
                             const T* work, const T* signs, Index height, Index width, Index rank, Index panel,
                             Index* first_failure) {
  const int lane = threadIdx.x % 32;
  const Index item = blockIdx.y, row = static_cast<Index>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= height) return;
  const Matrix<T> lower{L + item * l_item, l_row, l_col}, rest{Q + item * q_item, q_row, q_col};
  const T* const own = work + (item * height + row) * width;
  const T* const turns = signs + item * rank;
  const Index first = row < rank ? row / panel * panel : rank;  // columns from here to the end of the panel have been written
  bool finite = true;
  for (Index column = lane; column < rank; column += 32) {
    T value = 0;
    if (column < first) {
      value = turns[column] * own[column];
      lower(row, column) = value;
    } else if (column < first + panel) {
      value = lower(row, column);
    } else {
      lower(row, column) = value;
    }
    finite = finite && isfinite(value);
  }
  if (__any_sync(kAllLanes, !finite) && lane == 0) report_failure(first_failure, item, static_cast<int>(row) + 1);
  if (!Q || row >= rank) return;
  for (Index column = lane; column < width; column += 32) rest(row, column) = column == row ? turns[row] : T(0);
}
