// The negative log likelihood of linear Gaussian state space models, and its gradient; one thread block per series.
// kalman_nll_steps.cuh has the steps of the filter. This file has the value, and the adjoint with the formulas of
// csrc/small/lane_kalman.h.
#include "kalman_nll_steps.cuh"

// The sums of the likelihood. The product of pivots is stored as mantissa * 2^exponent, so that one logarithm at the end is enough.
// In double precision for float as well, because thousands of steps are added.
struct LikelihoodSums {
  double quadratic = 0, lost = 0, mantissa = 1;
  Index exponent = 0, observed = 0;

  // Kahan summation.
  __device__ __forceinline__ void add(double square) {
    const double term = square - lost, sum = quadratic + term;
    lost = (sum - quadratic) - term;
    quadratic = sum;
  }
  __device__ __forceinline__ void multiply(double pivot) {
    mantissa *= pivot;
    if (mantissa > 1e-30 && mantissa < 1e30) return;
    if (!(mantissa > 0) || !is_finite(mantissa)) return;  // the failure has been reported
    const int e = ilogb(mantissa);
    mantissa = ldexp(mantissa, -e);
    exponent += e;
  }
  __device__ double result() const {
    const double log_det = log(mantissa) + static_cast<double>(exponent) * 0.6931471805599453094;
    return 0.5 * (quadratic + log_det + static_cast<double>(observed) * 1.8378770664093454836);
  }
};

// Returns +k if pivot k of the innovation covariance is not positive, -k if it is not finite, -(p + 1) if the innovation is not
// finite, else 0.
template <typename T>
__device__ int find_failure_code(const T* pivots, int p, T square) {
  for (int i = 0; i < p; ++i) {
    if (!is_finite(pivots[i])) return -(i + 1);
    if (!(pivots[i] > T(0))) return i + 1;
  }
  return is_finite(square) ? 0 : -(p + 1);
}

// Reports a failure: lowers *cell to a number that encodes series, step and code, so that the first series and step stays.
// _kernels/cuda/small/kalman.py decodes it.
__device__ inline void report_step(Index* cell, Index series, Index step, int code) {
  constexpr Index kCodes = Index(1) << 6, kSteps = Index(1) << 28;
  if (cell) atomicMin(cell, (series * kSteps + step) * kCodes + code + kCodes / 2);
}

// s := the value of each series; NaN, with a report, if it fails.
template <typename T, int N, int D, int kThreads>
__global__ void __launch_bounds__(kThreads)
    filter(const T* y, Index y_series, Index y_time, const T* A, Index A_series, Index A_time, const T* B,
           Index B_series, Index B_time, const T* Q, Index Q_series, Index Q_time, const T* R, Index R_series,
           Index R_time, const T* m, Index m_series, const T* P, Index P_series, const T* c, Index c_series,
           Index c_time, Index times, Index states, Index observations, T* s, Index* cell) {
  const Index b = blockIdx.x;
  const Series<T> series{{y + b * y_series, y_time}, {A + b * A_series, A_time}, {B + b * B_series, B_time},
                         {Q + b * Q_series, Q_time}, {R + b * R_series, R_time}, {c + b * c_series, c_time},
                         m + b * m_series, P + b * P_series, static_cast<int>(states), static_cast<int>(observations)};
  Steps<T, N, D, kThreads> it(series, shared_memory<T>());
  const Index steps = it.count_steps(times, reinterpret_cast<int*>(it.X));
  if (steps == 0) {
    if (threadIdx.x == 0) s[b] = T(0);
    return;
  }
  it.load_first_moments();
  it.load(0, true);
  it.wait();
  LikelihoodSums value;
  bool failed = false;
  for (Index t = 0; t < steps; ++t) {
    it.place_A(false);
    if (t + 1 < steps) it.fetch(t + 1, false);
    it.form_innovation();
    it.wait();
    it.form_innovation_covariance();
    it.wait();
    it.template solve<false>(nullptr);
    it.wait();
    if (threadIdx.x < 32) {
      T square = 0;
      bool good = true;
#pragma unroll
      for (int i = 0; i < D; ++i) {
        const T pivot = it.pivots[i];
        square += it.v[i] * it.u[i];
        value.multiply(static_cast<double>(pivot));
        value.observed += it.y[i] == it.y[i];
        good &= pivot > T(0) && is_finite(pivot);
      }
      value.add(static_cast<double>(square));
      if (!(good && square >= T(0) && is_finite(square)) && !failed) {
        const int code = find_failure_code(it.pivots, series.p, square);
        failed = code != 0;
        if (failed && threadIdx.x == 0) report_step(cell, b, t, code);
      }
    }
    if (t + 1 == steps) break;
    it.form_gain();
    it.wait();
    it.update_covariance();
    it.wait();
    it.advance_state();
    it.wait();
    it.predict_covariance();
    it.place(false);
    it.wait();
  }
  if (threadIdx.x == 0) s[b] = failed ? T(nan("")) : static_cast<T>(value.result());
}

// Runs the filter from the moments predicted for `first` to those for `end`. Stores the moments of each step in `kept` unless it is
// null.
template <typename Filter, typename T>
__device__ __forceinline__ void run_filter(Filter& it, Index first, Index end, T* kept, Index moments) {
  for (Index t = first; t < end; ++t) {
    it.place_A(false);
    it.fetch(t + 1, false);
    if (kept) it.store_moments(kept + (t - first) * moments);
    it.form_innovation();
    it.wait();
    it.form_innovation_covariance();
    it.wait();
    it.template solve<false>(nullptr);
    it.wait();
    it.form_gain();
    it.wait();
    it.update_covariance();
    it.wait();
    it.advance_state();
    it.wait();
    it.predict_covariance();
    it.place(false);
    it.wait();
  }
  it.place_A(false);
  it.wait();
}

// The gradient of an r x c matrix, padded to R x C: summed over the steps in registers, and written after each step if the matrix
// varies with time, else at the end. Null data: not wanted.
template <typename T, int R, int C, int kThreads>
struct Gradient {
  Varying<T> target;
  int r, c;
  T sum[kOwn<R, C, kThreads>];

  __device__ Gradient(Varying<T> given, int rows, int columns) : target(given), r(rows), c(columns) {
#pragma unroll
    for (T& one : sum) one = 0;
  }
  __device__ __forceinline__ void write(Index t) {
    each<R, C, kThreads>([&](int s, int i, int j, bool mine) {
      if (mine && i < r && j < c) target.at(t)[i * c + j] = sum[s];
      sum[s] = 0;
    });
  }
  __device__ __forceinline__ void finish_step(Index t) {
    if (target.data && target.time) write(t);
  }
  __device__ __forceinline__ void finish() {
    if (target.data && !target.time) write(0);
  }
};

// Computes the gradients of each series in separate memory. `memory` holds `segment` + ceil(times / segment) moments per series:
// predicted moments are stored for `segment` steps at a time, and once per segment. Gradients of operands that vary with time
// are not written past the last observation.
template <typename T, int N, int D, int kThreads>
__global__ void __launch_bounds__(kThreads)
    pull_back(const T* y, Index y_series, Index y_time, const T* A, Index A_series, Index A_time, const T* B,
              Index B_series, Index B_time, const T* Q, Index Q_series, Index Q_time, const T* R, Index R_series,
              Index R_time, const T* m, Index m_series, const T* P, Index P_series, const T* c, Index c_series,
              Index c_time, Index times, Index states, Index observations, const T* gs, Index gs_series, T* gy,
              Index gy_series, Index gy_time, T* gA, Index gA_series, Index gA_time, T* gB, Index gB_series,
              Index gB_time, T* gQ, Index gQ_series, Index gQ_time, T* gR, Index gR_series, Index gR_time, T* gm,
              Index gm_series, T* gP, Index gP_series, T* gc, Index gc_series, Index gc_time, T* memory,
              Index segment) {
  using Filter = Steps<T, N, D, kThreads>;
  constexpr int kRow = Filter::kRow, kRowD = Filter::kRowD;
  const Index b = blockIdx.x;
  const int n = static_cast<int>(states), p = static_cast<int>(observations);
  const Series<T> series{{y + b * y_series, y_time}, {A + b * A_series, A_time}, {B + b * B_series, B_time},
                         {Q + b * Q_series, Q_time}, {R + b * R_series, R_time}, {c + b * c_series, c_time},
                         m + b * m_series, P + b * P_series, n, p};
  T* next = shared_memory<T>() + Filter::kNumbers;
  const auto take = [&next](int count) {
    T* const start = next;
    next += count;
    return start;
  };
  T* const of_P = take(tile_size(N, N));       // of the moments predicted for t + 1, then of those for t
  T* const of_Pf = take(tile_size(N, N));      // of the filtered ones
  T* const PA = take(tile_size(N, N));         // gP A
  T* const KtgP = take(tile_size(D, N));       // K' gP+
  T* const Sinv = take(tile_size(D, D));
  T* const of_S = take(tile_size(D, D));
  T *const of_m = take(N), *const of_mf = take(N), *const Btu = take(N), *const Pg = take(N);
  T *const w = take(D), *const of_v = take(D);

  const auto own = [b](T* data, Index stride, Index time) {
    return Varying<T>{data ? data + b * stride : data, time};
  };
  Gradient<T, D, 1, kThreads> of_y(own(gy, gy_series, gy_time), p, 1);
  Gradient<T, N, N, kThreads> of_A(own(gA, gA_series, gA_time), n, n), of_Q(own(gQ, gQ_series, gQ_time), n, n);
  Gradient<T, D, N, kThreads> of_B(own(gB, gB_series, gB_time), p, n);
  Gradient<T, D, D, kThreads> of_R(own(gR, gR_series, gR_time), p, p);
  Gradient<T, N, 1, kThreads> of_c(own(gc, gc_series, gc_time), n, 1);

  Filter it(series, shared_memory<T>());
  const Index steps = it.count_steps(times, reinterpret_cast<int*>(it.X));
  it.template each<N, N>([&](int, int i, int j, bool mine) {
    if (mine) of_P[i * kRow + j] = 0;
  });
  it.template each<N, 1>([&](int, int i, int, bool mine) {
    if (mine) of_m[i] = 0;
  });
  const T weight = gs[b * gs_series];
  const Index moments = states * (states + 3) / 2, segments = (steps + segment - 1) / segment;
  T* const kept = memory + b * moments * (segment + (times + segment - 1) / segment);
  T* const marks = kept + segment * moments;
  if (steps) {
    it.load_first_moments();
    it.load(0, true);
  }
  it.wait();
  for (Index k = 0; k + 1 < segments; ++k) {
    it.store_moments(marks + k * moments);
    run_filter(it, k * segment, (k + 1) * segment, static_cast<T*>(nullptr), moments);
  }
  for (Index k = segments - 1; k >= 0; --k) {
    const Index first = k * segment, end = first + segment < steps ? first + segment : steps;
    if (k + 1 < segments) {
      it.load(first, false);
      it.fetch_moments(marks + k * moments);
      it.place_moments();
      it.wait();
    }
    run_filter(it, first, end - 1, kept, moments);
    for (Index t = end - 1; t >= first; --t) {
      const bool later = t + 1 < steps;
      if (t > first) {
        it.fetch(t - 1, false);
        it.fetch_moments(kept + (t - 1 - first) * moments);
      }
      // gm+ = A' gm, and gP A of gP+ = A' gP A.
      it.form_innovation();
      it.template each<N, N>([&](int, int i, int j, bool mine) {
        const T value = sum_of<T, N>([&](int l) { return of_P[i * kRow + l] * it.A[l * kRow + j]; });
        if (mine) PA[i * kRow + j] = value;
      });
      it.template each<N, 1>([&](int, int i, int, bool mine) {
        const T value = sum_of<T, N>([&](int l) { return it.A[l * kRow + i] * of_m[l]; });
        if (mine) of_mf[i] = later ? value : T(0);
      });
      it.wait();

      // gP+, gQ = gP, gc = gm; nothing follows the last step, whose gm and gP are zero.
      it.form_innovation_covariance();
      it.template each<N, N>([&](int s, int i, int j, bool mine) {
        const T value = sum_of<T, N>([&](int l) { return it.A[l * kRow + i] * PA[l * kRow + j]; });
        if (mine && i >= j) of_Pf[i * kRow + j] = of_Pf[j * kRow + i] = later ? value : T(0);
        of_Q.sum[s] += of_P[i * kRow + j];
      });
      it.template each<N, 1>([&](int s, int i, int, bool mine) {
        const T value = sum_of<T, N>([&](int l) { return it.P[i * kRow + l] * of_mf[l]; });
        if (mine) Pg[i] = value;
        of_c.sum[s] += of_m[i];
      });
      of_Q.finish_step(t);
      of_c.finish_step(t);
      it.wait();

      it.template solve<true>(Sinv);
      it.wait();

      // w = K' gm+, gy = gv = gs u + w, K' gP+.
      it.form_gain();
      it.template each<D, N>([&](int, int q, int j, bool mine) {
        const T value = sum_of<T, N>([&](int l) { return it.Kt[q * kRow + l] * of_Pf[l * kRow + j]; });
        if (mine) KtgP[q * kRow + j] = value;
      });
      it.template each<D, 1>([&](int s, int q, int, bool mine) {
        const T value = sum_of<T, N>([&](int l) { return it.Kt[q * kRow + l] * of_mf[l]; });
        of_y.sum[s] = weight * it.u[q] + value;
        if (mine) w[q] = value, of_v[q] = of_y.sum[s];
      });
      of_y.finish_step(t);
      it.wait();

      // gS = (gs (S^-1 - u u') - w u' - u w') / 2.
      if (gA || gB) it.update_covariance();
      it.template each<D, D>([&](int, int i, int j, bool mine) {
        const T *const u = it.u;
        const T value = weight * (Sinv[i * kRowD + j] - u[i] * u[j]) - w[i] * u[j] - u[i] * w[j];
        if (mine && i >= j) of_S[i * kRowD + j] = of_S[j * kRowD + i] = T(0.5) * value;
      });
      it.wait();

      // gA = gm m+' + 2 gP A P+, gB = 2 gS B P + u (P gm+)' - 2 K' gP+ P+ - gv m', gR = gS + K' gP+ K.
      // For gP: gP+ J goes into X, and gS B into RK, whose values are not needed any more; also B' u.
      if (gA && later)
        it.template each<N, N>([&](int s, int i, int j, bool) {
          const T value = sum_of<T, N>([&](int l) { return PA[i * kRow + l] * it.Pf[l * kRow + j]; });
          of_A.sum[s] += of_m[i] * it.mf[j] + T(2) * value;
        });
      of_A.finish_step(t);
      if (gB)
        it.template each<D, N>([&](int s, int q, int j, bool) {
          T value = sum_of<T, D>([&](int r) { return of_S[q * kRowD + r] * it.BP[r * kRow + j]; });
          value -= sum_of<T, N>([&](int l) { return KtgP[q * kRow + l] * it.Pf[l * kRow + j]; });
          of_B.sum[s] += T(2) * value + it.u[q] * Pg[j] - of_v[q] * it.m[j];
        });
      of_B.finish_step(t);
      if (gR)
        it.template each<D, D>([&](int s, int i, int j, bool) {
          const int low = i > j ? i : j, high = i > j ? j : i;
          const T value = sum_of<T, N>([&](int l) { return KtgP[low * kRow + l] * it.Kt[high * kRow + l]; });
          of_R.sum[s] += it.seen(i) * it.seen(j) * (of_S[i * kRowD + j] + value);
        });
      of_R.finish_step(t);
      it.template each<N, N>([&](int, int i, int j, bool mine) {
        const T value = sum_of<T, N>([&](int l) { return of_Pf[i * kRow + l] * it.J[l * kRow + j]; });
        if (mine) it.X[i * kRow + j] = value;
      });
      it.template each<D, N>([&](int, int q, int j, bool mine) {
        const T value = sum_of<T, D>([&](int r) { return of_S[q * kRowD + r] * it.seenB[r * kRow + j]; });
        if (mine) it.RK[q * kRow + j] = value;
      });
      it.template each<N, 1>([&](int, int i, int, bool mine) {
        const T value = sum_of<T, D>([&](int q) { return it.seenB[q * kRow + i] * it.u[q]; });
        if (mine) Btu[i] = value;
      });
      it.wait();

      // gP = J' gP+ J + B' gS B + sym(gm+ (B' u)'), gm = gm+ - B' gv.
      it.template each<N, N>([&](int, int i, int j, bool mine) {
        T value = sum_of<T, N>([&](int l) { return it.J[l * kRow + i] * it.X[l * kRow + j]; });
        value += sum_of<T, D>([&](int q) { return it.seenB[q * kRow + i] * it.RK[q * kRow + j]; });
        value += T(0.5) * (of_mf[i] * Btu[j] + Btu[i] * of_mf[j]);
        if (mine && i >= j) of_P[i * kRow + j] = of_P[j * kRow + i] = value;
      });
      it.template each<N, 1>([&](int, int i, int, bool mine) {
        const T value = sum_of<T, D>([&](int q) { return it.seenB[q * kRow + i] * of_v[q]; });
        if (mine) of_m[i] = of_mf[i] - value;
      });
      if (t > first) {
        it.place(false);
        it.place_A(false);
        it.place_moments();
      }
      it.wait();
    }
  }
  of_A.finish();
  of_B.finish();
  of_Q.finish();
  of_R.finish();
  of_c.finish();
  it.template each<N, N>([&](int, int i, int j, bool mine) {
    if (gP && mine && i < n && j < n) gP[b * gP_series + i * n + j] = of_P[i * kRow + j];
  });
  it.template each<N, 1>([&](int, int i, int, bool mine) {
    if (gm && mine && i < n) gm[b * gm_series + i] = of_m[i];
  });
}
