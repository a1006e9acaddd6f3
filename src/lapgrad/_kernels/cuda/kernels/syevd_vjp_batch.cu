// The gradient of eigenvalues and eigenvectors of batches of small symmetric matrices.
//
//     gA = U' M U,  M_ij = 1/2 (P_ij - P_ji) / (l_i - l_j),  M_ii = slope_i,  P = gU U'
//
// where the policy decides what replaces 1 / (l_i - l_j) at small gaps. A team of threads computes one matrix; all products are
// between arrays in shared memory.
#include "spectral_products.cuh"

// gU or slope may be null. An item on which the loss depends on vectors that the matrix does not determine is reported with code 1.
// side: the largest n; the threads of a team are a grid of down x across.
// Shared memory: for each team 3 n (n | 1) + 3 n + 32 numbers.
template <typename T, int side, int down, int across>
__global__ void __launch_bounds__(down* across > 128 ? down * across : 128)
    syevd_vjp(const T* U, Index u_item, Index u_row, Index u_col, const T* eigenvalues, const T* gU, Index g_item, Index g_row,
              Index g_col, const T* slope, Index policy, double tol, T* gA, Index* failure, Index items, Index size) {
  constexpr int threads = down * across;
  const Team<threads> team{static_cast<int>(threadIdx.x) % threads};
  const Grid<side, down, across> grid(team.rank);
  const int n = static_cast<int>(size), stride = n | 1, number = static_cast<int>(threadIdx.x) / threads;
  const Index wanted = static_cast<Index>(blockIdx.x) * (blockDim.x / threads) + number;
  const bool present = wanted < items;
  const Index item = present ? wanted : items - 1;  // threads without an item repeat the last one, because they share barriers and shuffles with others
  T* const memory = shared_memory<T>() + number * (3 * n * stride + 3 * n + 32);
  const Tile<T> rows{memory, stride}, given{memory + n * stride, stride}, M{memory + 2 * n * stride, stride};
  T* const lambda = memory + 3 * n * stride;
  T* const step = lambda + n;
  T* const noise = step + n;
  T* const scratch = noise + n;
  T sum[side / down][side / across];

  const Matrix<const T> vectors{U + item * u_item, u_row, u_col}, cotangent{gU + item * g_item, g_row, g_col};
  for (int i = grid.y; i < n; i += down)
    for (int k = grid.x; k < n; k += across) {
      rows(i, k) = vectors(i, k);
      if (gU) given(i, k) = cotangent(i, k);
    }
  for (int i = team.rank; i < n; i += threads) {
    lambda[i] = eigenvalues[item * n + i];
    step[i] = slope ? slope[item * n + i] : T(0);
  }
  team.wait();
  const T first = absolute(lambda[0]), last = absolute(lambda[n - 1]);
  const Gaps<T> gaps(static_cast<int>(policy), first > last ? first : last, T(tol));
  bool uneven = false;

  // M, whose memory holds P first.
  T most = 0, skew = 0;
  if (gU) {
    const T units = rounding_units<T>(n);
    for (int i = team.rank; i < n; i += threads) {
      T largest = 0;
      for (int k = 0; k < n; ++k) largest = absolute(given(i, k)) > largest ? absolute(given(i, k)) : largest;
      noise[i] = units * largest;
    }
    grid.template multiply<false, true>(given, rows, n, n, n, sum);
    grid.each(sum, n, n, [&](int i, int j, T value) {
      M(i, j) = value;
      most = absolute(value) > most ? absolute(value) : most;
    });
    team.wait();
    most = max_team(most, scratch, team);
  }
  const T close = close_gap<T>() * gaps.scale;
  for (int i = grid.y; i < n; i += down)
    for (int j = grid.x; j <= i; j += across) {
      if (i == j) {
        M(i, i) = step[i];
      } else if (gU) {
        const T gap = lambda[i] - lambda[j], difference = M(i, j) - M(j, i);
        if (gaps.is_tied(gap)) skew = absolute(difference) > skew ? absolute(difference) : skew;
        const bool discarded = gaps.policy == kMask &&
                               is_only_rounding(difference, noise[i] + noise[j], gap, close, step[i] - step[j]);
        M(i, j) = M(j, i) = discarded ? T(0) : T(0.5) * difference * gaps.invert(gap);
      } else {
        M(i, j) = M(j, i) = 0;
      }
    }
  uneven = skew > unevenness_threshold<T>() * most;
  if (slope) {
    T largest = 0, jump = 0;
    for (int i = team.rank; i < n; i += threads) {
      largest = absolute(step[i]) > largest ? absolute(step[i]) : largest;
      if (i > 0 && gaps.is_tied(lambda[i] - lambda[i - 1])) {
        const T difference = absolute(step[i] - step[i - 1]);
        jump = difference > jump ? difference : jump;
      }
    }
    uneven = jump > unevenness_threshold<T>() * max_team(largest, scratch, team) || uneven;
  }
  if (uneven && present) report_failure(failure, item, 1);
  team.wait();

  // U' (M U): M U goes to `given`, the result to M, and its symmetric part to gA, because rounding breaks the symmetry.
  grid.template multiply<false, false>(M, rows, n, n, n, sum);
  grid.each(sum, n, n, [&](int i, int j, T value) { given(i, j) = value; });
  team.wait();
  grid.template multiply<true, false>(rows, given, n, n, n, sum);
  grid.each(sum, n, n, [&](int i, int j, T value) { M(i, j) = value; });
  team.wait();
  if (!present) return;
  for (int i = grid.y; i < n; i += down)
    for (int j = grid.x; j < n; j += across) gA[(item * n + i) * n + j] = T(0.5) * (M(i, j) + M(j, i));
}
