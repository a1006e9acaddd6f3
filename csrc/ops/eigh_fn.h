// Functions of symmetric matrices from their eigenvectors (rows of U) and eigenvalues: B = U' diag(f(l)) U, and the derivative
//
//     gA = U' (F o (U sym(gB) U')) U,    F_ij = (f(l_i) - f(l_j)) / (l_i - l_j), or f'(l_i) where both are equal.
//
// Each function has a form of F without cancellation.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>

#include "ops/gemmt.h"
#include "ops/products.h"

namespace lapgrad {

enum class MatrixFunction { exp, log, sqrt, rsqrt, inv };

// The function of the eigenvalues l of one matrix. Up to `tol` times the largest |eigenvalue|, a negative one counts as a zero with a
// rounding error (sqrt), and the derivative of a root at two such zeros is 0 instead of infinite.
template <class T>
class SpectralFunction {
  public:
    SpectralFunction(MatrixFunction f, const T* l, index_t n, T tol) : f_(f), l_(l), n_(n) {
        T largest = 0;
        for (index_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(l[i]));
        zero_ = tol * largest;
    }

    T value(index_t i) const {
        switch (f_) {
            case MatrixFunction::exp: return std::exp(l_[i]);
            case MatrixFunction::log: return std::log(l_[i]);
            case MatrixFunction::sqrt: return std::sqrt(clear_rounding(l_[i]));
            case MatrixFunction::rsqrt: return T(1) / std::sqrt(l_[i]);
            default: return T(1) / l_[i];
        }
    }

    // M := F o M.
    void weigh(View<T> M, bool parallel) const {
        // What F needs of each eigenvalue: computed once, and not for each pair.
        ShortBuffer<T> buffer(n_);
        T* const each = buffer.get();
        for (index_t i = 0; i < n_; ++i) {
            if (f_ == MatrixFunction::inv) each[i] = T(1) / l_[i];
            if (f_ == MatrixFunction::sqrt) each[i] = std::sqrt(keep_positive(clear_rounding(l_[i])));
            if (f_ == MatrixFunction::rsqrt) each[i] = std::sqrt(keep_positive(l_[i]));
        }
        for_strips(n_, n_, parallel, [&](index_t begin, index_t end) {
            for (index_t i = begin; i < end; ++i)
                for (index_t j = 0; j < n_; ++j) M(i, j) *= difference(i, j, each);
        });
    }

  private:
    T clear_rounding(T x) const { return x < T(0) && x >= -zero_ ? T(0) : x; }
    static T keep_positive(T x) { return std::max(x, std::numeric_limits<T>::min()); }

    T difference(index_t i, index_t j, const T* each) const {
        const T larger = std::max(l_[i], l_[j]), smaller = std::min(l_[i], l_[j]), gap = larger - smaller;
        switch (f_) {
            case MatrixFunction::exp: return std::exp(larger) * (gap == T(0) ? T(1) : -std::expm1(-gap) / gap);
            case MatrixFunction::log: {
                if (larger >= 2 * smaller) return (std::log(larger) - std::log(smaller)) / gap;
                const T x = gap / smaller;
                return (x == T(0) ? T(1) : std::log1p(x) / x) / smaller;
            }
            case MatrixFunction::sqrt: return larger > zero_ ? T(1) / (each[i] + each[j]) : T(0);
            case MatrixFunction::rsqrt: return -(T(1) / each[i]) / (each[i] + each[j]) * (T(1) / each[j]);
            default: return -each[i] * each[j];
        }
    }

    MatrixFunction f_;
    const T* l_;
    index_t n_;
    T zero_;
};

// B := U' diag(f(l)) U, symmetric to the last bit. Returns false if f is not finite at an eigenvalue; then B is not complete.
template <class T>
bool eigh_fn_batch(Batch<const T> U, const T* eigenvalues, MatrixFunction f, T tol, Batch<T> B) {
    const index_t n = U.rows;
    std::atomic<bool> finite{true};
    for_parts<T>(U.count, 3 * n * n, [&](index_t first, index_t number) {
        const Batch<const T> vectors = U.part(first, number);
        const BatchBuffer<T> scaled(number, n, n);
        for (index_t b = 0; b < number; ++b) {
            const SpectralFunction<T> function(f, eigenvalues + (first + b) * n, n, tol);
            for (index_t i = 0; i < n; ++i) {
                const T value = function.value(i);
                if (!std::isfinite(value)) finite = false;
                const View<const T> from = vectors[b];
                const View<T> to = scaled.all()[b];
                for (index_t j = 0; j < n; ++j) to(i, j) = value * from(i, j);
            }
        }
        gemmt_batch<T>(T(1), vectors.t(), scaled.readonly(), B.part(first, number), true);
    });
    return finite;
}

// gA := the gradient for the cotangent gB, symmetric to the last bit.
template <class T>
void eigh_fn_vjp_batch(Batch<const T> U, const T* eigenvalues, Batch<const T> gB, MatrixFunction f, T tol, Batch<T> gA) {
    const index_t n = U.rows;
    for_parts<T>(U.count, 5 * n * n, [&](index_t first, index_t number) {
        const Batch<const T> vectors = U.part(first, number);
        const BatchBuffer<T> one(number, n, n), other(number, n, n);
        syrk_vjp_batch<T>(vectors.t(), gB.part(first, number), one.all());  // (gB + gB') U'
        gemmt_batch<T>(T(0.5), vectors, one.readonly(), other.all(), true);
        for (index_t b = 0; b < number; ++b)
            SpectralFunction<T>(f, eigenvalues + (first + b) * n, n, tol).weigh(other.all()[b], number == 1);
        gemm_batch<T>(T(1), other.readonly(), vectors, T(0), vectors, one.all());
        gemmt_batch<T>(T(1), vectors.t(), one.readonly(), gA.part(first, number), true);
    });
}

}  // namespace lapgrad
