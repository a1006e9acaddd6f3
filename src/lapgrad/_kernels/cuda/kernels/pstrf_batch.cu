// The Cholesky factorisation with pivoting. Columns of the factor are stored as rows of F, with entries in the order of A: nothing is
// exchanged before the end. The *place* of an entry is its position in the pivoted order, so that pivots are those before the step.
//
//     p = the entry with the largest remainder d,  f_i = (a_pi - sum_j F_jp F_ji) / sqrt(d_p),  d_i -= f_i^2
//
// Entry p and the entry at place k change places in step k. Among equal remainders the first place wins.
#include "batch.cuh"

// The best entry for the next pivot among some, and whether a remainder among them is not finite. Place -1: there is none.
template <typename T>
struct Candidate {
  T value;
  int place, entry, spoilt;

  __device__ void join(const Candidate& other) {
    const bool better = other.place >= 0 && (place < 0 || other.value > value || (other.value == value && other.place < place));
    if (better) {
      value = other.value;
      place = other.place;
      entry = other.entry;
    }
    spoilt |= other.spoilt;
  }

  // The best candidate of a warp, to all its lanes.
  __device__ void join_lanes() {
    for (int distance = 16; distance > 0; distance /= 2)
      join({__shfl_xor_sync(kAllLanes, value, distance), __shfl_xor_sync(kAllLanes, place, distance),
            __shfl_xor_sync(kAllLanes, entry, distance), __shfl_xor_sync(kAllLanes, spoilt, distance)});
  }
};

template <typename T>
__device__ Candidate<T> make_candidate(T remainder, int place, int entry) {
  return {remainder, place, entry, !(remainder - remainder == T(0))};
}

// Entry (i, j) of a symmetric matrix; only its lower triangle is read.
template <typename T>
__device__ T read_symmetric(const Matrix<const T>& A, Index i, Index j) {
  return i >= j ? A(i, j) : A(j, i);
}

// The least pivot that counts: tol, or, if tol is negative, n u times the largest diagonal entry with the rounding unit u.
template <typename T>
__device__ T choose_least(double tol, Index n, T largest) {
  const double unit = sizeof(T) == 8 ? 0x1p-53 : 0x1p-24;
  return tol < 0 ? T(static_cast<double>(n) * unit) * largest : T(tol);
}

// One block per matrix, for orders whose steps take no longer than a launch. F: (items, most, n), a workspace. The factor is written
// with the given strides, pivots and ranks as 64-bit integers. A pivot k (from 1) that is not finite is reported with code -k.
// Shared memory: a candidate per warp, n numbers and n integers.
template <typename T>
__global__ void pstrf_small(const T* A, Index a_item, Index a_row, Index a_col, T* L, Index l_item, Index l_row, Index l_col,
                            Index* pivots, Index* ranks, T* F, double tol, Index* failure, Index size, Index columns) {
  const int n = static_cast<int>(size), most = static_cast<int>(columns), threads = blockDim.x, rank = threadIdx.x;
  const Index item = blockIdx.x;
  const Matrix<const T> source{A + item * a_item, a_row, a_col};
  Candidate<T>* const of_warps = shared_memory<Candidate<T>>();
  T* const remainders = reinterpret_cast<T*>(of_warps + threads / 32);
  int* const places = reinterpret_cast<int*>(remainders + n);
  T* const rows = F + item * most * n;

  for (int i = rank; i < n; i += threads) {
    remainders[i] = source(i, i);
    places[i] = i;
  }
  T least = T(0);
  int found = 0;
  for (; found < most; ++found) {
    Candidate<T> best{T(0), -1, -1, 0};
    for (int i = rank; i < n; i += threads)
      if (places[i] >= found) best.join(make_candidate(remainders[i], places[i], i));
    best.join_lanes();
    if (rank % 32 == 0) of_warps[rank / 32] = best;
    __syncthreads();
    for (int warp = 0; warp < threads / 32; ++warp) best.join(of_warps[warp]);
    if (found == 0) least = choose_least(tol, n, best.value);
    if (best.spoilt && rank == 0) report_failure(failure, item, -(found + 1));
    if (best.spoilt || !(best.value > least)) break;
    const T root = sqrt(best.value);
    const int p = best.entry;
    for (int i = rank; i < n; i += threads) {
      int place = places[i];
      if (i == p) place = found;
      else if (place == found) place = best.place;
      places[i] = place;
      T value = T(0);
      if (i == p) {
        value = root;
      } else if (place > found) {
        T sum = 0;
#pragma unroll 8
        for (int j = 0; j < found; ++j) sum += rows[j * n + p] * rows[j * n + i];
        value = (read_symmetric(source, p, i) - sum) / root;
        remainders[i] -= value * value;
      }
      rows[found * n + i] = value;
    }
    __syncthreads();
  }
  __syncthreads();
  if (rank == 0) ranks[item] = found;
  const Matrix<T> target{L + item * l_item, l_row, l_col};
  for (int i = rank; i < n; i += threads) {
    pivots[item * n + places[i]] = i;
    for (int j = 0; j < most; ++j) target(places[i], j) = j < found ? rows[j * n + i] : T(0);
  }
}

// Larger matrices: a launch per step, in which each block has 32 entries of one matrix and its warps share the sum.
// The best candidates of the blocks of a matrix are passed on from step to step in two arrays: one is read, the other
// written.
constexpr int kSlice = 32;

// Begins: remainders, places and the first candidates. Grid: (slices, items), 32 threads.
template <typename T>
__global__ void pstrf_begin(const T* A, Index a_item, Index a_diagonal, T* remainders, int* places, Candidate<T>* candidates,
                            Index* ranks, Index n) {
  const Index item = blockIdx.y, i = static_cast<Index>(blockIdx.x) * kSlice + threadIdx.x;
  Candidate<T> best{T(0), -1, -1, 0};
  if (i < n) {
    const T entry = A[item * a_item + i * a_diagonal];
    remainders[item * n + i] = entry;
    places[item * n + i] = static_cast<int>(i);
    best = make_candidate(entry, static_cast<int>(i), static_cast<int>(i));
  }
  best.join_lanes();
  if (threadIdx.x == 0) candidates[item * gridDim.x + blockIdx.x] = best;
  if (i == 0) ranks[item] = 0;
}

// Step k. `before` has the candidates, `after` receives those of the next step; a matrix that has ended has none. `least` has the least
// pivot of each matrix, which step 0 chooses. Grid: (slices, items), 256 threads. Shared memory: 8 x 32 numbers and 8 candidates.
template <typename T>
__global__ void pstrf_step(const T* A, Index a_item, Index a_row, Index a_col, T* F, T* remainders, int* places,
                           const Candidate<T>* before, Candidate<T>* after, Index* ranks, T* least, double tol, Index* failure,
                           Index k, Index most, Index n) {
  constexpr int warps = 8;
  const Index item = blockIdx.y, i = static_cast<Index>(blockIdx.x) * kSlice + threadIdx.x % 32;
  const int warp = threadIdx.x / 32, slices = gridDim.x;
  Candidate<T>* const of_warps = shared_memory<Candidate<T>>();
  T* const sums = reinterpret_cast<T*>(of_warps + warps);

  Candidate<T> best{T(0), -1, -1, 0};
  for (int s = threadIdx.x; s < slices; s += blockDim.x) best.join(before[item * slices + s]);
  best.join_lanes();
  if (threadIdx.x % 32 == 0) of_warps[warp] = best;
  __syncthreads();
  for (int other = 0; other < warps; ++other) best.join(of_warps[other]);
  const T bound = k == 0 ? choose_least(tol, n, best.value) : least[item];
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  if (first && k == 0) least[item] = bound;
  if (first && best.spoilt) report_failure(failure, item, -static_cast<int>(k + 1));
  T* const rows = F + item * most * n;
  if (best.place < 0 || best.spoilt || !(best.value > bound)) {
    if (warp == 0 && i < n) rows[k * n + i] = T(0);
    if (threadIdx.x == 0) after[item * slices + blockIdx.x] = {T(0), -1, -1, 0};
    return;
  }
  if (first) ranks[item] = k + 1;

  const Index p = best.entry;
  T sum = 0;
  if (i < n) {
#pragma unroll 8
    for (Index j = warp; j < k; j += warps) sum += rows[j * n + p] * rows[j * n + i];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0) return;
  Candidate<T> next{T(0), -1, -1, 0};
  if (i < n) {
    for (int other = 1; other < warps; ++other) sum += sums[other * 32 + threadIdx.x];
    const T root = sqrt(best.value);
    int place = places[item * n + i];
    if (i == p) place = static_cast<int>(k);
    else if (place == k) place = best.place;
    places[item * n + i] = place;
    T value = T(0);
    if (i == p) {
      value = root;
    } else if (place > k) {
      const Matrix<const T> source{A + item * a_item, a_row, a_col};
      value = (read_symmetric(source, p, i) - sum) / root;
      const T left = remainders[item * n + i] - value * value;
      remainders[item * n + i] = left;
      next = make_candidate(left, place, static_cast<int>(i));
    }
    rows[k * n + i] = value;
  }
  next.join_lanes();
  if (threadIdx.x == 0) after[item * slices + blockIdx.x] = next;
}

// L(place, j) := F_j, and the pivots. Blocks of 256 threads move 32 entries and 32 columns each. Grid: (slices, blocks of columns, items).
// Shared memory: 32 x 33 numbers.
template <typename T>
__global__ void pstrf_end(T* L, Index l_item, Index l_row, Index l_col, Index* pivots, const T* F, const int* places, Index most,
                          Index n) {
  const Index item = blockIdx.z, first = static_cast<Index>(blockIdx.x) * kSlice, column = static_cast<Index>(blockIdx.y) * kSlice;
  const int lane = threadIdx.x % 32;
  T* const tile = shared_memory<T>();
  for (int r = threadIdx.x / 32; r < kSlice; r += 8)
    if (column + r < most && first + lane < n) tile[r * 33 + lane] = F[(item * most + column + r) * n + first + lane];
  __syncthreads();
  T* const target = L + item * l_item;
  for (int r = threadIdx.x / 32; r < kSlice; r += 8) {
    if (first + r >= n) continue;
    const Index place = places[item * n + first + r];
    if (column + lane < most) target[place * l_row + (column + lane) * l_col] = tile[lane * 33 + r];
    if (column == 0 && lane == 0) pivots[item * n + place] = first + r;
  }
}

// Prepares the gradient of a square factor: the lower triangles of G and M become those of gL and L in columns below
// the rank, and zero in the others, with ones on the diagonal of M. Above the diagonal both become zero. Both are
// contiguous. One thread per entry.
template <typename T>
__global__ void pstrf_vjp_begin(T* M, T* G, const T* L, Index l_item, Index l_row, Index l_col, const T* gL, Index g_item, Index g_row,
                                Index g_col, const Index* ranks, Index n, Index total) {
  const Index place = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= total) return;
  const Index item = place / (n * n), i = place / n % n, k = place % n;
  const bool inside = k < ranks[item] && k <= i;
  M[place] = inside ? L[item * l_item + i * l_row + k * l_col] : T(i == k);
  G[place] = inside ? gL[item * g_item + i * g_row + k * g_col] : T(0);
}

// gA(p_i, p_j) := P_ij for the pivots p; all are contiguous. One thread per entry.
template <typename T>
__global__ void pstrf_vjp_end(T* gA, const T* P, const Index* pivots, Index n, Index total) {
  const Index place = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= total) return;
  const Index item = place / (n * n), i = place / n % n, j = place % n;
  gA[(item * n + pivots[item * n + i]) * n + pivots[item * n + j]] = P[place];
}
