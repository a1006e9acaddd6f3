// The gradient of gelqf for batches of wide or square matrices, and the check that it exists.
#include "batch.cuh"

// Reports (item, row from 0) of rows that depend linearly on the rows before: |l_ii| is at most the tolerance times the largest
// entry of the row, or with relative_to_largest times the largest |l_jj|. `kLanes` lanes per row.
template <typename T, int kLanes>
__global__ void find_dependent_rows(const T* L, Index l_item, Index l_row, Index l_col, Index rank, Index items,
                                    double tolerance, Index relative_to_largest, Index* first_failure) {
  const Index number = (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const Index item = number / rank, i = number % rank;
  const bool any = item < items;
  const Matrix<const T> factor{L + item * l_item, l_row, l_col};
  T scale = 0;
  int unknown = 0;  // whether there is a NaN, which the comparison for the largest does not find
  if (any)
    for (Index j = threadIdx.x % kLanes; j < (relative_to_largest ? rank : i + 1); j += kLanes) {
      const T size = fabs(factor(relative_to_largest ? j : i, j));
      scale = size > scale ? size : scale;
      unknown = unknown || size != size;
    }
  scale = max_lanes(scale, kLanes);
  unknown = max_lanes(unknown, kLanes);
  if (any && threadIdx.x % kLanes == 0 && (unknown || !(fabs(factor(i, i)) > T(tolerance) * scale)))
    report_failure(first_failure, item, static_cast<int>(i));
}

// gA := L^-T (gQ + Z Q), Z = copyltu(L^T tril(gL) - gQ Q^T), for m <= n; gQ or gL may be 0.
//
// One block per matrix. Z is accumulated from 16 columns at a time of (L^T, gL^T) and of (gQ, Q). gQ + Z Q is written to gA in
// chunks of 16 columns; then each thread solves for its own columns, in place. Threads: two per row of the matrix, rounded up to a
// multiple of 16. Shared memory: L, Z, two chunks, the inverse of the diagonal.
template <typename T>
__global__ void pull_back(T* gA, Index ga_item, Index ga_row, Index ga_col, const T* Q, Index q_item, Index q_row,
                          Index q_col, const T* L, Index l_item, Index l_row, Index l_col, const T* gQ, Index gq_item,
                          Index gq_row, Index gq_col, const T* gL, Index gl_item, Index gl_row, Index gl_col, Index rows,
                          Index columns) {
  constexpr int ld_chunk = padded<T>(kPanel);
  const int m = static_cast<int>(rows), n = static_cast<int>(columns);
  const int panels = (m + kPanel - 1) / kPanel, size = panels * kPanel, ld = padded<T>(size);
  const int thread = threadIdx.x, threads = blockDim.x;
  const Index item = blockIdx.x;
  T* const factor = shared_memory<T>();
  T* const Z = factor + size * ld;
  T* const left = Z + size * ld;
  T* const right = left + size * ld_chunk;
  T* const inverse = right + size * ld_chunk;
  const Matrix<T> target{gA + item * ga_item, ga_row, ga_col};
  const Matrix<const T> orthogonal{Q + item * q_item, q_row, q_col}, lower{L + item * l_item, l_row, l_col};
  const Matrix<const T> of_Q{gQ + item * gq_item, gq_row, gq_col}, of_L{gL + item * gl_item, gl_row, gl_col};

  for (int e = thread; e < size * size; e += threads) {
    const int i = e / size, j = e % size;
    const T value = i < m && j <= i ? lower(i, j) : T(i >= m && i == j);
    factor[i * ld + j] = value;
    Z[i * ld + j] = 0;
    if (i == j) inverse[i] = T(1) / value;
  }
  const auto add_up = [&] {
    __syncthreads();
    for (int number = thread / 16; number < panels * (panels + 1) / 2; number += threads / 16) {
      int row, column;
      find_block(number, row, column);
      subtract_product(Z + row * kPanel * ld + column * kPanel, ld, left + row * kPanel * ld_chunk, ld_chunk,
                       right + column * kPanel * ld_chunk, ld_chunk, thread % 16 / 4, thread % 4);
    }
    __syncthreads();
  };
  if (gL) {
    __syncthreads();
    for (int start = 0; start < size; start += kPanel) {
      for (int e = thread; e < kPanel * size; e += threads) {  // rows of L and gL become columns
        const int k = e / size, i = e % size;
        left[i * ld_chunk + k] = -factor[(start + k) * ld + i];
        right[i * ld_chunk + k] = start + k < m && i <= start + k ? of_L(start + k, i) : T(0);
      }
      add_up();
    }
  }
  const auto load_chunk = [&](T* chunk, const Matrix<const T>& source, int start) {
    for (int e = thread; e < size * kPanel; e += threads) {
      const int i = e / kPanel, c = e % kPanel;
      chunk[i * ld_chunk + c] = i < m && start + c < n ? source(i, start + c) : T(0);
    }
  };
  if (gQ)
    for (int start = 0; start < n; start += kPanel) {
      load_chunk(left, of_Q, start);
      load_chunk(right, orthogonal, start);
      add_up();
    }
  for (int e = thread; e < size * size; e += threads)
    if (e % size > e / size) Z[e / size * ld + e % size] = Z[e % size * ld + e / size];

  for (int start = 0; start < n; start += kPanel) {
    __syncthreads();
    load_chunk(right, orthogonal, start);
    __syncthreads();
    const int j = thread % 4 * 4, first = thread / 4, second = first + threads / 4;
    T sum[2][4] = {};
    if (first < size) multiply_two_rows(sum, Z, ld, right, first, second, size, size, j);
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int i = s ? second : first, c = start + j + t;
        if (i < m && c < n) target(i, c) = sum[s][t] + (gQ ? of_Q(i, c) : T(0));
      }
  }
  __syncthreads();

  for (int c = thread; c < n; c += threads)
    for (int start = size - kPanel; start >= 0; start -= kPanel) {
      T x[kPanel];
#pragma unroll
      for (int i = 0; i < kPanel; ++i) x[i] = start + i < m ? target(start + i, c) : T(0);
#pragma unroll 1
      for (int after = start + kPanel; after < size; after += kPanel) {
        T y[kPanel];
#pragma unroll
        for (int k = 0; k < kPanel; ++k) y[k] = after + k < m ? target(after + k, c) : T(0);
#pragma unroll
        for (int k = 0; k < kPanel; ++k) {
          T row[kPanel];
          read_row(row, factor + (after + k) * ld + start);
#pragma unroll
          for (int i = 0; i < kPanel; ++i) x[i] -= row[i] * y[k];
        }
      }
      solve_transposed(x, factor + start * (ld + 1), inverse + start, ld);
#pragma unroll
      for (int i = 0; i < kPanel; ++i)
        if (start + i < m) target(start + i, c) = x[i];
    }
}
