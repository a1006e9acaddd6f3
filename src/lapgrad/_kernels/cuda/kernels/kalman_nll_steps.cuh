// One step of the Kalman filter by one thread block, which computes one series. csrc/small/lane_kalman.h has the mathematics and
// says how missing observations are treated.
//
// Threads exchange data through shared memory. A step has seven stages with a barrier between two. Data that only one thread reads (Q,
// R, sums of gradients) are kept in registers. Each step depends on the one before, so the time of a series is the sum of the
// latencies of its stages. Therefore stages are few and wide, loads from global memory start one step ahead, and a thread without
// an element of its own computes the element of another thread instead of taking a branch.
//
// N states and D observations, powers of two, are the sizes of the model rounded up. States past the end are zero in
// all matrices, observations past the end are missing.
#pragma once

#include "block.cuh"

template <int kThreads>
__device__ __forceinline__ void wait() {
  if constexpr (kThreads == 32)
    __syncwarp();
  else
    __syncthreads();
}

// kOwn: how many elements of an R x C matrix one thread computes. `each` calls body(s, i, j, mine) for them: s counts them, i and j
// are row and column. Elements of one thread share a column. mine: this thread stores the element, others compute it redundantly.
template <int R, int C, int kThreads>
constexpr int kOwn = R * C >= kThreads ? R * C / kThreads : 1;

template <int R, int C, int kThreads, typename Body>
__device__ __forceinline__ void each(Body body) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (R * C >= kThreads) {
#pragma unroll
    for (int s = 0; s < R * C / kThreads; ++s) body(s, (s * kThreads + thread) / C, thread % C, true);
  } else {
    if (kThreads > 32 && thread / 32 * 32 >= R * C) return;
    const int e = thread % (R * C);
    body(0, e / C, e % C, thread < R * C);
  }
}

// Returns term(0) + ... + term(K - 1), in two independent sums if K > 4.
template <typename T, int K, typename Term>
__device__ __forceinline__ T sum_of(Term term) {
  T even = 0, odd = 0;
  if constexpr (K <= 4) {
#pragma unroll
    for (int k = 0; k < K; ++k) even += term(k);
  } else {
#pragma unroll 8
    for (int k = 0; k < K; k += 2) {
      even += term(k);
      odd += term(k + 1);
    }
  }
  return even + odd;
}

template <typename T>
__device__ __forceinline__ bool is_finite(T x) {
  return x - x == T(0);
}

// A matrix or vector of a series for every time: dense and row-major; the stride is 0 if it does not vary.
template <typename T>
struct Varying {
  T* data;
  Index time;

  __device__ __forceinline__ T* at(Index t) const { return data + t * time; }
};

template <typename T>
struct Series {
  Varying<const T> y, A, B, Q, R, c;
  const T *m, *P;
  int n, p;
};

// Elements of a tile whose row length is odd, so that lanes along rows and along columns access different banks.
__host__ __device__ constexpr int tile_size(int rows, int columns) { return rows * (columns | 1); }

template <typename T, int N, int D, int kThreads>
struct Steps {
  static_assert(kThreads >= N + D + 1, "a right-hand side of the solve is the work of one thread");
  static constexpr int kRow = N | 1, kRowD = D | 1;
  static constexpr int kNN = kOwn<N, N, kThreads>, kDN = kOwn<D, N, kThreads>, kDD = kOwn<D, D, kThreads>;
  static constexpr int kNumbers = 5 * tile_size(N, N) + 5 * tile_size(D, N) + 2 * tile_size(D, D) + 2 * N + 5 * D;
  // How many moments (entries of the mean and of a triangle of the covariance) one thread stores.
  static constexpr int kMoments = (N * (N + 3) / 2 + kThreads - 1) / kThreads;

  const Series<T>& series;
  T *A, *P, *J, *X, *Pf;           // N x N; f: filtered
  T *B, *seenB, *Kt, *BP, *RK;     // D x N; Kt = K'
  T *seenR, *L;                    // D x D
  T *m, *mf, *y, *v, *u, *pivots, *inverse;
  T Q[kNN], R[kDD], c;
  // The model at the next step, loaded one step ahead.
  T next_A[kNN], next_Q[kNN], next_B[kDN], next_R[kDD], next_c, next_y;
  T next_moments[kMoments];
  int row[kMoments], column[kMoments];  // of the moments; column -1: an element of the mean, -2: none

  __device__ Steps(const Series<T>& given, T* memory) : series(given) {
    const auto take = [&memory](int count) {
      T* const start = memory;
      memory += count;
      return start;
    };
    A = take(tile_size(N, N)), P = take(tile_size(N, N)), J = take(tile_size(N, N));
    X = take(tile_size(N, N)), Pf = take(tile_size(N, N));
    B = take(tile_size(D, N)), seenB = take(tile_size(D, N)), Kt = take(tile_size(D, N));
    BP = take(tile_size(D, N)), RK = take(tile_size(D, N));
    seenR = take(tile_size(D, D)), L = take(tile_size(D, D));
    m = take(N), mf = take(N), y = take(D), v = take(D), u = take(D), pivots = take(D), inverse = take(D);
#pragma unroll
    for (int s = 0; s < kMoments; ++s) {
      int e = s * kThreads + thread() - series.n;
      row[s] = e + series.n, column[s] = -1;
      if (e >= 0) {
        row[s] = 0;
        while (e > row[s]) e -= ++row[s];
        column[s] = e;
        if (row[s] >= series.n) column[s] = -2;
      }
    }
  }

  __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x); }
  template <int R, int C, typename Body>
  __device__ __forceinline__ static void each(Body body) {
    ::each<R, C, kThreads>(body);
  }
  __device__ __forceinline__ static void wait() { ::wait<kThreads>(); }

  // Returns the number of steps up to the last observation. `found` is an int in shared memory.
  __device__ Index count_steps(Index times, int* found) const {
    constexpr int kEach = 4;
    if (thread() == 0) *found = 0;
    wait();
    for (Index end = times * series.p; end > 0; end -= kEach * kThreads) {
      Index last = 0;
#pragma unroll
      for (int s = kEach - 1; s >= 0; --s) {
        const Index e = end - 1 - s * kThreads - thread();
        const T value = e >= 0 ? series.y.data[e / series.p * series.y.time + e % series.p] : T(0);
        if (e >= 0 && value == value) last = e / series.p + 1;
      }
      if (last) atomicMax(found, static_cast<int>(last));
      wait();
      const bool any = *found != 0;
      wait();
      if (any) break;
    }
    return *found;
  }

  // Loads the moments at time 0.
  __device__ void load_first_moments() {
    each<N, N>([&](int, int i, int j, bool mine) {
      const int low = i > j ? i : j, high = i > j ? j : i;
      if (mine) P[i * kRow + j] = low < series.n ? series.P[low * series.n + high] : T(0);
    });
    each<N, 1>([&](int, int i, int, bool mine) {
      if (mine) m[i] = i < series.n ? series.m[i] : T(0);
    });
  }

  // Starts to load the model at time t into registers, from where `place` and `place_A` store it. all: also operands that do not vary.
  __device__ __forceinline__ void fetch(Index t, bool all) {
    const int n = series.n, p = series.p;
    next_y = thread() < p ? series.y.at(t)[thread()] : T(nan(""));
    if (all || series.A.time)
      each<N, N>([&](int s, int i, int j, bool) { next_A[s] = i < n && j < n ? series.A.at(t)[i * n + j] : T(0); });
    if (all || series.Q.time)
      each<N, N>([&](int s, int i, int j, bool) { next_Q[s] = read_symmetric(series.Q.at(t), i, j, n); });
    if (all || series.B.time)
      each<D, N>([&](int s, int i, int k, bool) { next_B[s] = i < p && k < n ? series.B.at(t)[i * n + k] : T(0); });
    if (all || series.R.time)
      each<D, D>([&](int s, int i, int j, bool) { next_R[s] = read_symmetric(series.R.at(t), i, j, p); });
    if (all || series.c.time) next_c = thread() < n ? series.c.at(t)[thread()] : T(0);
  }

  // Returns element (i, j) of the symmetric matrix with the lower triangle of S; 0 beyond its order.
  __device__ __forceinline__ static T read_symmetric(const T* S, int i, int j, int order) {
    const int low = i > j ? i : j, high = i > j ? j : i;
    return low < order ? S[low * order + high] : T(0);
  }

  __device__ __forceinline__ void place_A(bool all) {
    if (all || series.A.time)
      each<N, N>([&](int s, int i, int j, bool mine) {
        if (mine) A[i * kRow + j] = next_A[s];
      });
  }
  __device__ __forceinline__ void place(bool all) {
    if (thread() < D) y[thread()] = next_y;
    if (all || series.B.time)
      each<D, N>([&](int s, int i, int k, bool mine) {
        if (mine) B[i * kRow + k] = next_B[s];
      });
    if (all || series.Q.time) {
#pragma unroll
      for (int s = 0; s < kNN; ++s) Q[s] = next_Q[s];
    }
    if (all || series.R.time) {
#pragma unroll
      for (int s = 0; s < kDD; ++s) R[s] = next_R[s];
    }
    if (all || series.c.time) c = next_c;
  }

  // Loads and stores the model at time t.
  __device__ void load(Index t, bool all) {
    fetch(t, all);
    place(all);
    place_A(all);
  }

  // Stores predicted moments in global memory; fetch_moments and place_moments load them. Each thread reads what it wrote itself.
  __device__ __forceinline__ void store_moments(T* memory) const {
#pragma unroll
    for (int s = 0; s < kMoments; ++s)
      if (column[s] > -2) memory[s * kThreads + thread()] = column[s] < 0 ? m[row[s]] : P[row[s] * kRow + column[s]];
  }
  __device__ __forceinline__ void fetch_moments(const T* memory) {
#pragma unroll
    for (int s = 0; s < kMoments; ++s) next_moments[s] = column[s] > -2 ? memory[s * kThreads + thread()] : T(0);
  }
  __device__ __forceinline__ void place_moments() {
#pragma unroll
    for (int s = 0; s < kMoments; ++s) {
      if (column[s] >= 0)
        P[row[s] * kRow + column[s]] = P[column[s] * kRow + row[s]] = next_moments[s];
      else if (column[s] == -1)
        m[row[s]] = next_moments[s];
    }
  }

  __device__ __forceinline__ T seen(int i) const { return y[i] == y[i] ? T(1) : T(0); }

  // Stage 1: B P and v = y - B m; B and R without missing observations.
  __device__ __forceinline__ void form_innovation() {
    each<D, N>([&](int, int i, int j, bool mine) {
      const T factor = seen(i), b = factor * B[i * kRow + j];
      const T value = factor * sum_of<T, N>([&](int k) { return B[i * kRow + k] * P[k * kRow + j]; });
      if (mine) BP[i * kRow + j] = value, seenB[i * kRow + j] = b;
    });
    each<D, D>([&](int s, int i, int j, bool mine) {
      const T r = seen(i) * seen(j) * R[s];
      if (mine) seenR[i * kRowD + j] = i == j ? r + (T(1) - seen(i)) : r;
    });
    each<D, 1>([&](int, int i, int, bool mine) {
      const T expected = sum_of<T, N>([&](int k) { return B[i * kRow + k] * m[k]; });
      const T there = seen(i);
      const T observed = there != T(0) ? y[i] : T(0);
      if (mine) v[i] = there * (observed - expected);
    });
  }

  // Stage 2: S = B P B' + R.
  __device__ __forceinline__ void form_innovation_covariance() {
    each<D, D>([&](int, int i, int j, bool mine) {
      const T value = sum_of<T, N>([&](int k) { return BP[i * kRow + k] * seenB[j * kRow + k]; });
      if (mine && i >= j) L[i * kRowD + j] = L[j * kRowD + i] = seenR[i * kRowD + j] + value;
    });
  }

  // Stage 3: S = L L', K' = S^-1 B P, u = S^-1 v, and, if asked for, S^-1. A pivot that is not positive and finite
  // counts as 1.
  template <bool kInverse>
  __device__ __forceinline__ void solve(T* Sinv) {
    if constexpr (D <= 4) {
      // Every thread computes the whole factor in registers.
      T l[D][D], reciprocal[D];
      if (kThreads > 32 && thread() / 32 * 32 > N + (kInverse ? D : 0)) return;
#pragma unroll
      for (int i = 0; i < D; ++i)
#pragma unroll
        for (int j = 0; j <= i; ++j) l[i][j] = L[i * kRowD + j];
#pragma unroll
      for (int j = 0; j < D; ++j) {
        const T pivot = l[j][j];
        const bool fine = pivot > T(0) && is_finite(pivot);
        if (thread() == 0) pivots[j] = pivot;
        reciprocal[j] = rsqrt(fine ? pivot : T(1));
#pragma unroll
        for (int i = j + 1; i < D; ++i) l[i][j] *= reciprocal[j];
#pragma unroll
        for (int i = j + 1; i < D; ++i)
#pragma unroll
          for (int k = j + 1; k <= i; ++k) l[i][k] -= l[i][j] * l[k][j];
      }
      const auto entry = [&](int i, int k) { return l[i][k]; };
      substitute<kInverse>(Sinv, entry, entry, [&](int i) { return reciprocal[i]; });
    } else {
      factor_by_lanes();
      wait();
      if (kThreads > 32 && thread() / 32 * 32 > N + (kInverse ? D : 0)) return;
      // The second substitution reads L' instead of L: if both read the same addresses, the compiler would keep all of L in
      // registers, and there are not enough.
      substitute<kInverse>(
          Sinv, [&](int i, int k) { return L[i * kRowD + k]; }, [&](int i, int k) { return L[k * kRowD + i]; },
          [&](int i) { return inverse[i]; });
    }
  }

  // The first warp factors S; lane i has row i. L' is stored in the upper triangle.
  __device__ __forceinline__ void factor_by_lanes() {
    if (thread() >= 32) return;
    const int lane = thread(), i = lane < D ? lane : D - 1;
    T entries[D];
#pragma unroll
    for (int k = 0; k < D; ++k) entries[k] = L[i * kRowD + k];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < D; ++j) {
      const T pivot = __shfl_sync(kAllLanes, entries[j], j);
      const bool fine = pivot > T(0) && is_finite(pivot);
      const T reciprocal = rsqrt(fine ? pivot : T(1)), l = entries[j] * reciprocal;
      if (lane == 0) pivots[j] = pivot, inverse[j] = reciprocal;
      if (lane < D && lane > j) L[lane * kRowD + j] = L[j * kRowD + lane] = l;
#pragma unroll
      for (int k = j + 1; k < D; ++k) entries[k] -= l * __shfl_sync(kAllLanes, l, k);
    }
  }

  // x := (L L')^-1 x, where each thread has one x: a column of B P, v, or a column of the identity.
  template <bool kInverse, typename Down, typename Up, typename Reciprocal>
  __device__ __forceinline__ void substitute(T* Sinv, Down l, Up again, Reciprocal reciprocal) {
    const int unit = thread() - N - 1;
    const T* const source = thread() < N ? BP + thread() : v;
    const int step = thread() < N ? kRow : 1;
    T x[D];
#pragma unroll
    for (int i = 0; i < D; ++i) x[i] = unit < 0 ? source[i * step] : i == unit ? T(1) : T(0);
#pragma unroll
    for (int i = 0; i < D; ++i) {
#pragma unroll
      for (int k = 0; k < i; ++k) x[i] -= l(i, k) * x[k];
      x[i] *= reciprocal(i);
    }
#pragma unroll
    for (int i = D - 1; i >= 0; --i) {
#pragma unroll
      for (int k = i + 1; k < D; ++k) x[i] -= again(k, i) * x[k];
      x[i] *= reciprocal(i);
    }
    T* const target = thread() < N ? Kt + thread() : unit < 0 ? u : Sinv + unit;
    const int stride = thread() < N ? kRow : unit < 0 ? 1 : kRowD;
    if (unit < (kInverse ? D : 0)) {
#pragma unroll
      for (int i = 0; i < D; ++i) target[i * stride] = x[i];
    }
  }

  // Stage 4: J = I - K B, X = J P = P - K B P, R K' and m+ = m + K v.
  __device__ __forceinline__ void form_gain() {
    each<N, N>([&](int, int i, int j, bool mine) {
      const T share = sum_of<T, D>([&](int q) { return Kt[q * kRow + i] * seenB[q * kRow + j]; });
      const T product = sum_of<T, D>([&](int q) { return Kt[q * kRow + i] * BP[q * kRow + j]; });
      if (mine) J[i * kRow + j] = (i == j ? T(1) : T(0)) - share, X[i * kRow + j] = P[i * kRow + j] - product;
    });
    each<D, N>([&](int, int q, int i, bool mine) {
      const T value = sum_of<T, D>([&](int r) { return seenR[q * kRowD + r] * Kt[r * kRow + i]; });
      if (mine) RK[q * kRow + i] = value;
    });
    each<N, 1>([&](int, int i, int, bool mine) {
      const T value = m[i] + sum_of<T, D>([&](int q) { return Kt[q * kRow + i] * v[q]; });
      if (mine) mf[i] = value;
    });
  }

  // Stage 5: P+ = J P J' + K R K'.
  __device__ __forceinline__ void update_covariance() {
    each<N, N>([&](int, int i, int j, bool mine) {
      T value = sum_of<T, N>([&](int k) { return X[i * kRow + k] * J[j * kRow + k]; });
      value += sum_of<T, D>([&](int q) { return Kt[q * kRow + i] * RK[q * kRow + j]; });
      if (mine && i >= j) Pf[i * kRow + j] = Pf[j * kRow + i] = value;
    });
  }

  // Stage 6: X = A P+, m = A m+ + c.
  __device__ __forceinline__ void advance_state() {
    each<N, N>([&](int, int i, int j, bool mine) {
      const T value = sum_of<T, N>([&](int k) { return A[i * kRow + k] * Pf[k * kRow + j]; });
      if (mine) X[i * kRow + j] = value;
    });
    each<N, 1>([&](int, int i, int, bool mine) {
      const T value = c + sum_of<T, N>([&](int k) { return A[i * kRow + k] * mf[k]; });
      if (mine) m[i] = value;
    });
  }

  // Stage 7: P = A P+ A' + Q. A is read until the end of this stage, so the next A is stored in the first stage of the next step.
  __device__ __forceinline__ void predict_covariance() {
    each<N, N>([&](int s, int i, int j, bool mine) {
      const T value = Q[s] + sum_of<T, N>([&](int k) { return X[i * kRow + k] * A[j * kRow + k]; });
      if (mine && i >= j) P[i * kRow + j] = P[j * kRow + i] = value;
    });
  }
};
