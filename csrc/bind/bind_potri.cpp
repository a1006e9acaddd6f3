// Binds matrices of stationary covariance functions, the pivoted Cholesky factor, the inverse from the Cholesky factor and its update,
// solves with the factor, and sums of two triangular products.
#include "bind/binding.h"
#include "ops/cho_solve.h"
#include "ops/covariance.h"
#include "ops/potri.h"
#include "ops/pstrf.h"
#include "ops/sumlogdiag.h"

namespace lapgrad::binding {
namespace {

// B := (L L')^-1. Returns item * n + index of a zero on the diagonal (then nothing is written), or -1.
index_t potri(int item_size, const Operand& L, const Operand& B, index_t count, index_t n) {
    return without_gil(item_size, [&](auto type) -> index_t {
        using T = decltype(type);
        const Batch<const T> factors = L.as<const T>(count, n, n);
        const index_t zero = find_zero_diagonal<T>(factors);
        if (zero >= 0) return zero;
        const PotriUpdate<T> none{L.as<const T>(count, n, 0), nullptr, T(1), T(0)};
        potri_batch<T>(factors, none, B.as<T>(count, n, n));
        return -1;
    });
}

// B := weight[item] scale ((L L')^-1 + ratio X X'), X n x k.
void potri_update(int item_size, const Operand& L, const Operand& X, const Operand& B, std::uintptr_t weight, index_t count,
                  index_t n, index_t k, double scale, double ratio) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        const PotriUpdate<T> update{X.as<const T>(count, n, k), reinterpret_cast<const T*>(weight), static_cast<T>(scale),
                               static_cast<T>(ratio)};
        potri_batch<T>(L.as<const T>(count, n, n), update, B.as<T>(count, n, n));
    });
}

void potri_vjp(int item_size, const Operand& L, const Operand& G, const Operand& R, index_t count, index_t n) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        potri_vjp_batch<T>(L.as<const T>(count, n, n), G.as<const T>(count, n, n), R.as<T>(count, n, n));
    });
}

// X := (L L')^-1 A. Returns item * n + index of a zero on the diagonal (then nothing is written), or -1.
index_t cho_solve(int item_size, const Operand& L, const Operand& A, const Operand& X, index_t count, index_t n, index_t m) {
    return without_gil(item_size, [&](auto type) -> index_t {
        using T = decltype(type);
        const Batch<const T> factors = L.as<const T>(count, n, n);
        const index_t zero = find_zero_diagonal<T>(factors);
        if (zero >= 0) return zero;
        cho_solve_batch<T>(factors, A.as<const T>(count, n, m), X.as<T>(count, n, m));
        return -1;
    });
}

// out[item] := constant + logs * sum_i log |l_ii| + squares * |W|^2, W n x k.
void sumlogdiag(int item_size, const Operand& L, const Operand& W, std::uintptr_t out, index_t count, index_t n, index_t k,
                double constant, double logs, double squares) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        sumlogdiag_batch<T>(L.as<const T>(count, n, n), W.as<const T>(count, n, k), constant, logs, squares,
                            reinterpret_cast<T*>(out));
    });
}

// The lower triangle of C := alpha (A B + D E), A and D n x k; the upper one is zero, or mirrored if symmetric.
void gemmt_sum(int item_size, const Operand& A, const Operand& B, const Operand& D, const Operand& E, const Operand& C,
               index_t count, index_t n, index_t k, double alpha, bool symmetric) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gemmt_sum_batch<T>(static_cast<T>(alpha), A.as<const T>(count, n, k), B.as<const T>(count, k, n),
                           D.as<const T>(count, n, k), E.as<const T>(count, k, n), C.as<T>(count, n, n), symmetric);
    });
}

// L (n x rank), pivots and ranks (int64, contiguous) := the factors with pivoting. Returns (item, status) of the first item that
// is not finite, or None.
nb::object pstrf(int item_size, const Operand& A, const Operand& L, std::uintptr_t pivots, std::uintptr_t ranks, index_t count,
                 index_t n, index_t rank, double tolerance) {
    StatusArray status(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        pstrf_batch<T>(A.as<const T>(count, n, n), L.as<T>(count, n, rank), reinterpret_cast<std::int64_t*>(pivots),
                       reinterpret_cast<std::int64_t*>(ranks), tolerance, status.data());
    });
    return status.find_first();
}

// gA (contiguous) := the gradient of the square factor L; pivots and ranks as from pstrf.
void pstrf_vjp(int item_size, const Operand& L, const Operand& G, std::uintptr_t pivots, std::uintptr_t ranks, std::uintptr_t a,
               index_t count, index_t n) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        pstrf_vjp_batch<T>(L.as<const T>(count, n, n), G.as<const T>(count, n, n), reinterpret_cast<const std::int64_t*>(pivots),
                           reinterpret_cast<const std::int64_t*>(ranks), make_dense<T>(a, count, n, n));
    });
}

// K := variance phi(|f - g|^2), contiguous; G without an address: F itself. Points are contiguous; `variance` has one number, or one per item.
void covariance(int item_size, int profile, std::uintptr_t variance, index_t variance_stride, std::uintptr_t f, std::uintptr_t g,
                std::uintptr_t k, index_t count, index_t n, index_t m, index_t d) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        covariance_batch<T>(static_cast<Profile>(profile), reinterpret_cast<const T*>(variance), variance_stride,
                            make_dense<const T>(f, count, n, d), make_dense<const T>(g, count, m, d), make_dense<T>(k, count, n, m));
    });
}

// Gradients of <C, K>, all contiguous; of_variance has one number per item.
void covariance_vjp(int item_size, int profile, std::uintptr_t variance, index_t variance_stride, std::uintptr_t f,
                    std::uintptr_t g, std::uintptr_t c, std::uintptr_t of_f, std::uintptr_t of_g, std::uintptr_t of_variance,
                    index_t count, index_t n, index_t m, index_t d) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        covariance_vjp_batch<T>(static_cast<Profile>(profile), reinterpret_cast<const T*>(variance), variance_stride,
                                make_dense<const T>(f, count, n, d), make_dense<const T>(g, count, m, d),
                                make_dense<const T>(c, count, n, m), make_dense<T>(of_f, count, n, d), make_dense<T>(of_g, count, m, d),
                                reinterpret_cast<T*>(of_variance));
    });
}

}  // namespace

void bind_potri(nb::module_& m) {
    m.def("covariance", &covariance);
    m.def("covariance_vjp", &covariance_vjp);
    m.def("pstrf", &pstrf);
    m.def("pstrf_vjp", &pstrf_vjp);
    m.def("potri", &potri);
    m.def("potri_update", &potri_update);
    m.def("potri_vjp", &potri_vjp);
    m.def("cho_solve", &cho_solve);
    m.def("sumlogdiag", &sumlogdiag);
    m.def("gemmt_sum", &gemmt_sum);
}

}  // namespace lapgrad::binding
