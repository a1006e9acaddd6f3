// What stands between the products of the gradient of a singular value decomposition, for batches of matrices that are too
// large for gesvd_vjp_batch.cu, which has the formula: a block for each item.
#include "gesvd_gradient.cuh"

// A matrix of each item: address and strides; a null address where there is none.
template <typename T>
struct Operand {
  const T* data;
  Index item, row, col;

  __device__ Matrix<const T> of(Index number) const { return {data + number * item, row, col}; }
};

// target[i] := the largest entry of row i, a warp for a row; returns the largest that this thread has seen.
template <typename T>
__device__ T measure_rows(T* target, const Matrix<const T>& A, int rows, Index columns) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  T all = 0;
  for (int i = threadIdx.x / 32; i < rows; i += warps) {
    T most = 0;
    for (Index c = lane; c < columns; c += 32) most = absolute(A(i, c)) > most ? absolute(A(i, c)) : most;
    most = max_of_lanes(most);
    if (lane == 0) target[i] = most;
    all = most > all ? most : all;
  }
  return all;
}

// G: k x k, contiguous, gU U' before (nothing where gU is null) and the middle of the gradient after; Y: gV V', likewise, or
// null. inverse: 1 / S as the policy says, k for each item, or null. An item on which the loss tells apart what A does not
// determine is reported with code 1; items count from `first`.
// Memory of a block: 6 k + 32 numbers. Threads: `threads`.
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
  const Matrix<const T> of_v = Operand<T>{gV, gv_item, gv_row, gv_col}.of(item);

  T most = 0, most_slope = 0;
  for (int i = rank; i < k; i += threads) {
    s[i] = S[item * k + i];
    slope[i] = gS ? gS[item * k + i] : T(0);
    most_slope = absolute(slope[i]) > most_slope ? absolute(slope[i]) : most_slope;
  }
  if (gU) most = measure_rows(most_u, Operand<T>{gU, gu_item, gu_row, gu_col}.of(item), k, height);
  if (gV) {
    const T most_of_v = measure_rows(most_v, of_v, k, width);
    most = most_of_v > most ? most_of_v : most;
  }
  most = largest_of_team(most, scratch, team);
  most_slope = largest_of_team(most_slope, scratch, team);
  const Matrix<const T> right = Operand<T>{V, v_item, v_row, v_col}.of(item);
  const Weights<T> weights(s, slope, gU ? most_u : nullptr, gV ? most_v : nullptr, own_inverse, most, most_slope,
                           static_cast<int>(policy), T(tol), k, static_cast<int>(width));
  weights.invert_values(own_inverse, marks, moved, of_v, right, k, width, team);
  bool ambiguous = false;
  for (int place = rank; place < k * k; place += threads)
    if (place % k >= place / k) ambiguous = weights.take(middle, moved, place / k, place % k) || ambiguous;
  if (inverse)
    for (int i = rank; i < k; i += threads) inverse[item * k + i] = own_inverse[i];
  if (weights.wide && weights.checks && s[k - 1] <= weights.gaps.threshold) {
    // Vectors that belong to zeros are free in all directions: what gV has outside of the rows of V must vanish.
    for (int i = k - 1; i >= 0 && s[i] <= weights.gaps.threshold; --i)
      for (Index c = rank; c < width; c += threads) {
        T inside = 0;
        for (int j = 0; j < k; ++j) inside += moved(i, j) * right(j, c);
        ambiguous = ambiguous || absolute(of_v(i, c) - inside) > weights.of_zeros(most_v, i, i);
      }
  }
  if (ambiguous) report_failure(failure, first + item, 1);
}
