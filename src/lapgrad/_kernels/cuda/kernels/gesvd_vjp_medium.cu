// The step between the products of the gradient of a singular value decomposition, for batches of matrices that are too large for
// gesvd_vjp_batch.cu, which has the formulas. One block per item.
#include "gesvd_gradient.cuh"

// A batch of matrices: address and strides; a null address if it is missing.
template <typename T>
struct Operand {
  const T* data;
  Index item, row, col;

  __device__ Matrix<const T> select(Index number) const { return {data + number * item, row, col}; }
};

// target[i] := the largest absolute value in row i, one warp per row. Returns the largest one in the rows of this thread's warp.
template <typename T>
__device__ T measure_rows(T* target, const Matrix<const T>& A, int rows, Index columns) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  T all = 0;
  for (int i = threadIdx.x / 32; i < rows; i += warps) {
    T most = 0;
    for (Index c = lane; c < columns; c += 32) most = absolute(A(i, c)) > most ? absolute(A(i, c)) : most;
    most = max_lanes(most);
    if (lane == 0) target[i] = most;
    all = most > all ? most : all;
  }
  return all;
}

// Replaces G (k x k, contiguous), which holds gU U' unless gU is null, by the middle matrix of the gradient. Y: gV V', contiguous, or
// null. inverse receives the policy's replacement of 1 / S, k numbers per item, unless it is null. An item on which the loss depends
// on vectors that A does not determine is reported with code 1; the first item of this launch has the number `first`.
// Shared memory: 6 k + 32 numbers. Threads: `threads`.
template <typename T, int threads>
__global__ void __launch_bounds__(threads)
    weigh(T* G, const T* Y, const T* S, const T* gS, const T* gU, Index gu_item, Index gu_row, Index gu_col, const T* gV,
          Index gv_item, Index gv_row, Index gv_col, const T* V, Index v_item, Index v_row, Index v_col, T* inverse,
          Index policy, double tol, Index* failure, Index first, Index height, Index width) {
  const int k = static_cast<int>(height), rank = static_cast<int>(threadIdx.x);
  const Index item = blockIdx.x;
  const Team<threads> team{rank};
  T* const s = shared_memory<T>();
  T* const slope = s + k;
  T* const most_u = slope + k;
  T* const most_v = most_u + k;
  T* const own_inverse = most_v + k;
  T* const marks = own_inverse + k;
  T* const scratch = marks + k;
  const Matrix<T> middle{G + item * k * k, height, 1};
  const Matrix<const T> moved{Y + item * k * k, height, 1};
  const Matrix<const T> of_v = Operand<T>{gV, gv_item, gv_row, gv_col}.select(item);

  T most = 0, most_slope = 0;
  for (int i = rank; i < k; i += threads) {
    s[i] = S[item * k + i];
    slope[i] = gS ? gS[item * k + i] : T(0);
    most_slope = absolute(slope[i]) > most_slope ? absolute(slope[i]) : most_slope;
  }
  if (gU) most = measure_rows(most_u, Operand<T>{gU, gu_item, gu_row, gu_col}.select(item), k, height);
  if (gV) {
    const T most_of_v = measure_rows(most_v, of_v, k, width);
    most = most_of_v > most ? most_of_v : most;
  }
  most = max_team(most, scratch, team);
  most_slope = max_team(most_slope, scratch, team);
  const Matrix<const T> right = Operand<T>{V, v_item, v_row, v_col}.select(item);
  const Weights<T> weights(s, slope, gU ? most_u : nullptr, gV ? most_v : nullptr, own_inverse, most, most_slope,
                           static_cast<int>(policy), T(tol), k, static_cast<int>(width));
  weights.invert_values(own_inverse, marks, moved, of_v, right, k, width, team);
  bool ambiguous = false;
  for (int place = rank; place < k * k; place += threads)
    if (place % k >= place / k) ambiguous = weights.combine(middle, moved, place / k, place % k) || ambiguous;
  if (inverse)
    for (int i = rank; i < k; i += threads) inverse[item * k + i] = own_inverse[i];
  if (weights.wide && weights.checks && s[k - 1] <= weights.gaps.threshold) {
    // A does not determine vectors that belong to zeros, so the part of gV outside the span of the rows of V must be zero.
    for (int i = k - 1; i >= 0 && s[i] <= weights.gaps.threshold; --i)
      for (Index c = rank; c < width; c += threads) {
        T inside = 0;
        for (int j = 0; j < k; ++j) inside += moved(i, j) * right(j, c);
        ambiguous = ambiguous || absolute(of_v(i, c) - inside) > weights.threshold_for_zeros(most_v, i, i);
      }
  }
  if (ambiguous) report_failure(failure, first + item, 1);
}
