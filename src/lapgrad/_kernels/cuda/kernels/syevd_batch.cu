// Eigenvalues and eigenvectors of batches of small symmetric matrices, a group of lanes of a warp for each.
//
// Householder reflections to tridiagonal form, then implicit QL steps (the shifts of EISPACK's imtql2), as on the CPU.
// Compared with two-sided Jacobi this takes a tenth of the operations and half of the memory: the reflectors, the orthogonal
// matrix and the eigenvectors use the same n x n array one after the other, so that six matrices of order 64 in float64 fit into
// the shared memory of one multiprocessor. A QL step is a chain of scalar operations, on which a block of many warps would only
// wait. All lanes of a group compute the chain, and each rotates its own columns of the eigenvectors, without any barrier.
//
// For orders up to 16 several matrices share a warp. Their steps run in parallel, each with its own bounds.
#include "spectral.cuh"

constexpr int kMostSteps = 60;  // for each eigenvalue; 2 are usual

// The arrays of one matrix in shared memory.
template <typename T>
struct Eigenproblem {
  int n, stride;
  T* rows;        // n x n with an odd stride, so that lanes read along rows and columns without bank conflicts
  T *d, *e;       // the tridiagonal matrix
  T *d_next, *e_next;
  T* beta;        // of the reflectors

  __device__ T& at(int i, int k) const { return rows[i * stride + k]; }
};

template <typename T>
__device__ Eigenproblem<T> lay_out_eigenproblem(T* memory, int n) {
  const int stride = n | 1;
  T* const vectors = memory + n * stride;
  return {n, stride, memory, vectors, vectors + n, vectors + 2 * n, vectors + 3 * n, vectors + 4 * n};
}

// Loads both triangles from the lower one of the source (an upper one is passed with swapped strides), scaled by a power of two so
// that the largest entry is in [1, 2). Returns the scale; 0 for a matrix with a NaN or an infinity, which is set to zero.
template <typename T, int lanes>
__device__ T load_scaled(const Eigenproblem<T>& p, const Matrix<const T>& source, int lane) {
  T most = 0, wrong = 0;
  const bool along_rows = source.col <= source.row;
  for (int line = 0; line < p.n; ++line)
    for (int other = lane; other < p.n; other += lanes) {
      const int i = along_rows ? line : other, k = along_rows ? other : line;
      if (k > i) continue;
      const T x = source(i, k);
      const T size = absolute(x);
      most = size > most ? size : most;
      if (!(size <= Numbers<T>::largest)) wrong = 1;
      p.at(i, k) = x;
      p.at(k, i) = x;
    }
  most = max_lanes(most, lanes);
  const bool finite = max_lanes(wrong, lanes) == T(0);
  T scale = most >= Numbers<T>::smallest && finite ? T(ldexp(1.0, ilogb(most))) : Numbers<T>::smallest;
  const T inverse = T(1) / scale;
  __syncwarp();
  for (int i = 0; i < p.n; ++i)
    for (int k = lane; k < p.n; k += lanes) p.at(i, k) = finite ? p.at(i, k) * inverse : T(0);
  __syncwarp();
  return finite ? scale : T(0);
}

// A = Q T Q', T into d and e. H_j = 1 - beta_j v v'; v, from column j + 1 on, replaces row j.
template <typename T, int columns, int lanes>
__device__ void tridiagonalise(const Eigenproblem<T>& p, int lane) {
  // Squares below this have lost digits to underflow. In a matrix scaled to size 1, a number with such a square counts as 0.
  constexpr T negligible = Numbers<T>::smallest / Numbers<T>::eps;
  const int n = p.n;
  T* const v = p.d_next;
  T* const w = p.e_next;
  for (int j = 0; j + 2 < n; ++j) {
    T own[columns], product[columns], tail = 0;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int k = lane + c * lanes;
      own[c] = k > j && k < n ? p.at(j, k) : T(0);
      if (k > j + 1) tail += own[c] * own[c];
      product[c] = 0;
    }
    const T head = p.at(j, j + 1);
    tail = sum_lanes(tail, lanes);
    __syncwarp();
    const bool reflects = tail > negligible;
    const T square = head * head + tail, norm = sqrt(square), image = head > T(0) ? -norm : norm;
    const T beta = reflects ? T(1) / (square - head * image) : T(0);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int k = lane + c * lanes;
      if (k == j + 1) own[c] = head - image;
      if (k > j && k < n) p.at(j, k) = v[k] = own[c];
    }
    if (lane == 0) {
      p.d[j] = p.at(j, j);
      p.e[j] = reflects ? image : head;
      p.beta[j] = beta;
    }
    __syncwarp();
    if (lanes == 32 && !reflects) continue;  // all lanes of the warp take the same branch
    // w = beta A v - 1/2 beta^2 (v' A v) v, then A := A - v w' - w v'.
    for (int i = j + 1; i < n; ++i) {
      const T vi = v[i];
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int k = lane + c * lanes;
        if (k > j && k < n) product[c] += p.at(i, k) * vi;
      }
    }
    T inner = 0;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      product[c] *= beta;
      inner += own[c] * product[c];
    }
    const T shift = T(0.5) * beta * sum_lanes(inner, lanes);
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int k = lane + c * lanes;
      product[c] -= shift * own[c];
      if (k > j && k < n) w[k] = product[c];
    }
    __syncwarp();
    for (int i = j + 1; i < n; ++i) {
      const T vi = v[i], wi = w[i];
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int k = lane + c * lanes;
        if (k > j && k < n) p.at(i, k) -= vi * product[c] + wi * own[c];
      }
    }
    __syncwarp();
  }
  if (lane == 0)
    for (int j = n > 2 ? n - 2 : 0; j < n; ++j) {
      p.d[j] = p.at(j, j);
      p.e[j] = j + 1 < n ? p.at(j, j + 1) : T(0);
    }
  __syncwarp();
}

// rows := Q' = H_{n-3} ... H_0, starting with the last reflector, which touches the smallest block. Each lane computes its own rows.
template <typename T, int lanes>
__device__ void form_vectors(const Eigenproblem<T>& p, int lane) {
  const int n = p.n;
  if (lane == 0) p.at(n - 1, n - 1) = 1;
  for (int j = n - 3; j >= 0; --j) {
    const int first = j + 1;
    const T beta = p.beta[j];
    const T* const v = p.rows + j * p.stride;
    __syncwarp();
    for (int i = first + lane; i < n; i += lanes) {
      T* const row = p.rows + i * p.stride;
      T inner = 0;
      if (i == first) {
        inner = v[first];
        for (int k = first + 1; k < n; ++k) row[k] = 0;
      } else {
        for (int k = first + 1; k < n; ++k) inner += row[k] * v[k];
      }
      inner *= beta;
      row[first] = T(i == first) - inner * v[first];
      for (int k = first + 1; k < n; ++k) row[k] -= inner * v[k];
    }
  }
  __syncwarp();
  for (int k = lane; k < n; k += lanes) p.at(0, k) = p.at(k, 0) = T(k == 0);
  __syncwarp();
}

template <typename T>
__device__ bool is_small(const Eigenproblem<T>& p, int i) {
  return absolute(p.e[i]) <= Numbers<T>::eps * (absolute(p.d[i]) + absolute(p.d[i + 1])) + Numbers<T>::eps * Numbers<T>::eps;
}

// Returns a bit mask, the same in all lanes of the group: bit i is set if e_i is negligible or i >= n - 1.
template <typename T, int columns, int lanes>
__device__ unsigned long long find_small_entries(const Eigenproblem<T>& p, int lane) {
  unsigned long long bits = 0;
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    const int i = lane + c * lanes;
    const unsigned ballot = __ballot_sync(kAllLanes, i >= p.n - 1 || is_small(p, i));
    bits |= static_cast<unsigned long long>(select_group(ballot, static_cast<int>(threadIdx.x % 32), lanes)) << (c * lanes);
  }
  return bits | ~0ull << (p.n - 1);
}

// Returns the first bit that is set, from `begin` on; there must be one.
__device__ inline int find_first_bit(unsigned long long bits, int begin) {
  return begin + __ffsll(static_cast<long long>(bits >> begin)) - 1;
}

// d := eigenvalues of the tridiagonal matrix; the rows are rotated into its eigenvectors. Returns whether it converged.
template <typename T, int columns, int lanes, bool vectors>
__device__ bool iterate(const Eigenproblem<T>& p, int lane) {
  constexpr T negligible = Numbers<T>::smallest / Numbers<T>::eps;
  const int n = p.n;
  int first = 0, steps = 0;
  bool converged = true;
  for (;;) {
    // Everything before the first e that is not small is done. From there the block extends to the next small e.
    const unsigned long long small = find_small_entries<T, columns, lanes>(p, lane);
    const int begin = converged ? find_first_bit(~small | 1ull << (n - 1), first) : n - 1;
    steps = begin == first ? steps + 1 : 1;
    first = begin;
    if (steps > kMostSteps && first < n - 1) {
      converged = false;
      first = n - 1;
    }
    if (!__any_sync(kAllLanes, first < n - 1)) return converged;
    const int last = find_first_bit(small, first);
    int written = n;  // the first index with new values
    if (first < last) {
      const T e_first = p.e[first], d_first = p.d[first];
      const T ratio = (p.d[first + 1] - d_first) / (T(2) * e_first), root = sqrt(ratio * ratio + T(1));
      T upper = p.d[last];  // the diagonal entry with the larger index of the current pair
      T g = upper - d_first + e_first / (ratio + (ratio < T(0) ? -root : root));
      T s = 1, c = 1, shift = 0;
      // The next numbers are read one step ahead, so that the chain of operations below does not wait for memory.
      T e_next = p.e[last - 1], d_next = p.d[last - 1], row_next[columns], carried[columns];
      if constexpr (vectors) {
#pragma unroll
        for (int r = 0; r < columns; ++r) {
          const int k = lane + r * lanes;
          row_next[r] = k < n ? p.at(last - 1, k) : T(0);
          carried[r] = k < n ? p.at(last, k) : T(0);
        }
      }
      int i = last - 1;
      for (; i >= first; --i) {
        const int ahead = i > 0 ? i - 1 : 0;
        const T ei = e_next, di = d_next;
        T row[columns];
        e_next = p.e[ahead];
        d_next = p.d[ahead];
        if constexpr (vectors) {
#pragma unroll
          for (int r = 0; r < columns; ++r) {
            row[r] = row_next[r];
            if (lane + r * lanes < n) row_next[r] = p.at(ahead, lane + r * lanes);
          }
        }
        const T f = s * ei, b = c * ei, square = f * f + g * g;
        if (square <= negligible) break;
        const T inverse = inverse_root(square);
        s = f * inverse;
        c = g * inverse;
        const T below = upper - shift, r = (di - below) * s + T(2) * c * b;
        shift = s * r;
        if (lane == 0) {
          p.e_next[i + 1] = i + 1 == last ? T(0) : square * inverse;
          p.d_next[i + 1] = below + shift;
        }
        g = c * r - b;
        upper = di;
        if constexpr (vectors) {
#pragma unroll
          for (int r = 0; r < columns; ++r) {
            const T x = row[r], y = carried[r];
            if (lane + r * lanes < n) p.at(i + 1, lane + r * lanes) = s * x + c * y;
            carried[r] = c * x - s * y;
          }
        }
      }
      // Stores the last row and values. If the loop stopped early, the block is split above i + 1.
      if constexpr (vectors) {
#pragma unroll
        for (int r = 0; r < columns; ++r)
          if (lane + r * lanes < n) p.at(i + 1, lane + r * lanes) = carried[r];
      }
      if (lane == 0) {
        p.d_next[i + 1] = upper - shift;
        p.e_next[i + 1] = i < first ? g : T(0);
      }
      written = i + 1;
    }
    // Values that all lanes read are replaced only after all lanes have read them.
    __syncwarp();
    for (int k = written + lane; k <= last; k += lanes) {
      p.d[k] = p.d_next[k];
      p.e[k] = p.e_next[k];
    }
    __syncwarp();
  }
}

// d_next := the rank of each row in ascending order of eigenvalues; e_next := the sign that makes its leading entry positive.
template <typename T, int lanes, bool vectors>
__device__ void order_rows(const Eigenproblem<T>& p, int lane) {
  const int n = p.n;
  for (int i = lane; i < n; i += lanes) {
    const T own = p.d[i];
    int place = 0;
    for (int j = 0; j < n; ++j) place += j < i ? p.d[j] <= own : p.d[j] < own;
    p.d_next[i] = place;
    if constexpr (vectors) {
      T most = 0;
      for (int k = 0; k < n; ++k) {
        const T size = absolute(p.at(i, k));
        most = size > most ? size : most;
      }
      most *= T(kSameSize);
      T decisive = 0;
      for (int k = n - 1; k >= 0; --k) {
        const T x = p.at(i, k);
        decisive = absolute(x) >= most ? x : decisive;
      }
      p.e_next[i] = decisive < T(0) ? T(-1) : T(1);
    }
  }
  __syncwarp();
}

// Ascending eigenvalues of the lower triangle of each item, and with `vectors` rows of eigenvectors; both contiguous.
// order: the largest n; lanes: lanes per matrix. A block computes as many matrices as it has groups of lanes.
// Shared memory: for each matrix n (n | 1) + 5 n numbers. Failures: code -1 for NaN or infinity, 1 for no convergence.
template <typename T, int order, int lanes, bool vectors>
__global__ void syevd(const T* A, Index a_item, Index a_row, Index a_col, T* eigenvalues, T* U, Index* failure,
                      Index items, Index size) {
  constexpr int columns = (order + lanes - 1) / lanes;
  const int n = static_cast<int>(size), lane = threadIdx.x % lanes, group = threadIdx.x / lanes;
  const int groups = static_cast<int>(blockDim.x) / lanes;
  const Index wanted = static_cast<Index>(blockIdx.x) * groups + group;
  const bool present = wanted < items;
  const Index item = present ? wanted : items - 1;  // lanes without an item repeat the last one, because they share shuffles with others
  const Eigenproblem<T> p = lay_out_eigenproblem(shared_memory<T>() + group * (n * (n | 1) + 5 * n), n);
  const T scale = load_scaled<T, lanes>(p, {A + item * a_item, a_row, a_col}, lane);
  tridiagonalise<T, columns, lanes>(p, lane);
  if constexpr (vectors) form_vectors<T, lanes>(p, lane);
  const bool converged = iterate<T, columns, lanes, vectors>(p, lane);
  order_rows<T, lanes, vectors>(p, lane);
  if (!present) return;
  bool finite = scale != T(0);
  for (int i = lane; i < n; i += lanes) {
    const T value = scale != T(0) ? p.d[i] * scale : T(nan(""));
    finite = finite && absolute(value) <= Numbers<T>::largest;
    eigenvalues[item * n + static_cast<int>(p.d_next[i])] = value;
  }
  if constexpr (vectors)
    for (int i = 0; i < n; ++i) {
      T* const row = U + (item * n + static_cast<int>(p.d_next[i])) * n;
      const T sign = p.e_next[i];
      for (int k = lane; k < n; k += lanes) row[k] = sign * p.at(i, k);
    }
  if (!finite) report_failure(failure, item, -1);
  else if (!converged && lane == 0) report_failure(failure, item, 1);
}
