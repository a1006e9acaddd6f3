// Covariance functions k(f, g) of two feature vectors as types: a type like Sum<Rbf<2>, Product<Rbf<4>, Matern32<1>>> is compiled
// into one kernel, which computes k of a pair, or its derivatives for all features and scalars, in registers.
//
// Each type has
//     kFeatures, kScalars   how many numbers of f and g, and of the scalars, belong to it; those of parts follow each other
//     At<T>                 k at one pair: evaluate(f, g, s, same) sets `value` (and keeps what the derivatives need);
//                           pull_back(a, f, g, s, of_f, of_s) adds a dk/df to of_f and a dk/ds to of_s
// where `same` says whether both vectors belong to the same observation. Every k is symmetric to the last bit, and so dk/dg at (f, g)
// is dk/df at (g, f).
#pragma once

// Stationary kernels: s_0 phi(S), S = |f - g|^2. A profile sets phi and its derivatives for S and for its own parameters.
template <class Profile, int d>
struct Stationary {
  static constexpr int kFeatures = d, kScalars = 1 + Profile::kShape;

  template <typename T>
  struct At {
    T value, phi, slope, of_shape[Profile::kShape + 1];

    __device__ void evaluate(const T* f, const T* g, const T* s, bool) {
      T S = 0;
#pragma unroll
      for (int i = 0; i < d; ++i) {
        const T difference = f[i] - g[i];
        S = fma(difference, difference, S);
      }
      Profile::evaluate(S, s + 1, phi, slope, of_shape);
      value = s[0] * phi;
    }

    __device__ void pull_back(T a, const T* f, const T* g, const T* s, T* of_f, T* of_s) const {
      const T weight = T(2) * a * s[0] * slope;
#pragma unroll
      for (int i = 0; i < d; ++i) of_f[i] = fma(weight, f[i] - g[i], of_f[i]);
      of_s[0] = fma(a, phi, of_s[0]);
#pragma unroll
      for (int i = 0; i < Profile::kShape; ++i) of_s[1 + i] = fma(a * s[0], of_shape[i], of_s[1 + i]);
    }
  };
};

// exp(-S / 2)
struct RbfProfile {
  static constexpr int kShape = 0;
  template <typename T>
  __device__ static void evaluate(T S, const T*, T& phi, T& slope, T*) {
    phi = exp(T(-0.5) * S);
    slope = T(-0.5) * phi;
  }
};

// exp(-r), r = sqrt(S); the derivative at 0 is 0, so that points that coincide have a finite gradient.
struct Matern12Profile {
  static constexpr int kShape = 0;
  template <typename T>
  __device__ static void evaluate(T S, const T*, T& phi, T& slope, T*) {
    const T r = sqrt(S);
    phi = exp(-r);
    slope = S > T(0) ? T(-0.5) * phi / r : T(0);
  }
};

// (1 + t) exp(-t), t = sqrt(3 S)
struct Matern32Profile {
  static constexpr int kShape = 0;
  template <typename T>
  __device__ static void evaluate(T S, const T*, T& phi, T& slope, T*) {
    const T t = sqrt(T(3) * S), e = exp(-t);
    phi = (T(1) + t) * e;
    slope = T(-1.5) * e;
  }
};

// (1 + t + 5/3 S) exp(-t), t = sqrt(5 S)
struct Matern52Profile {
  static constexpr int kShape = 0;
  template <typename T>
  __device__ static void evaluate(T S, const T*, T& phi, T& slope, T*) {
    const T t = sqrt(T(5) * S), e = exp(-t);
    phi = fma(T(5.0 / 3.0), S, T(1) + t) * e;
    slope = T(-5.0 / 6.0) * (T(1) + t) * e;
  }
};

// (1 + x)^-m, x = S / 2m, with the parameter m
struct RationalQuadraticProfile {
  static constexpr int kShape = 1;
  template <typename T>
  __device__ static void evaluate(T S, const T* shape, T& phi, T& slope, T* of_shape) {
    const T m = shape[0], x = S / (T(2) * m), logarithm = log1p(x);
    phi = exp(-m * logarithm);
    slope = T(-0.5) * phi / (T(1) + x);
    of_shape[0] = phi * (x / (T(1) + x) - logarithm);
  }
};

template <int d>
using Rbf = Stationary<RbfProfile, d>;
template <int d>
using Matern12 = Stationary<Matern12Profile, d>;
template <int d>
using Matern32 = Stationary<Matern32Profile, d>;
template <int d>
using Matern52 = Stationary<Matern52Profile, d>;
template <int d>
using RationalQuadratic = Stationary<RationalQuadraticProfile, d>;

// f'g
template <int d>
struct Linear {
  static constexpr int kFeatures = d, kScalars = 0;

  template <typename T>
  struct At {
    T value;

    __device__ void evaluate(const T* f, const T* g, const T*, bool) {
      value = 0;
#pragma unroll
      for (int i = 0; i < d; ++i) value = fma(f[i], g[i], value);
    }

    __device__ void pull_back(T a, const T*, const T* g, const T*, T* of_f, T*) const {
#pragma unroll
      for (int i = 0; i < d; ++i) of_f[i] = fma(a, g[i], of_f[i]);
    }
  };
};

// s_0 everywhere
struct Constant {
  static constexpr int kFeatures = 0, kScalars = 1;

  template <typename T>
  struct At {
    T value;

    __device__ void evaluate(const T*, const T*, const T* s, bool) { value = s[0]; }
    __device__ void pull_back(T a, const T*, const T*, const T*, T*, T* of_s) const { of_s[0] += a; }
  };
};

// s_0 for an observation with itself, else 0
struct White {
  static constexpr int kFeatures = 0, kScalars = 1;

  template <typename T>
  struct At {
    T value;
    bool is_same;

    __device__ void evaluate(const T*, const T*, const T* s, bool same) {
      is_same = same;
      value = same ? s[0] : T(0);
    }
    __device__ void pull_back(T a, const T*, const T*, const T*, T*, T* of_s) const { of_s[0] += is_same ? a : T(0); }
  };
};

// Two parts; the features and scalars of the second follow those of the first.
template <class First, class Second>
struct Pair {
  static constexpr int kFeatures = First::kFeatures + Second::kFeatures, kScalars = First::kScalars + Second::kScalars;

  template <typename T>
  struct At {
    typename First::template At<T> first;
    typename Second::template At<T> second;

    __device__ void evaluate_parts(const T* f, const T* g, const T* s, bool same) {
      first.evaluate(f, g, s, same);
      second.evaluate(f + First::kFeatures, g + First::kFeatures, s + First::kScalars, same);
    }

    __device__ void pull_back_parts(T a, T b, const T* f, const T* g, const T* s, T* of_f, T* of_s) const {
      first.pull_back(a, f, g, s, of_f, of_s);
      second.pull_back(b, f + First::kFeatures, g + First::kFeatures, s + First::kScalars, of_f + First::kFeatures,
                       of_s + First::kScalars);
    }
  };
};

template <class First, class Second>
struct Sum : Pair<First, Second> {
  template <typename T>
  struct At : Pair<First, Second>::template At<T> {
    T value;

    __device__ void evaluate(const T* f, const T* g, const T* s, bool same) {
      this->evaluate_parts(f, g, s, same);
      value = this->first.value + this->second.value;
    }
    __device__ void pull_back(T a, const T* f, const T* g, const T* s, T* of_f, T* of_s) const {
      this->pull_back_parts(a, a, f, g, s, of_f, of_s);
    }
  };
};

template <class First, class Second>
struct Product : Pair<First, Second> {
  template <typename T>
  struct At : Pair<First, Second>::template At<T> {
    T value;

    __device__ void evaluate(const T* f, const T* g, const T* s, bool same) {
      this->evaluate_parts(f, g, s, same);
      value = this->first.value * this->second.value;
    }
    __device__ void pull_back(T a, const T* f, const T* g, const T* s, T* of_f, T* of_s) const {
      this->pull_back_parts(a * this->second.value, a * this->first.value, f, g, s, of_f, of_s);
    }
  };
};
