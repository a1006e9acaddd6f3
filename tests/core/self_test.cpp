// Tests of the core without Python: kernels against plain loops, on whatever processor this is compiled for.
//
// packaging/test_cross.py (`make test-cross`) compiles it for this machine and for other processors, and runs those under qemu.
// BLAS is a plain loop, so that nothing has to be found at run time. Prints a line for each
// failure, and a count at the end; returns 1 if anything failed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "base/blas.h"
#include "base/isa.h"
#include "ops/gelqf.h"
#include "ops/gemmt.h"
#include "ops/potrf.h"
#include "ops/syevd.h"
#include "ops/trmm.h"
#include "ops/trsm.h"

namespace {

using namespace lapgrad;

int checks = 0, failures = 0;

// The routines of BLAS that the core calls, by definition; column-major.
template <class T>
void plain_gemm(const char* ta, const char* tb, const int* m, const int* n, const int* k, const T* alpha, const T* a,
                const int* lda, const T* b, const int* ldb, const T* beta, T* c, const int* ldc) {
    for (index_t j = 0; j < *n; ++j)
        for (index_t i = 0; i < *m; ++i) {
            T sum = 0;
            for (index_t p = 0; p < *k; ++p)
                sum += (*ta == 'N' ? a[i + p * *lda] : a[p + i * *lda]) * (*tb == 'N' ? b[p + j * *ldb] : b[j + p * *ldb]);
            T& out = c[i + j * *ldc];
            out = *alpha * sum + (*beta == T(0) ? T(0) : *beta * out);
        }
}

template <class T>
struct Matrices {
    index_t count, rows, cols;
    std::vector<T> entries;

    Matrices(index_t count, index_t rows, index_t cols)
        : count(count), rows(rows), cols(cols), entries(count * rows * cols) {}
    T& operator()(index_t b, index_t i, index_t j) { return entries[(b * rows + i) * cols + j]; }
    Batch<T> batch() { return {entries.data(), count, rows * cols, rows, cols, cols, 1}; }
    Batch<const T> readonly() { return {entries.data(), count, rows * cols, rows, cols, cols, 1}; }
};

template <class T>
Matrices<T> make_random(index_t count, index_t rows, index_t cols, int seed) {
    Matrices<T> result(count, rows, cols);
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    for (T& entry : result.entries) entry = static_cast<T>(normal(engine));
    return result;
}

// A A^T / n + identity: a condition number of about 5.
template <class T>
Matrices<T> make_positive_definite(index_t count, index_t n, int seed) {
    Matrices<T> A = make_random<T>(count, n, n, seed), result(count, n, n);
    for (index_t b = 0; b < count; ++b)
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) {
                T sum = i == j ? T(n) : T(0);
                for (index_t p = 0; p < n; ++p) sum += A(b, i, p) * A(b, j, p);
                result(b, i, j) = sum / T(n);
            }
    return result;
}

// Each entry of `found` may differ from `expected` by 100 n eps of the scale: every entry is a sum of at most 3 n products
// of numbers of that scale, and condition numbers are about 5.
template <class T>
void check(const char* what, index_t n, T found, double expected, double scale) {
    ++checks;
    const double allowed = 100.0 * static_cast<double>(n) * std::numeric_limits<T>::epsilon() * std::max(1.0, scale);
    if (std::abs(static_cast<double>(found) - expected) <= allowed) return;
    if (++failures < 20) std::printf("%s, order %lld: %g in place of %g\n", what, static_cast<long long>(n), double(found), expected);
}

template <class T>
void test_cholesky(index_t count, index_t n) {
    Matrices<T> A = make_positive_definite<T>(count, n, 1), L(count, n, n);
    std::vector<std::int32_t> info(count, -1);
    potrf_batch<T>(A.readonly(), L.batch(), info.data());
    for (index_t b = 0; b < count; ++b) {
        check<T>("potrf, status", n, T(info[b]), 0.0, 1.0);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) {
                double sum = 0.0;
                for (index_t p = 0; p < n; ++p) sum += double(L(b, i, p)) * double(L(b, j, p));
                check<T>("potrf, L L^T", n, T(sum), double(A(b, i, j)), 1.0);
                if (j > i) check<T>("potrf, upper triangle", n, L(b, i, j), 0.0, 0.0);
            }
    }
    // The differential of L along D: with Phi(X) the lower triangle of X with half of its diagonal, dL = L Phi(L^-1 D L^-T). For D = A
    // it is L / 2, so <gA, A> must be <gL, L> / 2.
    Matrices<T> gL = make_random<T>(count, n, n, 2), gA(count, n, n);
    potrf_vjp_batch<T>(L.readonly(), gL.readonly(), gA.batch(), nullptr);
    for (index_t b = 0; b < count; ++b) {
        double left = 0.0, right = 0.0, scale = 0.0;
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) {
                left += double(gA(b, i, j)) * double(A(b, i, j));
                if (j <= i) right += 0.5 * double(gL(b, i, j)) * double(L(b, i, j));
                scale += std::abs(double(gA(b, i, j)) * double(A(b, i, j)));
                check<T>("potrf_vjp, symmetry", n, gA(b, i, j), double(gA(b, j, i)), 1.0);
            }
        check<T>("potrf_vjp, along A", n, T(left), right, scale);
    }
}

template <class T>
void test_triangles(index_t count, index_t n) {
    Matrices<T> L = make_random<T>(count, n, n, 3), B = make_random<T>(count, n, n, 4), X(count, n, n), back(count, n, n);
    for (index_t b = 0; b < count; ++b)
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) L(b, i, j) = j > i ? T(0) : j == i ? T(2) : L(b, i, j) / T(n);
    trsm_batch<T>(L.readonly(), true, B.readonly(), X.batch());
    trmm_batch<T>(L.readonly(), true, X.readonly(), back.batch());
    for (index_t b = 0; b < count; ++b)
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) {
                double sum = 0.0;
                for (index_t p = 0; p <= i; ++p) sum += double(L(b, i, p)) * double(X(b, p, j));
                check<T>("trsm", n, T(sum), double(B(b, i, j)), 4.0);
                check<T>("trmm", n, back(b, i, j), sum, 4.0);
            }
    Matrices<T> C(count, n, n);
    gemmt_batch<T>(T(1), B.readonly(), B.readonly().t(), C.batch(), true);
    for (index_t b = 0; b < count; ++b)
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) {
                double sum = 0.0;
                for (index_t p = 0; p < n; ++p) sum += double(B(b, i, p)) * double(B(b, j, p));
                check<T>("syrk", n, C(b, i, j), sum, double(n));
            }
}

template <class T>
void test_orthogonal_rows(const char* what, Matrices<T>& Q, index_t b) {
    for (index_t i = 0; i < Q.rows; ++i)
        for (index_t j = 0; j < Q.rows; ++j) {
            double sum = 0.0;
            for (index_t p = 0; p < Q.cols; ++p) sum += double(Q(b, i, p)) * double(Q(b, j, p));
            check<T>(what, Q.cols, T(sum), i == j ? 1.0 : 0.0, 1.0);
        }
}

template <class T>
void test_lq(index_t count, index_t n) {
    const index_t wide = 2 * n + 1;
    Matrices<T> A = make_random<T>(count, n, wide, 5), Q(count, n, wide), L(count, n, n);
    gelqf_batch<T>(A.readonly(), Q.batch(), L.batch(), true);
    for (index_t b = 0; b < count; ++b) {
        test_orthogonal_rows<T>("gelqf, Q Q^T", Q, b);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < wide; ++j) {
                double sum = 0.0;
                for (index_t p = 0; p <= i; ++p) sum += double(L(b, i, p)) * double(Q(b, p, j));
                check<T>("gelqf, L Q", wide, T(sum), double(A(b, i, j)), 4.0);
            }
    }
}

// Batches of small matrices alone: the others need LAPACK.
template <class T>
void test_eigenvalues(index_t count, index_t n) {
    if (!prefers_lanes<T>(count, n)) return;
    Matrices<T> A = make_positive_definite<T>(count, n, 6), U(count, n, n);
    std::vector<T> eigenvalues(count * n);
    std::vector<std::int32_t> info(count, -1);
    syevd_batch<T>(A.readonly(), U.batch(), eigenvalues.data(), info.data());
    for (index_t b = 0; b < count; ++b) {
        check<T>("syevd, status", n, T(info[b]), 0.0, 1.0);
        test_orthogonal_rows<T>("syevd, U U^T", U, b);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) {
                double sum = 0.0;
                for (index_t p = 0; p < n; ++p)
                    sum += double(U(b, p, i)) * double(eigenvalues[b * n + p]) * double(U(b, p, j));
                check<T>("syevd, U^T diag U", n, T(sum), double(A(b, i, j)), 5.0);
            }
    }
}

template <class T>
void test_all() {
    blas::routines<T>().gemm = &plain_gemm<T>;
    for (const index_t count : {1, 9})
        for (const index_t n : {1, 2, 4, 5, 8, 16, 17, 33, 70, 150}) {
            if (count * n > 700) continue;
            test_cholesky<T>(count, n);
            test_triangles<T>(count, n);
            test_lq<T>(count, n);
            test_eigenvalues<T>(count, n);
        }
}

}  // namespace

int main() {
    lapgrad::isa::select("");
    test_all<double>();
    test_all<float>();
    std::printf("%s: %d checks, %d failures\n", lapgrad::isa::selected_name(), checks, failures);
    return failures ? 1 : 0;
}
