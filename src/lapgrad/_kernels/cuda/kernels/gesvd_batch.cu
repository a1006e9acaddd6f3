// Singular value decompositions A = U' diag(S) V of batches of small matrices, a group of threads for each.
//
// One-sided Jacobi: rotations of pairs of rows of W = J A make all rows orthogonal. Then their lengths are the singular
// values, W with rows of length 1 holds the right vectors and J the left ones. Small singular values come out with small
// relative errors, as far as A determines them. A tall matrix is read as its transpose.
//
// Rows are kept in registers. `per_pair` neighbouring lanes hold a pair of rows: (0, 1), (2, 3), ... in one round, (1, 2),
// (3, 4), ... in the next. Between rounds each pair passes one of its two rows on to a neighbour. The two rows of a pair change
// places after every rotation, at no cost, so that in as many rounds as there are rows each row meets every other one once, and
// their order is reversed. The longer row may take either place: rows are sorted by length, in one direction in one sweep and in
// the other in the next, which speeds up convergence.
#include "jacobi.cuh"

// The part of a pair of rows that one thread holds: columns rank % per_pair + c per_pair.
template <typename T, int count>
struct Pair {
  T left[count], right[count];

  __device__ void combine(T a, T b, T c, T d) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const T x = left[i], y = right[i];
      left[i] = a * x + b * y;
      right[i] = c * x + d * y;
    }
  }
};

// Passes rows on: left := right, right := the left row of thread `source` of the team; with `up` the other way round.
template <int threads, bool up, typename T, int count>
__device__ void pass_on(Pair<T, count>& pair, int source, T* buffer, int rank) {
  if constexpr (threads > 32) {
#pragma unroll
    for (int i = 0; i < count; ++i) buffer[i * threads + rank] = up ? pair.right[i] : pair.left[i];
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const T received = __shfl_sync(kAllLanes, up ? pair.right[i] : pair.left[i], source, threads);
      (up ? pair.right[i] : pair.left[i]) = up ? pair.left[i] : pair.right[i];
      (up ? pair.left[i] : pair.right[i]) = received;
    }
  }
}

// The second half of pass_on where rows are passed through shared memory; called after a barrier.
template <int threads, bool up, typename T, int count>
__device__ void receive(Pair<T, count>& pair, int source, const T* buffer) {
  if constexpr (threads > 32) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      (up ? pair.right[i] : pair.left[i]) = up ? pair.left[i] : pair.right[i];
      (up ? pair.left[i] : pair.right[i]) = buffer[i * threads + source];
    }
  }
}

// Makes the two rows of a pair orthogonal and exchanges them, so that the longer one is on the wanted side. Returns whether
// they were not orthogonal before.
template <int per_pair, bool vectors, typename T, int mine, int turned>
__device__ bool rotate(Pair<T, mine>& W, Pair<T, turned>& J, bool takes_part, bool longer_left, T allowed) {
  T xx = 0, yy = 0, xy = 0;
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    const T x = W.left[i], y = W.right[i];
    xx += x * x;
    yy += y * y;
    xy += x * y;
  }
  xx = sum_lanes(xx, per_pair);
  yy = sum_lanes(yy, per_pair);
  xy = sum_lanes(xy, per_pair);
  const Rotation<T> turn = find_rotation(xx, yy, xy, takes_part, allowed);
  const T cosine = turn.cosine, sine = turn.sine;
  // The left row becomes cosine x + sine y, or -sine x + cosine y; x if this pair does not take part.
  const bool keeps = !takes_part || turn.first_is_longer == longer_left;
  const T a = keeps ? cosine : -sine, b = keeps ? sine : cosine;
  W.combine(a, b, keeps ? -sine : cosine, keeps ? cosine : sine);
  if constexpr (vectors) J.combine(a, b, keeps ? -sine : cosine, keeps ? cosine : sine);
  return turn.oblique;
}

// Returns the sign, 1 or -1, of the leading entry of a row: the first within 1e-6 of the largest. The row is spread over the lanes
// of a pair.
template <int per_pair, typename T, int count>
__device__ T find_sign(const T (&row)[count], int lane) {
  T most = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) most = absolute(row[i]) > most ? absolute(row[i]) : most;
  most = max_lanes(most, per_pair) * T(kSameSize);
  int decisive = 2 * per_pair * count;
#pragma unroll
  for (int i = count - 1; i >= 0; --i)
    if (absolute(row[i]) >= most) decisive = 2 * (lane + i * per_pair) + (row[i] < T(0));
  return min_lanes<per_pair>(decisive) % 2 ? T(-1) : T(1);
}

// The decomposition of items with k rows and n >= k columns (tall ones with exchanged strides), k <= rows, n <= columns:
// S (k), `turned_rows` (k x k) and `unit_rows` (k x n), contiguous, with A = turned_rows' diag(S) unit_rows. `tall`: U is
// unit_rows, which then decides signs, else turned_rows. Failures: code 1 for NaN or infinity, 2 for no convergence.
// Shared memory: for each team rows + max(rows, columns) numbers, and for a team of several warps two buffers of
// threads (columns + rows) / per_pair.
template <typename T, int rows, int columns, int per_pair, bool vectors>
__global__ void __launch_bounds__(rows / 2 * per_pair > 128 ? rows / 2 * per_pair : 128)
    gesvd(const T* A, Index a_item, Index a_row, Index a_col, T* S, T* turned_rows, T* unit_rows, Index* failure,
          Index items, Index height, Index width, Index tall) {
  constexpr int threads = rows / 2 * per_pair, mine = columns / per_pair, turned = vectors ? rows / per_pair : 1;
  constexpr int vector_memory = rows + (rows > columns ? rows : columns);
  constexpr int passed = threads > 32 ? threads * (mine + (vectors ? turned : 0)) : 0;
  const int k = static_cast<int>(height), n = static_cast<int>(width), pairs = (k + 1) / 2;
  const Team<threads> team{static_cast<int>(threadIdx.x) % threads};
  const int number = static_cast<int>(threadIdx.x) / threads, teams = static_cast<int>(blockDim.x) / threads;
  const int lane = team.rank % per_pair, pair = team.rank / per_pair;
  const Index wanted = static_cast<Index>(blockIdx.x) * teams + number;
  const bool present = wanted < items;
  const Index item = present ? wanted : items - 1;  // threads without an item repeat the last one, because they share barriers and shuffles with others
  T* const squares = shared_memory<T>() + number * vector_memory;
  T* const along = squares + rows;
  T* const buffers = shared_memory<T>() + vector_memory;  // only used if the team is the whole block

  // W := A, scaled by a power of two.
  const Matrix<const T> source{A + item * a_item, a_row, a_col};
  Pair<T, mine> W;
  Pair<T, turned> J;
  T most = 0;
  bool spoilt = false;
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    const int c = lane + i * per_pair;
    W.left[i] = 2 * pair < k && c < n ? source(2 * pair, c) : T(0);
    W.right[i] = 2 * pair + 1 < k && c < n ? source(2 * pair + 1, c) : T(0);
    const T x = absolute(W.left[i]), y = absolute(W.right[i]), larger = x > y ? x : y;
    spoilt = spoilt || !(x <= Numbers<T>::largest && y <= Numbers<T>::largest);
    most = larger > most ? larger : most;
  }
  spoilt = team.any(spoilt);
  most = max_lanes(most, threads < 32 ? threads : 32);
  if constexpr (threads > 32) {
    if (threadIdx.x % 32 == 0) along[threadIdx.x / 32] = most;
    team.wait();
    for (int w = 0; w < threads / 32; ++w) most = along[w] > most ? along[w] : most;
    team.wait();
  }
  int shift = spoilt || !(most > T(0)) ? 0 : Range<T>::top - ilogb(most);
  shift = shift > Range<T>::limit ? Range<T>::limit : shift;
  const T factor = T(ldexp(1.0, shift)), back = T(ldexp(1.0, -shift));
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    W.left[i] = spoilt ? T(0) : W.left[i] * factor;
    W.right[i] = spoilt ? T(0) : W.right[i] * factor;
  }
#pragma unroll
  for (int i = 0; i < turned; ++i) {
    J.left[i] = T(lane + i * per_pair == 2 * pair);
    J.right[i] = T(lane + i * per_pair == 2 * pair + 1);
  }

  const T allowed = Numbers<T>::eps * (T(2) + sqrt(T(n)));
  const int after = pair + 1 == pairs ? lane : team.rank + per_pair;
  const int before = pair == 0 ? (pairs - 1) * per_pair + lane : team.rank - per_pair;
  const int from_after = pair < pairs ? after : team.rank, from_before = pair < pairs ? before : team.rank;
  bool working = true;
  for (int sweep = 0; sweep < kMostSweeps && team.any_around(working); ++sweep) {
    bool found = false;
    const bool longer_left = sweep % 2 == 1;
    for (int round = 0; round < pairs; ++round) {
      found |= rotate<per_pair, vectors>(W, J, working && pair < pairs, longer_left, allowed);
      pass_on<threads, false>(W, from_after, buffers, team.rank);
      if constexpr (vectors) pass_on<threads, false>(J, from_after, buffers + threads * mine, team.rank);
      if constexpr (threads > 32) {
        __syncthreads();
        receive<threads, false>(W, from_after, buffers);
        if constexpr (vectors) receive<threads, false>(J, from_after, buffers + threads * mine);
      }
      found |= rotate<per_pair, vectors>(W, J, working && pair + 1 < pairs, longer_left, allowed);
      pass_on<threads, true>(W, from_before, buffers + passed, team.rank);
      if constexpr (vectors) pass_on<threads, true>(J, from_before, buffers + passed + threads * mine, team.rank);
      if constexpr (threads > 32) {
        __syncthreads();
        receive<threads, true>(W, from_before, buffers + passed);
        if constexpr (vectors) receive<threads, true>(J, from_before, buffers + passed + threads * mine);
      }
    }
    working = team.any(found);
  }

  // Lengths, and their ranks in descending order. A row of padding that completes the last pair comes last.
  T xx = 0, yy = 0, filler_left = 0, filler_right = 0;
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    xx += W.left[i] * W.left[i];
    yy += W.right[i] * W.right[i];
  }
  xx = sum_lanes(xx, per_pair);
  yy = sum_lanes(yy, per_pair);
  if constexpr (vectors) {
#pragma unroll
    for (int i = 0; i < turned; ++i)
      if (lane + i * per_pair == k) {
        filler_left += J.left[i];
        filler_right += J.right[i];
      }
    filler_left = sum_lanes(filler_left, per_pair);
    filler_right = sum_lanes(filler_right, per_pair);
  }
  if (lane == 0 && pair < pairs) {
    squares[2 * pair] = filler_left != T(0) ? T(-1) : xx;
    squares[2 * pair + 1] = filler_right != T(0) ? T(-1) : yy;
  }
  team.wait();
  int place_left = 0, place_right = 0, filled = 0;
  if (pair < pairs) {
    const T own_left = squares[2 * pair], own_right = squares[2 * pair + 1];
    for (int j = 0; j < 2 * pairs; ++j) {
      const T other = squares[j];
      place_left += j < 2 * pair ? other >= own_left : other > own_left;
      place_right += j < 2 * pair + 1 ? other >= own_right : other > own_right;
    }
  }
  for (int j = 0; j < 2 * pairs; ++j) filled += squares[j] >= Range<T>::least;

  const auto finish = [&](T(&row)[mine], T(&turned_row)[turned], T square, int place) {
    const bool zero = square < Range<T>::least;
    const T length = zero ? T(0) : sqrt(square), inverse = zero ? T(0) : T(1) / length;
#pragma unroll
    for (int i = 0; i < mine; ++i) row[i] *= inverse;
    T sign = 1;
    if constexpr (vectors) sign = tall ? find_sign<per_pair>(row, lane) : find_sign<per_pair>(turned_row, lane);
    if (!present || pair >= pairs || place >= k) return;
    const Index at = item * k + place;
    const T value = spoilt ? T(nan("")) : length * back;
    if (lane == 0) {
      S[at] = value;
      if (spoilt || !(value <= Numbers<T>::largest)) report_failure(failure, item, 1);
    }
    if constexpr (vectors) {
#pragma unroll
      for (int i = 0; i < mine; ++i)
        if (lane + i * per_pair < n) unit_rows[at * n + lane + i * per_pair] = sign * row[i];
#pragma unroll
      for (int i = 0; i < turned; ++i)
        if (lane + i * per_pair < k) turned_rows[at * k + lane + i * per_pair] = sign * turned_row[i];
    }
  };
  finish(W.left, J.left, xx, place_left);
  finish(W.right, J.right, yy, place_right);
  if (working && !spoilt && present && team.rank == 0) report_failure(failure, item, 2);
  if constexpr (vectors) {
    team.wait();
    complete_rows(unit_rows + item * k * n, present ? filled : k, k, n, tall != 0, along, team, threads);
  }
}
