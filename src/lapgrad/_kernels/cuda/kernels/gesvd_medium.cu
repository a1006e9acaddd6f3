// Singular value decompositions of batches of matrices from their LQ factorisations, one thread block per matrix.
//
// A = P' L Q with k <= 128 rows, where P sorts the rows by length and L is lower triangular. One-sided Jacobi rotates the rows of
// W = J L'. Because the triangle is transposed and long rows come first, it takes 8 to 10 sweeps; on the rows of A it may take 30.
// Then
//
//     W = S X with orthonormal rows X,   A = (X P)' S (J Q)
//
// A warp holds eight rows of W in registers, two *blocks* of four; a lane holds `columns` numbers of each row, 32 apart. When two
// blocks meet in a warp, each row of one is made orthogonal to each row of the other, in four steps of four pairs. Then one of the
// blocks is passed to the next warp. In as many rounds as there are blocks, every block meets every other one: blocks 0 and 1, 2
// and 3, ... in one round, 1 and 2, 3 and 4, ... in the next; two blocks that have met change places. Rows within a block meet in
// the first round. J is in shared memory, its rows in their original order, and is updated once per round: a row is read and
// written once for 16 rotations.
#include "jacobi.cuh"

constexpr int kBlock = 4, kRows = 2 * kBlock;  // rows of a block, and of a warp
constexpr int kCross = 4, kSteps = 7;          // steps between two blocks; all steps, with those within the blocks

// Replaces rows x, y by a x + b y, a y - b x: a rotation, or one with its rows exchanged, up to signs.
template <typename T>
struct alignas(2 * sizeof(T)) Turn {
  T a, b;
};

// The two rows of a warp that are pair number `pair` of a step.
__device__ constexpr int first_of_pair(int step, int pair) {
  return step < kCross ? pair : pair / 2 * kBlock + (step == kCross ? 2 * (pair % 2) : pair % 2);
}
__device__ constexpr int second_of_pair(int step, int pair) {
  if (step < kCross) return kBlock + (pair + step) % kBlock;
  return first_of_pair(step, pair) ^ (step - kCross + 1);
}

// Sums each of the 4 or 8 numbers of a lane over the warp. Sum i is returned to the i-th group of 8 or 4 lanes.
template <int count, typename T>
__device__ T sum_lanes_of_each(T (&value)[count], int lane) {
  int distance = 16;
#pragma unroll
  for (int half = count / 2; half > 0; half /= 2, distance /= 2) {
    const bool upper = lane & distance;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const T kept = upper ? value[i + half] : value[i], given = upper ? value[i] : value[i + half];
      value[i] = kept + __shfl_xor_sync(kAllLanes, given, distance);
    }
  }
  return sum_lanes(value[0], 32 / count);
}

// The data of one warp: rows of W in registers; their squares and the rotations of a round in shared memory.
template <typename T, int columns>
struct Warp {
  T rows[kRows][columns];
  T* squares;
  Turn<T>* turns;
  int lane;

  __device__ void measure() {
    T own[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      own[r] = 0;
#pragma unroll
      for (int c = 0; c < columns; ++c) own[r] += rows[r][c] * rows[r][c];
    }
    const T sum = sum_lanes_of_each(own, lane);
    __syncwarp();
    if (lane % (32 / kRows) == 0) squares[lane / (32 / kRows)] = sum;
    __syncwarp();
  }

  // Rotates the two rows of each of four pairs so that they are orthogonal; `longer_first`: the longer row comes first. Returns
  // whether a pair was rotated; then `turns` holds the rotations. The squared lengths are updated by formula here and computed from the
  // rows in the next round. They are exact where nothing is rotated, as in the last sweep.
  template <int step>
  __device__ bool make_orthogonal(bool longer_first, T allowed) {
    T products[kBlock];
#pragma unroll
    for (int p = 0; p < kBlock; ++p) {
      products[p] = 0;
#pragma unroll
      for (int c = 0; c < columns; ++c)
        products[p] += rows[first_of_pair(step, p)][c] * rows[second_of_pair(step, p)][c];
    }
    const T xy = sum_lanes_of_each(products, lane);
    const int pair = lane / 8, first = first_of_pair(step, pair), second = second_of_pair(step, pair);
    const T xx = squares[first], yy = squares[second];
    const Rotation<T> turn = find_rotation(xx, yy, xy, true, allowed);
    if (!__any_sync(kAllLanes, turn.oblique)) return false;
    __syncwarp();  // a vote does not order accesses to memory: the squares have been read
    if (lane % 8 == 0) {
      const bool keeps = !turn.oblique || turn.first_is_longer == longer_first;
      const T moved = turn.tangent * xy, x = xx + moved, y = yy - moved;
      squares[first] = keeps ? x : y;
      squares[second] = keeps ? y : x;
      turns[step * kBlock + pair] = {keeps ? turn.cosine : -turn.sine, keeps ? turn.sine : turn.cosine};
    }
    __syncwarp();
    combine<step>(rows);
    return true;
  }

  // Applies the rotations of a step to any columns of the rows.
  template <int step, int count>
  __device__ void combine(T (&target)[kRows][count]) const {
#pragma unroll
    for (int p = 0; p < kBlock; ++p) {
      const Turn<T> turn = turns[step * kBlock + p];
#pragma unroll
      for (int c = 0; c < count; ++c) {
        T &x = target[first_of_pair(step, p)][c], &y = target[second_of_pair(step, p)][c];
        const T before = x;
        x = turn.a * x + turn.b * y;
        y = turn.a * y - turn.b * before;
      }
    }
  }

  // Applies the rotations of a round, of the steps in `taken`, to `count` columns of the rows of J, from `column` on and 32 apart.
  template <int count>
  __device__ void turn_columns(T* J, int size, int column, int left, int right, unsigned taken) const {
    T part[kRows][count];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < count; ++c) {
        const int place = column + 32 * c;
        part[r][c] = place < size ? J[row_number(r, left, right) * size + place] : T(0);
      }
    if (taken >> 4 & 1) combine<4>(part);
    if (taken >> 5 & 1) combine<5>(part);
    if (taken >> 6 & 1) combine<6>(part);
    if (taken & 1) combine<0>(part);
    if (taken >> 1 & 1) combine<1>(part);
    if (taken >> 2 & 1) combine<2>(part);
    if (taken >> 3 & 1) combine<3>(part);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int c = 0; c < count; ++c) {
        const int place = column + 32 * c;
        if (place < size) J[row_number(r, left, right) * size + place] = part[r][c];
      }
  }

  static __device__ int row_number(int r, int left, int right) {
    return (r < kBlock ? left : right) * kBlock + r % kBlock;
  }

  // Stores the four rows from `first` on in shared memory, or loads them.
  template <int first>
  __device__ void store_block(T* buffer) const {
#pragma unroll
    for (int r = 0; r < kBlock; ++r)
#pragma unroll
      for (int c = 0; c < columns; ++c) buffer[(r * columns + c) * 32 + lane] = rows[first + r][c];
  }
  template <int first>
  __device__ void load_block(const T* buffer) {
#pragma unroll
    for (int r = 0; r < kBlock; ++r)
#pragma unroll
      for (int c = 0; c < columns; ++c) rows[first + r][c] = buffer[(r * columns + c) * 32 + lane];
  }
};

// A team of all threads of the block.
struct WholeBlock {
  int rank;

  __device__ void wait() const { __syncthreads(); }
  __device__ bool any_around(bool mine) const { return __syncthreads_or(mine) != 0; }
};

// Decomposes A = P' L Q, one thread block of ceil(k / 8) warps per item, for k <= 32 `columns`. L and short_rows may be the same
// memory.
//     L           k x k, any strides; order[i] is the number of row i of P A
//     S           k values
//     short_rows  k x k, contiguous: X P. Its rows are turned so that the first of their largest entries is positive, and
//                 those of J Q with them, unless `tall`, when the other side decides: see turn_rows.
//     long_rows   k x n, contiguous: Q before, J Q after
// Without `vectors` the last two are not used. Failures: code 1 for NaN or infinity, 2 for no convergence.
// Shared memory, with `size` = 8 warps: numbers for J (size^2, with vectors), a block of each warp (size / 2 x 32
// columns), 56 per warp for rotations, 3 size; then size + warps ints.
// together: how many blocks with the largest number of threads must fit into the registers of a multiprocessor.
template <typename T, int columns, bool vectors, int together>
__global__ void __launch_bounds__(128 * columns, together)
    gesvd_of_factors(const T* L, Index l_item, Index l_row, Index l_col, const Index* order, T* S, T* short_rows,
                     T* long_rows, Index* failure, Index height, Index width, Index tall) {
  const int k = static_cast<int>(height), n = static_cast<int>(width);
  const int rank = static_cast<int>(threadIdx.x), lane = rank % 32, number = rank / 32;
  const int threads = static_cast<int>(blockDim.x), warps = threads / 32, size = kRows * warps, blocks = 2 * warps;
  const Index item = blockIdx.x;
  T* const J = shared_memory<T>();
  T* const buffers = J + (vectors ? size * size : 0);
  T* const rotations = buffers + warps * kBlock * columns * 32;
  T* const squares_of_warps = rotations + warps * 2 * kBlock * kSteps;
  T* const squares = squares_of_warps + size;
  T* const signs = squares + size;
  int* const places = reinterpret_cast<int*>(signs + size);
  int* const travelling = places + size;
  const WholeBlock team{rank};
  Warp<T, columns> warp;
  warp.squares = squares_of_warps + kRows * number;
  warp.turns = reinterpret_cast<Turn<T>*>(rotations) + number * kBlock * kSteps;
  warp.lane = lane;
  T* const own_buffer = buffers + number * kBlock * columns * 32;

  // W := L', scaled by a power of two.
  const Matrix<const T> lower{L + item * l_item, l_row, l_col};
  T most = 0;
  bool spoilt = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int i = kRows * number + r, j = lane + 32 * c;
      const T value = j >= i && j < k ? lower(j, i) : T(0);
      warp.rows[r][c] = value;
      spoilt = spoilt || !(absolute(value) <= Numbers<T>::largest);
      most = absolute(value) > most ? absolute(value) : most;
    }
  spoilt = team.any_around(spoilt);
  most = max_lanes(most);
  if (lane == 0) squares[number] = most;
  team.wait();
  for (int w = 0; w < warps; ++w) most = squares[w] > most ? squares[w] : most;
  int shift = spoilt || !(most > T(0)) ? 0 : Range<T>::top - 2 - ilogb(most);  // two less than in gesvd_batch.cu, because the order is twice as large
  shift = shift > Range<T>::limit ? Range<T>::limit : shift;
  const T factor = T(ldexp(1.0, shift)), back = T(ldexp(1.0, -shift));
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int c = 0; c < columns; ++c) warp.rows[r][c] = spoilt ? T(0) : warp.rows[r][c] * factor;
  if constexpr (vectors)
    for (int place = rank; place < size * size; place += threads) J[place] = T(place / size == place % size);
  team.wait();

  const T allowed = Numbers<T>::eps * (T(2) + sqrt(T(k)));
  const int after = (number + 1) % warps, before = (number + warps - 1) % warps;
  int left = 2 * number, right = 2 * number + 1;  // numbers of the blocks that this warp holds
  bool working = true;
  for (int sweep = 0; sweep < kMostSweeps && working; ++sweep) {
    bool found = false;
    const bool longer_left = sweep % 2 == 0;  // a sweep reverses the order of the blocks
    for (int round = 0; round < blocks; ++round) {
      const bool odd = round % 2;
      if (!odd || number + 1 < warps) {
        warp.measure();
        unsigned taken = 0;
        if (round == 0) {
          taken |= unsigned(warp.template make_orthogonal<4>(true, allowed)) << 4;
          taken |= unsigned(warp.template make_orthogonal<5>(true, allowed)) << 5;
          taken |= unsigned(warp.template make_orthogonal<6>(true, allowed)) << 6;
        }
        taken |= unsigned(warp.template make_orthogonal<0>(longer_left, allowed));
        taken |= unsigned(warp.template make_orthogonal<1>(longer_left, allowed)) << 1;
        taken |= unsigned(warp.template make_orthogonal<2>(longer_left, allowed)) << 2;
        taken |= unsigned(warp.template make_orthogonal<3>(longer_left, allowed)) << 3;
        found = found || taken;
        if constexpr (vectors) {
          if (taken) {
#pragma unroll
            for (int c = 0; c + 1 < columns; c += 2) warp.template turn_columns<2>(J, size, lane + 32 * c, left, right, taken);
            if constexpr (columns % 2 == 1)
              warp.template turn_columns<1>(J, size, lane + 32 * (columns - 1), left, right, taken);
          }
        }
      } else {
        // The first and the last block do not meet in odd rounds. The last warp exchanges them without rotations.
#pragma unroll
        for (int r = 0; r < kBlock; ++r)
#pragma unroll
          for (int c = 0; c < columns; ++c) {
            const T moved = warp.rows[r][c];
            warp.rows[r][c] = warp.rows[kBlock + r][c];
            warp.rows[kBlock + r][c] = moved;
          }
        const int moved = left;
        left = right;
        right = moved;
      }
      __syncthreads();  // the buffers have been read
      if (odd) {
        warp.template store_block<0>(own_buffer);
        if (lane == 0) travelling[number] = left;
        __syncthreads();
        warp.template load_block<0>(buffers + before * kBlock * columns * 32);
        left = travelling[before];
      } else {
        warp.template store_block<kBlock>(own_buffer);
        if (lane == 0) travelling[number] = right;
        __syncthreads();
        warp.template load_block<kBlock>(buffers + after * kBlock * columns * 32);
        right = travelling[after];
      }
    }
    working = team.any_around(found);
  }

  // Lengths, and their ranks in descending order, without the rows from k on, which are zeros that complete the last warp.
  warp.measure();
  const int rows_of_lane = Warp<T, columns>::row_number(lane % kRows, left, right);
  if (lane < kRows) squares[rows_of_lane] = warp.squares[lane];
  team.wait();
  int filled = 0;
  for (int i = rank; i < k; i += threads) {
    int place = 0;
    for (int j = 0; j < k; ++j) place += j < i ? squares[j] >= squares[i] : squares[j] > squares[i];
    places[i] = place;
  }
  for (int j = 0; j < k; ++j) filled += squares[j] >= Range<T>::least;
  team.wait();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = Warp<T, columns>::row_number(r, left, right);
    if (row >= k) continue;
    const T square = squares[row];
    const bool zero = square < Range<T>::least;
    const T length = zero ? T(0) : sqrt(square), inverse = zero ? T(0) : T(1) / length;
    const Index at = item * k + places[row];
    if (lane == 0) {
      const T value = spoilt ? T(nan("")) : length * back;
      S[at] = value;
      if (spoilt || !(value <= Numbers<T>::largest)) report_failure(failure, item, 1);
    }
    if constexpr (vectors) {
      T largest = 0;
      int target[columns], decisive = 2 * k;
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const T entry = absolute(warp.rows[r][c]);
        largest = entry > largest ? entry : largest;
        target[c] = lane + 32 * c < k ? static_cast<int>(order[item * k + lane + 32 * c]) : k;
      }
      largest = max_lanes(largest) * T(kSameSize);
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int candidate = 2 * target[c] + (warp.rows[r][c] < T(0));
        if (target[c] < k && absolute(warp.rows[r][c]) >= largest && candidate < decisive) decisive = candidate;
      }
      decisive = min_lanes<32>(decisive);
      const T sign = !tall && decisive % 2 ? T(-1) : T(1);
      if (lane == 0) signs[row] = sign;
#pragma unroll
      for (int c = 0; c < columns; ++c)
        if (target[c] < k) short_rows[at * k + target[c]] = sign * (warp.rows[r][c] * inverse);
    }
  }
  if (working && !spoilt && rank == 0) report_failure(failure, item, 2);
  if constexpr (vectors) {
    // Q := J Q, 32 or 64 columns at a time: the columns of Q are in the buffers, and a warp computes eight rows.
    constexpr int own = columns / 2, width_of_part = 32 * own;
    T* const rows = long_rows + item * k * n;
    for (int begin = 0; begin < n; begin += width_of_part) {
      team.wait();
      for (int place = rank; place < k * width_of_part; place += threads) {
        const int i = place / width_of_part, j = begin + place % width_of_part;
        buffers[place] = j < n ? rows[static_cast<Index>(i) * n + j] : T(0);
      }
      team.wait();
      T sum[kRows][own] = {};
      for (int i = 0; i < k; ++i) {
        T q[own];
#pragma unroll
        for (int c = 0; c < own; ++c) q[c] = buffers[i * width_of_part + lane + 32 * c];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const T weight = J[(kRows * number + r) * size + i];
#pragma unroll
          for (int c = 0; c < own; ++c) sum[r][c] += weight * q[c];
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int row = kRows * number + r;
#pragma unroll
        for (int c = 0; c < own; ++c) {
          const int j = begin + lane + 32 * c;
          if (row < k && j < n) rows[static_cast<Index>(places[row]) * n + j] = signs[row] * sum[r][c];
        }
      }
    }
    team.wait();
    complete_rows(short_rows + item * k * k, filled, k, k, !tall, buffers, team, threads);
  }
}

// Changes the sign of rows of `deciding` whose leading entry is negative, and of the same rows of `other`. One warp per row; both
// matrices are contiguous, with `rows` rows in the whole batch.
template <typename T>
__global__ void turn_rows(T* deciding, T* other, Index rows, Index length, Index other_length) {
  const int lane = threadIdx.x % 32;
  const Index row = static_cast<Index>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  T* const entries = deciding + row * length;
  if (!has_negative_lead(entries, length, lane)) return;
  for (Index c = lane; c < length; c += 32) entries[c] = -entries[c];
  for (Index c = lane; c < other_length; c += 32) other[row * other_length + c] = -other[row * other_length + c];
}
