// potrf for batches of matrices up to order 128, A = L L^T, and its gradient.
//
// Only the lower factor is implemented: the upper one is the lower one of the transposed matrix, with swapped strides.
#include "batch.cuh"

// Returns the status of an item: the order of the failed minor as in LAPACK, or -k if row k of the triangle is the first with a NaN
// or an infinity and no smaller minor failed.
__device__ inline int combine_status(int minor, int spoilt_row) {
  return spoilt_row && (minor == 0 || minor >= spoilt_row) ? -spoilt_row : minor;
}

// A square root and its reciprocal. In float64 both come from the reciprocal, which takes a third of the time of a root and a division;
// one step of Newton's method makes the root as accurate as sqrt to a unit in the last place.
__device__ inline void take_root(double value, double& root, double& inverse) {
  inverse = rsqrt(value);
  root = value * inverse;
  root = fma(0.5 * inverse, fma(-root, root, value), root);
}

__device__ inline void take_root(float value, float& root, float& inverse) {
  root = sqrt(value);
  inverse = 1.0f / root;
}

// Lane i has row i of A's lower triangle, zeros above, and gets row i of L. Returns the order of the first minor that
// is not positive, else 0; later entries are then meaningless. Groups of N lanes:
//     l_kk = sqrt(a_kk), l_ik = a_ik / l_kk, a_ij -= l_ik l_jk
template <typename T, int N>
__device__ int factor_rows(T (&a)[N], int lane) {
  int failed = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    T pivot = __shfl_sync(kAllLanes, a[k], k, N);
    if (!(pivot > T(0))) {
      failed = failed ? failed : k + 1;
      pivot = 1;
    }
    T root, inverse;
    take_root(pivot, root, inverse);
    a[k] = lane == k ? root : lane > k ? a[k] * inverse : T(0);
#pragma unroll
    for (int j = k + 1; j < N; ++j) a[j] -= a[k] * __shfl_sync(kAllLanes, a[k], j, N);
  }
  return failed;
}

// One group of N lanes per matrix of order n <= N; block = 32 k threads, grid = all groups.
// Shared memory: one tile per group.
template <typename T, int N>
__global__ void factor_small(T* L, Index l_item, Index l_row, Index l_col, const T* A, Index a_item, Index a_row,
                             Index a_col, Index order, Index items, int* info, Index* first_failure) {
  constexpr int ld = padded<T>(N);
  const int lane = threadIdx.x % N, group = threadIdx.x / N;
  const Index item = static_cast<Index>(blockIdx.x) * (blockDim.x / N) + group;
  const int n = item < items ? static_cast<int>(order) : 0;  // a group without an item factors the identity
  T* const tile = shared_memory<T>() + group * kTileStride<T, N>;
  load_lower<T, N>(tile, Matrix<const T>{A + item * a_item, a_row, a_col}, n, lane, T(1));
  __syncwarp();
  T row[N];
  read_row(row, tile + lane * ld);
  bool finite = true;
#pragma unroll
  for (int j = 0; j < N; ++j) finite = finite && isfinite(row[j]);
  const unsigned spoilt = __ballot_sync(kAllLanes, !finite) >> (threadIdx.x % 32 / N * N);
  const int code = combine_status(factor_rows(row, lane), __ffs(N == 32 ? spoilt : spoilt & ((1u << N % 32) - 1)));
  if (code) {
#pragma unroll
    for (int j = 0; j < N; ++j) row[j] = j == lane;
  }
  write_row(tile + lane * ld, row);
  __syncwarp();
  store_square<T, N>(Matrix<T>{L + item * l_item, l_row, l_col}, tile, n, lane);
  if (lane == 0 && n) {
    if (info) info[item] = code;
    if (code) report_failure(first_failure, item, code);
  }
}

// Calls visit(i, j) for all elements of an n x n matrix; neighbouring lanes get neighbours in memory.
template <typename T, typename Visit>
__device__ void for_elements(const Matrix<T>& A, int n, Visit visit) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const bool by_rows = lies_by_rows(A);
  for (int p = warp; p < n; p += warps)
    for (int q = lane; q < n; q += 32) by_rows ? visit(p, q) : visit(q, p);
}

// One block per matrix, in panels of 16 columns: the diagonal block by one warp, the rows below it by one thread each,
// then the rest of the lower triangle in blocks of 16 x 16, each by 16 threads. `order` <= 128 is padded to a
// multiple of 16 by the identity. Shared memory: the matrix, a transposed diagonal block, its inverse diagonal, and
// two numbers.
template <typename T>
__global__ void factor_medium(T* L, Index l_item, Index l_row, Index l_col, const T* A, Index a_item, Index a_row,
                              Index a_col, Index order, int* info, Index* first_failure) {
  constexpr int kPack = Pack<T>::kSize, ld_panel = padded<T>(kPanel);
  const int n = static_cast<int>(order), size = (n + kPanel - 1) / kPanel * kPanel, ld = padded<T>(size);
  const Index item = blockIdx.x;
  const int thread = threadIdx.x, threads = blockDim.x;
  T* const W = shared_memory<T>();
  T* const turned = W + size * ld;  // the diagonal block of L, transposed
  T* const inverse = turned + kPanel * ld_panel;
  int* const spoilt_row = reinterpret_cast<int*>(inverse + kPanel);
  int* const failed_minor = spoilt_row + 1;
  const Matrix<const T> source{A + item * a_item, a_row, a_col};

  if (thread == 0) {
    *spoilt_row = size + 1;
    *failed_minor = 0;
  }
  __syncthreads();
  for_elements(source, size, [&](int i, int j) {
    const T value = i < n && j <= i ? source(i, j) : T(i >= n && i == j);
    if (!isfinite(value)) atomicMin(spoilt_row, i + 1);
    W[i * ld + j] = value;
  });
  __syncthreads();

  for (int start = 0; start < size; start += kPanel) {
    T* const diagonal = W + start * ld + start;
    if (thread < 32) {
      const int lane = thread % kPanel;
      T row[kPanel];
      read_row(row, diagonal + lane * ld);
#pragma unroll
      for (int j = 0; j < kPanel; ++j) row[j] = j <= lane ? row[j] : T(0);
      const int failed = factor_rows(row, lane);
      __syncwarp();
      if (thread < kPanel) {
        write_row(diagonal + lane * ld, row);
#pragma unroll
        for (int j = 0; j < kPanel; ++j) {
          turned[j * ld_panel + lane] = row[j];
          if (j == lane) inverse[j] = T(1) / row[j];
        }
      }
      if (thread == 0 && failed && !*failed_minor) *failed_minor = start + failed;
    }
    __syncthreads();
    const int below = start + kPanel;
    for (int i = below + thread; i < size; i += threads) {
      T x[kPanel];
      read_row(x, W + i * ld + start);
#pragma unroll
      for (int k = 0; k < kPanel; ++k) {  // x L_JJ^T = a
        x[k] *= inverse[k];
#pragma unroll
        for (int j = k / kPack * kPack; j < kPanel; j += kPack) {
          const Pack<T> pack = pack_at(turned + k * ld_panel + j);
#pragma unroll
          for (int s = 0; s < kPack; ++s)
            if (j + s > k) x[j + s] -= pack.at[s] * x[k];
        }
      }
      write_row(W + i * ld + start, x);
    }
    __syncthreads();
    // a_ij -= sum_k l_ik l_jk
    const int blocks = (size - below) / kPanel, u = thread % 16 / 4, v = thread % 4;
    for (int number = thread / 16; number < blocks * (blocks + 1) / 2; number += threads / 16) {
      int block_row, block_col;
      find_block(number, block_row, block_col);
      T* const rows = W + (below + block_row * kPanel) * ld;
      subtract_product(rows + below + block_col * kPanel, ld, rows + start, ld,
                       W + (below + block_col * kPanel) * ld + start, ld, u, v);
    }
    __syncthreads();
  }

  const int code = combine_status(*failed_minor, *spoilt_row > size ? 0 : *spoilt_row);
  const Matrix<T> target{L + item * l_item, l_row, l_col};
  for_elements(target, n, [&](int i, int j) { target(i, j) = code ? T(i == j) : j <= i ? W[i * ld + j] : T(0); });
  if (thread == 0) {
    if (info) info[item] = code;
    if (code) report_failure(first_failure, item, code);
  }
}

// G := L^-T copyltu(L^T tril(G)) L^-1 of order N, by a group of N lanes, in tiles. Lane j starts with column j of G,
// which is all of G that its column of L^T G needs. Both solves are the same code: the second one runs on rows of the first one's
// result. `inverse` receives 1 / l_kk. Lanes that are not `active` only take part in barriers.
template <typename T, int N>
__device__ void pull_back_tile(T* L, T* G, T* inverse, int lane, bool active) {
  constexpr int ld = padded<T>(N);
  T x[N], mirrored[N];
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = k >= lane ? G[k * ld + lane] : T(0);
  if (active) inverse[lane] = T(1) / L[lane * ld + lane];
#pragma unroll
  for (int k = 0; k < N; ++k) {  // x_i += l_ki g_k for i <= k; g_k is not needed after this
    const T own = x[k];
    x[k] = 0;
#pragma unroll
    for (int i = 0; i <= k; i += Pack<T>::kSize) {
      const Pack<T> pack = pack_at(L + k * ld + i);
#pragma unroll
      for (int s = 0; s < Pack<T>::kSize; ++s)
        if (i + s <= k) x[i + s] += pack.at[s] * own;
    }
  }
  __syncwarp();
  if (active) {
#pragma unroll
    for (int i = 0; i < N; ++i) G[i * ld + lane] = x[i];
  }
  __syncwarp();
  read_row(mirrored, G + lane * ld);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = i < lane ? mirrored[i] : x[i];
  solve_transposed(x, L, inverse);
  __syncwarp();
  if (active) {
#pragma unroll
    for (int i = 0; i < N; ++i) G[i * ld + lane] = x[i];
  }
  __syncwarp();
  read_row(x, G + lane * ld);
  solve_transposed(x, L, inverse);
  __syncwarp();
  if (active) write_row(G + lane * ld, x);
  __syncwarp();
}

// gA := 1/2 L^-T copyltu(L^T tril(gL)) L^-1, and 0 for items whose info is not 0. One group of N lanes per matrix.
// Shared memory: two tiles and N numbers per group.
template <typename T, int N>
__global__ void pull_back_small(T* gA, Index g_item, Index g_row, Index g_col, const T* L, Index l_item, Index l_row,
                                Index l_col, const T* gL, Index gl_item, Index gl_row, Index gl_col, Index order,
                                Index items, const int* info) {
  constexpr int ld = padded<T>(N);
  const int lane = threadIdx.x % N, group = threadIdx.x / N, groups = blockDim.x / N;
  const Index item = static_cast<Index>(blockIdx.x) * groups + group;
  const int n = item < items ? static_cast<int>(order) : 0;
  T* const factor = shared_memory<T>() + group * 2 * kTileStride<T, N>;
  T* const G = factor + kTileStride<T, N>;
  T* const inverse = shared_memory<T>() + groups * 2 * kTileStride<T, N> + group * N;
  load_lower<T, N>(factor, Matrix<const T>{L + item * l_item, l_row, l_col}, n, lane, T(1));
  load_lower<T, N>(G, Matrix<const T>{gL + item * gl_item, gl_row, gl_col}, n, lane, T(0));
  const bool failed = n && info && info[item] != 0;
  __syncwarp();
  pull_back_tile<T, N>(factor, G, inverse, lane, true);
  if (lane >= n) return;
  const Matrix<T> target{gA + item * g_item, g_row, g_col};
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < n) target(i, lane) = failed ? T(0) : T(0.25) * (G[i * ld + lane] + G[lane * ld + i]);
}

// The same for order <= 128: one block per matrix, the reverse sweep over panels J of 16 columns from the last one back.
// R are the rows after J, and H = G + G^T of the blocks that are done, stored in full:
//     G_RJ := (G_RJ - H_RR L_RJ) L_JJ^-1,  G_JJ := G_JJ - tril(G_RJ^T L_RJ),  H_JJ := L_JJ^-T copyltu(L_JJ^T G_JJ) L_JJ^-1
// and gA = H / 2 in the end. L and gL are read panel by panel. Threads: two per row of the padded matrix, because four
// threads compute two rows of the product. Shared memory: H, a panel of L and one of G, 16 numbers.
template <typename T>
__global__ void pull_back_medium(T* gA, Index g_item, Index g_row, Index g_col, const T* L, Index l_item, Index l_row,
                                 Index l_col, const T* gL, Index gl_item, Index gl_row, Index gl_col, Index order,
                                 const int* info) {
  constexpr int kPack = Pack<T>::kSize, ld_panel = padded<T>(kPanel);
  const int n = static_cast<int>(order), size = (n + kPanel - 1) / kPanel * kPanel, ld = padded<T>(size);
  const Index item = blockIdx.x;
  const int thread = threadIdx.x, threads = blockDim.x;
  T* const H = shared_memory<T>();
  T* const panel = H + size * ld;  // columns J of L, rows counted from the first of J
  T* const G = panel + size * ld_panel;
  T* const inverse = G + size * ld_panel;
  const Matrix<const T> factor{L + item * l_item, l_row, l_col}, cotangent{gL + item * gl_item, gl_row, gl_col};
  const Matrix<T> target{gA + item * g_item, g_row, g_col};

  for (int start = size - kPanel; start >= 0; start -= kPanel) {
    const int rows = size - start, after = rows - kPanel;
    const bool by_rows = lies_by_rows(factor);
    for (int e = thread; e < rows * kPanel; e += threads) {
      const int i = by_rows ? e / kPanel : e % rows, c = by_rows ? e % kPanel : e / rows;
      const bool inside = start + i < n && c <= i;
      panel[i * ld_panel + c] = inside ? factor(start + i, start + c) : T(start + i >= n && c == i);
      G[i * ld_panel + c] = inside ? cotangent(start + i, start + c) : T(0);
    }
    __syncthreads();
    if (thread < kPanel) inverse[thread] = T(1) / panel[thread * ld_panel + thread];
    const T* const L_RJ = panel + kPanel * ld_panel;
    T* const H_RR = H + (start + kPanel) * (ld + 1);
    {
      // Thread (i, j): rows i and i + threads / 4 of R, columns 4 j to 4 j + 3 of J.
      const int j = thread % 4 * 4, first = thread / 4, second = first + threads / 4;
      T sum[2][4] = {};
      if (first < after) multiply_two_rows(sum, H_RR, ld, L_RJ, first, second, after, after, j);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        if (first < after) G[(kPanel + first) * ld_panel + j + t] -= sum[0][t];
        if (second < after) G[(kPanel + second) * ld_panel + j + t] -= sum[1][t];
      }
    }
    __syncthreads();
    for (int i = thread; i < after; i += threads) {
      T x[kPanel];
      read_row(x, G + (kPanel + i) * ld_panel);
      solve_transposed(x, panel, inverse);
      const int row = start + kPanel + i;
      write_row(H + row * ld + start, x);
#pragma unroll
      for (int c = 0; c < kPanel; ++c) H[(start + c) * ld + row] = x[c];
    }
    __syncthreads();
    for (int e = thread; e < kPanel * kPanel; e += threads) {
      const int i = e / kPanel, j = e % kPanel;
      const T* const g = H + (start + i) * ld + start + kPanel;
      T sum = 0;
      for (int k = 0; k < after; k += kPack) {
        const Pack<T> pack = pack_at(g + k);
#pragma unroll
        for (int q = 0; q < kPack; ++q) sum += pack.at[q] * L_RJ[(k + q) * ld_panel + j];
      }
      G[i * ld_panel + j] -= sum;
    }
    __syncthreads();
    if (thread < 32) {
      pull_back_tile<T, kPanel>(panel, G, inverse, thread % kPanel, thread < kPanel);
      if (thread < kPanel)
        for (int i = 0; i < kPanel; ++i)
          H[(start + i) * ld + start + thread] = T(0.5) * (G[i * ld_panel + thread] + G[thread * ld_panel + i]);
    }
    __syncthreads();
  }
  const bool failed = info && info[item] != 0;
  for_elements(target, n, [&](int i, int j) { target(i, j) = failed ? T(0) : T(0.5) * H[i * ld + j]; });
}
