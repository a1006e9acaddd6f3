// gelqf for batches of wide matrices with up to 128 rows and any number of columns, a block for each matrix.
//
// Columns are processed in chunks of P C. The first chunk is factored as a matrix of its own: L Q. For each later chunk,
// reflections take [L, chunk] to [L', 0]. The reflection of step k combines the diagonal entry l_kk with row k of the chunk:
//     v = (1 in column k of L, x_k scale);  it is applied to L_ik and row i of the chunk for i >= k.
// The chunk is in registers, S rows of C columns in each lane, P lanes per row; L is in shared memory.
// The orthogonal factor is computed from the last chunk back, starting from [Z, 0] with Z = I: the reflections of a chunk give its
// columns of Q and a new lower triangular Z for the chunk before. The first chunk gets Z Q.
#include "reflection.cuh"

// Updates L (k x k, any strides) from the factor of the first chunk to that of all chunks. `rows` (k x n, contiguous) holds A, and
// receives the scaled vectors x of all reflections: row k of a chunk is that of step k. The first chunk is not read. taus:
// (chunks - 1) k numbers per item. Numbers that are not finite are not reported here; they remain in L.
// Shared memory: k (k | 1) numbers, and two rows with a number each.
template <typename T, int P, int C, int S>
__global__ void __launch_bounds__(128 / S * P)
    factor_wide(T* L, Index l_item, Index l_row, Index l_col, T* rows, T* taus, Index height, Index width) {
  constexpr int kColumns = P * C;
  const int m = static_cast<int>(height), ld = m | 1;
  const int part = threadIdx.x % P, group = threadIdx.x / P, groups = blockDim.x / P;
  const Index item = blockIdx.x;
  T* const lower = shared_memory<T>();
  T* const buffers = lower + m * ld;
  T* const own = rows + item * m * width;
  T* own_taus = taus + item * ((width - 1) / kColumns) * m;
  const Matrix<T> target{L + item * l_item, l_row, l_col};
  for (int place = threadIdx.x; place < m * m; place += blockDim.x)
    lower[place / m * ld + place % m] = target(place / m, place % m);

  for (Index begin = kColumns; begin < width; begin += kColumns, own_taus += m) {
    T a[S][C];
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int i = 0; i < C; ++i) {
        const int row = group + s * groups;
        const Index column = begin + i * P + part;
        a[s][i] = row < m && column < width ? own[row * width + column] : T(0);
      }
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < m; ++k) {
      T* const buffer = buffers + k % 2 * (kColumns + 1);
#pragma unroll
      for (int s = 0; s < S; ++s)
        if (group + s * groups == k) {
          if (part == 0) buffer[kColumns] = lower[k * ld + k];
#pragma unroll
          for (int i = 0; i < C; ++i) buffer[i * P + part] = a[s][i];
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
        for (int i = 0; i < C; ++i) {
          x[i] = buffer[i * P + part] * unit;
          square += x[i] * x[i];
#pragma unroll
          for (int s = 0; s < S; ++s) product[s] += a[s][i] * x[i];
        }
        square = sum_lanes(square, P);
        if (again || is_ordinary(alpha, square)) break;  // the same in all threads
        largest = 0;
#pragma unroll
        for (int i = 0; i < C; ++i) largest = larger(fabs(x[i]), largest);
        largest = max_lanes(largest, P);
        unit = find_unit(larger(fabs(alpha), largest));
      }
      Reflection<T> h = make_reflection(alpha * unit, square, largest == T(0) && square == square);
      if (unit != T(1)) h.beta /= unit;
#pragma unroll
      for (int s = 0; s < S; ++s) {
        const int row = group + s * groups;
        const T in_k = __shfl_sync(kAllLanes, part == 0 && row < m ? lower[row * ld + k] : T(0), 0, P);
        const T weight = h.tau * (in_k + h.scale * sum_lanes(product[s], P)), scaled = weight * h.scale;
        if (row > k && row < m) {
#pragma unroll
          for (int i = 0; i < C; ++i) a[s][i] -= scaled * x[i];
          if (part == 0) lower[row * ld + k] = in_k - weight;
        } else if (row == k) {
#pragma unroll
          for (int i = 0; i < C; ++i) a[s][i] = x[i] * h.scale;
          if (part == 0) lower[k * ld + k] = h.beta;
        }
      }
      if (threadIdx.x == 0) own_taus[k] = h.tau;
    }
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
      for (int i = 0; i < C; ++i) {
        const int row = group + s * groups;
        const Index column = begin + i * P + part;
        if (row < m && column < width) own[row * width + column] = a[s][i];
      }
  }
  __syncthreads();
  for (int place = threadIdx.x; place < m * m; place += blockDim.x)
    target(place / m, place % m) = lower[place / m * ld + place % m];
}

// Replaces `rows`, which holds Q of the first chunk and the vectors that factor_wide stored, by the orthogonal factor. With
// `positive`, rows of Q and columns of L change their sign where the diagonal of L is negative. Failures: (item, row from 1) of
// entries of L that are not finite.
// Shared memory: k (k | 1) numbers, and kPanel rows.
template <typename T, int P, int C, int S>
__global__ void __launch_bounds__(128 / S * P)
    form_wide(T* L, Index l_item, Index l_row, Index l_col, T* rows, const T* taus, Index height, Index width,
              Index positive, Index* first_failure) {
  constexpr int kColumns = P * C;
  const int m = static_cast<int>(height), ld = m | 1;
  const int part = threadIdx.x % P, group = threadIdx.x / P, groups = blockDim.x / P;
  const Index item = blockIdx.x, chunks = (width - 1) / kColumns;  // without the first
  T* const Z = shared_memory<T>();
  T* const panel = Z + m * ld;
  T* const own = rows + item * m * width;
  const Matrix<T> lower{L + item * l_item, l_row, l_col};
  for (int place = threadIdx.x; place < m * ld; place += blockDim.x) Z[place] = T(place / ld == place % ld);

  for (Index chunk = chunks; chunk >= 0; --chunk) {
    const Index begin = chunk * kColumns;
    const T* const own_taus = taus + (item * chunks + chunk - 1) * m;
    T y[S][C] = {};
#pragma unroll 1
    for (int first = (m - 1) / kPanel * kPanel; first >= 0; first -= kPanel) {
      __syncthreads();  // the panel before has been read
      for (int place = threadIdx.x; place < kPanel * kColumns; place += blockDim.x) {
        const int row = first + place / kColumns;
        const Index column = begin + place % kColumns;
        panel[place] = row < m && column < width ? own[row * width + column] : T(0);
      }
      __syncthreads();
#pragma unroll 1
      for (int k = (first + kPanel < m ? first + kPanel : m) - 1; k >= first; --k) {
        const T* const reflected = panel + (k - first) * kColumns;
        const T tau = chunk ? own_taus[k] : T(0);
        T x[C], product[S] = {};
#pragma unroll
        for (int i = 0; i < C; ++i) {
          x[i] = reflected[i * P + part];
#pragma unroll
          for (int s = 0; s < S; ++s) product[s] += y[s][i] * x[i];
        }
#pragma unroll
        for (int s = 0; s < S; ++s) {
          const int row = group + s * groups;
          const T in_k = __shfl_sync(kAllLanes, part == 0 && row < m ? Z[row * ld + k] : T(0), 0, P);
          const T weight = chunk ? tau * (in_k + sum_lanes(product[s], P)) : -in_k;
          if (row < k || row >= m) continue;
          if (chunk && part == 0) Z[row * ld + k] = in_k - weight;
#pragma unroll
          for (int i = 0; i < C; ++i) y[s][i] -= weight * x[i];
        }
      }
    }
#pragma unroll
    for (int s = 0; s < S; ++s) {
      const int row = group + s * groups;
      if (row >= m) continue;
      const T sign = positive && lower(row, row) < T(0) ? T(-1) : T(1);
#pragma unroll
      for (int i = 0; i < C; ++i) {
        const Index column = begin + i * P + part;
        if (column < width) own[row * width + column] = sign * y[s][i];
      }
    }
  }
  __syncthreads();  // all signs have been read
  for (int j = threadIdx.x; j < m; j += blockDim.x) {
    const bool turn = positive && lower(j, j) < T(0);
    for (int i = j; i < m; ++i) {
      const T value = lower(i, j);
      if (turn) lower(i, j) = -value;
      if (!isfinite(value)) report_failure(first_failure, item, i + 1);
    }
  }
}
