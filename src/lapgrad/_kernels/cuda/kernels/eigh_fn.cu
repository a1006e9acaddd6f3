// Functions of symmetric matrices, B = U' diag(f(l)) U, between the products: values f(l), and for the gradient the divided differences
// F_ij = (f(l_i) - f(l_j)) / (l_i - l_j), F_ij = f'(l_i) where both are equal, in forms without cancellation.
// src/lapgrad/linalg/_divided_differences.py has the same rules in tensor operations.
#include "spectral_tiles.cuh"

// The functions, with the numbers of small/eigh_fn.py.
constexpr int kExp = 0, kLog = 1, kSqrt = 2, kRsqrt = 3, kInv = 4, kPower = 5, kWholePower = 6;

template <typename T>
struct Function {
  int kind;
  T exponent, zero;  // eigenvalues up to `zero` in size may be zeros with a rounding error

  // tol: relative to the largest of the n eigenvalues, which ascend.
  __device__ Function(Index number, double power, double tol, const T* lambda, Index n)
      : kind(static_cast<int>(number)), exponent(T(power)) {
    const T lowest = absolute(lambda[0]), highest = absolute(lambda[n - 1]);
    zero = T(tol) * (lowest > highest ? lowest : highest);
  }

  // 0 in place of an eigenvalue that is negative by rounding only.
  __device__ T clear_rounding(T a) const { return a < T(0) && a >= -zero ? T(0) : a; }

  __device__ static T keep_positive(T a) { return a > Numbers<T>::smallest ? a : Numbers<T>::smallest; }

  // base^|exponent| for a whole exponent, and its reciprocal for a negative one.
  __device__ T raise(T base) const {
    T power = 1;
    for (int step = 0; step < static_cast<int>(absolute(exponent)); ++step) power *= base;
    return exponent < T(0) ? T(1) / power : power;
  }

  __device__ T value(T a) const {
    if (kind == kExp) return exp(a);
    if (kind == kLog) return log(a);
    if (kind == kSqrt) return sqrt(clear_rounding(a));
    if (kind == kRsqrt) return T(1) / sqrt(a);
    if (kind == kInv) return T(1) / a;
    if (kind == kWholePower) return raise(a);
    return pow(exponent > T(0) ? clear_rounding(a) : a, exponent);
  }

  __device__ T difference(T a, T b) const {
    if (kind == kInv) return -(T(1) / a) * (T(1) / b);
    if (kind == kRsqrt) {
      const T first = sqrt(keep_positive(a)), second = sqrt(keep_positive(b));
      return -(T(1) / first) / (first + second) * (T(1) / second);
    }
    if (kind == kWholePower) return difference_of_whole_powers(a, b);
    const bool both_zero = !(a > zero) && !(b > zero);
    if (kind == kSqrt)
      return both_zero ? T(0) : T(1) / (sqrt(keep_positive(clear_rounding(a))) + sqrt(keep_positive(clear_rounding(b))));
    const T larger = a > b ? a : b, smaller = a > b ? b : a;
    if (kind == kExp) return exp(larger) * divide_expm1(smaller - larger);
    if (kind == kLog) {
      if (larger < T(2) * smaller) return divide_log1p((larger - smaller) / smaller) / smaller;
      return (log(larger) - log(smaller)) / (larger - smaller);
    }
    if (both_zero && exponent > T(0) && exponent < T(1)) return T(0);
    return difference_of_powers(keep_positive(clear_rounding(larger)), keep_positive(clear_rounding(smaller)));
  }

  // b^(p-1) (e^(pL) - 1) / (e^L - 1), L = log(a / b), for a >= b > 0; the plain quotient where a is far above b.
  __device__ T difference_of_powers(T a, T b) const {
    if (a >= T(2) * b) return (pow(a, exponent) - pow(b, exponent)) / (a - b);
    const T step = log1p((a - b) / b);
    return exponent * pow(b, exponent - T(1)) * divide_expm1(exponent * step) / divide_expm1(step);
  }

  // a^(p-1) + a^(p-2) b + ... + b^(p-1); for a negative exponent the same with |p|, divided by -(a b)^|p|.
  __device__ T difference_of_whole_powers(T a, T b) const {
    T total = 0, power = 1;
    for (int step = 0; step < static_cast<int>(absolute(exponent)); ++step) {
      total = total * a + power;
      power *= b;
    }
    return exponent < T(0) ? -total * raise(a) * raise(b) : total;
  }

  __device__ static T divide_expm1(T x) { return x == T(0) ? T(1) : expm1(x) / x; }
  __device__ static T divide_log1p(T x) { return x == T(0) ? T(1) : log1p(x) / x; }
};

// W := diag(f(l)) U, row by row; rows of U have the given strides, W is contiguous. An eigenvalue where f is not finite is reported
// with code 1 + its place. Eight warps per block.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    scale_by_function(T* W, const T* U, Index u_item, Index u_row, Index u_col, const T* eigenvalues, Index kind, double exponent,
                      double tol, Index* failure, Index rows, Index n) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Index row = static_cast<Index>(blockIdx.x) * (kTileThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const Index item = row / n, i = row % n;
  const Function<T> function(kind, exponent, tol, eigenvalues + item * n, n);
  const T factor = function.value(eigenvalues[row]);
  if (lane == 0 && !(factor - factor == T(0))) report_failure(failure, item, static_cast<int>(i) + 1);
  const Matrix<const T> source{U + item * u_item, u_row, u_col};
  for (Index c = lane; c < n; c += 32) W[row * n + c] = factor * source(i, c);
}

// P := F o sym(P) for contiguous n x n matrices. One block per pair of tiles. Shared memory: 2 x 32 x 33 numbers.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    weigh_by_function(T* P, const T* eigenvalues, Index kind, double exponent, double tol, Index n) {
  const TilePair pair(blockIdx.x, n);
  const MirroredTiles<T> M(shared_memory<T>(), pair);
  const T* const lambda = eigenvalues + pair.item * n;
  const Function<T> function(kind, exponent, tol, lambda, n);
  M.load(P + pair.item * n * n, n);
  __syncthreads();
  M.each(n, [&](int i, int j) {
    const T both = i == j ? M(i, i) : T(0.5) * (M(i, j) + M(j, i));
    const T value = function.difference(lambda[i], lambda[j]) * both;
    M(i, j) = value;
    if (i != j) M(j, i) = value;
  });
  __syncthreads();
  M.store(P + pair.item * n * n, n);
}

// B := sym(B) for contiguous n x n matrices: rounding breaks the symmetry of a product. One block per pair of tiles.
// Shared memory: 2 x 32 x 33 numbers.
template <typename T>
__global__ void __launch_bounds__(kTileThreads) symmetrise(T* B, Index n) {
  const TilePair pair(blockIdx.x, n);
  const MirroredTiles<T> M(shared_memory<T>(), pair);
  M.load(B + pair.item * n * n, n);
  __syncthreads();
  M.each(n, [&](int i, int j) {
    if (i == j) return;
    const T value = T(0.5) * (M(i, j) + M(j, i));
    M(i, j) = value;
    M(j, i) = value;
  });
  __syncthreads();
  M.store(B + pair.item * n * n, n);
}
