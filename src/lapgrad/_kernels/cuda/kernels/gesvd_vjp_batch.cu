// The gradient of singular value decompositions A = U' diag(S) V of batches of small matrices, U k x k, V k x n, k <= n:
//
//     gA = U' (G V),                                   k = n
//     gA = U' ((G - S^-1 gV V') V + S^-1 gV),          k < n
//     G = diag gS + sk(gU U') o C - sk(gV V') o C',    sk(X) = X - X'
//     C_ij = (F_ij S_j - T_ij / 2) / (S_i + S_j),      T = 1 - F_ij (S_i - S_j)
//
// where the policy's F_ij, antisymmetric, replaces 1 / (S_i - S_j), and C = 0 for two zeros; T is 0 under the policy nan. A team of
// threads computes one matrix; all products are between arrays in shared memory.
#include "gesvd_gradient.cuh"

// Any of gU, gS and gV may be null. An item on which the loss depends on vectors that A does not determine is reported with code 1.
// side: the largest n; the threads of a team are a grid of down x across.
// Shared memory: for each team 3 k (k | 1) + 2 k (n | 1) + 6 k + 32 numbers.
template <typename T, int side, int down, int across>
__global__ void __launch_bounds__(down* across > 128 ? down * across : 128)
    gesvd_vjp(const T* U, Index u_item, Index u_row, Index u_col, const T* V, Index v_item, Index v_row, Index v_col,
              const T* S, const T* gU, Index gu_item, Index gu_row, Index gu_col, const T* gS, const T* gV, Index gv_item,
              Index gv_row, Index gv_col, Index policy, double tol, T* gA, Index ga_item, Index ga_row, Index ga_col,
              Index* failure, Index items, Index height, Index width) {
  constexpr int threads = down * across;
  const Team<threads> team{static_cast<int>(threadIdx.x) % threads};
  const Grid<side, down, across> grid(team.rank);
  const int k = static_cast<int>(height), n = static_cast<int>(width), short_row = k | 1, long_row = n | 1;
  const int number = static_cast<int>(threadIdx.x) / threads, small_size = k * short_row, large_size = k * long_row;
  const Index wanted = static_cast<Index>(blockIdx.x) * (blockDim.x / threads) + number;
  const bool present = wanted < items;
  const Index item = present ? wanted : items - 1;  // threads without an item repeat the last one, because they share barriers and shuffles with others
  T* const memory = shared_memory<T>() + number * (3 * small_size + 2 * large_size + 6 * k + 32);
  const Tile<T> left{memory, short_row}, G{memory + small_size, short_row}, Y{memory + 2 * small_size, short_row};
  const Tile<T> right{memory + 3 * small_size, long_row}, given{memory + 3 * small_size + large_size, long_row};
  T* const s = given.data + large_size;
  T* const slope = s + k;
  T* const most_u = slope + k;  // of each row of gU
  T* const most_v = most_u + k;
  T* const inverse = most_v + k;  // of s, as the policy says
  T* const marks = inverse + k;
  T* const scratch = marks + k;
  T sum[side / down][side / across];
  const auto load = [&](const Tile<T>& target, const Matrix<const T>& source, int columns) {
    T most = 0;
    for (int i = grid.y; i < k; i += down)
      for (int j = grid.x; j < columns; j += across) {
        const T value = source(i, j);
        target(i, j) = value;
        most = absolute(value) > most ? absolute(value) : most;
      }
    return most;
  };
  const auto larger = [](T a, T b) { return a > b ? a : b; };
  const auto measure_rows = [&](T* target, int columns) {
    for (int i = team.rank; i < k; i += threads) {
      T most = 0;
      for (int j = 0; j < columns; ++j) most = larger(most, absolute(given(i, j)));
      target[i] = most;
    }
  };

  load(left, {U + item * u_item, u_row, u_col}, k);
  load(right, {V + item * v_item, v_row, v_col}, n);
  T most = 0, most_slope = 0;
  for (int i = team.rank; i < k; i += threads) {
    s[i] = S[item * k + i];
    slope[i] = gS ? gS[item * k + i] : T(0);
    most_slope = larger(most_slope, absolute(slope[i]));
  }
  if (gU) most = load(given, {gU + item * gu_item, gu_row, gu_col}, k);
  team.wait();
  if (gU) {
    measure_rows(most_u, k);
    grid.template multiply<false, true>(given, left, k, k, k, sum);
    grid.each(sum, k, k, [&](int i, int j, T value) { G(i, j) = value; });
    team.wait();
  }
  if (gV) {
    most = larger(most, load(given, {gV + item * gv_item, gv_row, gv_col}, n));
    team.wait();
    measure_rows(most_v, n);
    grid.template multiply<false, true>(given, right, k, k, n, sum);
    grid.each(sum, k, k, [&](int i, int j, T value) { Y(i, j) = value; });
    team.wait();
  }
  const T most_of_vectors = max_team(most, scratch, team);
  const Weights<T> weights(s, slope, gU ? most_u : nullptr, gV ? most_v : nullptr, inverse, most_of_vectors,
                           max_team(most_slope, scratch, team), static_cast<int>(policy), T(tol), k, n);
  const Gaps<T>& gaps = weights.gaps;
  weights.invert_values(inverse, marks, Y, given, right, k, n, team);
  bool ambiguous = false;
  for (int i = grid.y; i < k; i += down)
    for (int j = grid.x; j < k; j += across)
      if (j >= i) ambiguous = weights.combine(G, Y, i, j) || ambiguous;
  team.wait();
  if (weights.wide && weights.checks && team.any_around(s[k - 1] <= gaps.threshold)) {
    // A does not determine vectors that belong to zeros, so the part of gV outside the span of the rows of V must be zero.
    grid.template multiply<false, false>(Y, right, k, n, k, sum);
    grid.each(sum, k, n, [&](int i, int c, T value) {
      ambiguous = ambiguous || (s[i] <= gaps.threshold && absolute(given(i, c) - value) > weights.threshold_for_zeros(most_v, i, i));
    });
  }
  if (ambiguous && present) report_failure(failure, item, 1);

  grid.template multiply<false, false>(G, right, k, n, k, sum);
  grid.each(sum, k, n, [&](int i, int c, T value) {
    given(i, c) = weights.wide ? value + inverse[i] * given(i, c) : value;
  });
  team.wait();
  grid.template multiply<true, false>(left, given, k, n, k, sum);
  if (!present) return;
  const Matrix<T> gradient{gA + item * ga_item, ga_row, ga_col};
  grid.each(sum, k, n, [&](int i, int c, T value) { gradient(i, c) = value; });
}
