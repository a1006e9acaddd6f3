// Binds the pivoted Cholesky factor, the inverse from the Cholesky factor and its update, solves with the factor, and sums of two
// triangular products.
#include <vector>

#include "bind/binding.h"
#include "ops/cho_solve.h"
#include "ops/potri.h"
#include "ops/pstrf.h"
#include "ops/sumlogdiag.h"

namespace lapgrad::binding {
namespace {

// B := (L L')^-1. Returns item * n + index of a zero on the diagonal (then nothing is written), or -1.
index_t potri(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t b,
              index_t b_batch, index_t b_row, index_t b_col, index_t count, index_t n) {
    const Operand L{l, l_batch, l_row, l_col}, B{b, b_batch, b_row, b_col};
    nb::gil_scoped_release unlocked;
    return with_type(item_size, [&](auto type) -> index_t {
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
void potri_update(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t x,
                  index_t x_batch, index_t x_row, index_t x_col, std::uintptr_t b, index_t b_batch, index_t b_row,
                  index_t b_col, std::uintptr_t weight, index_t count, index_t n, index_t k, double scale,
                  double ratio) {
    const Operand L{l, l_batch, l_row, l_col}, X{x, x_batch, x_row, x_col}, B{b, b_batch, b_row, b_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        const PotriUpdate<T> update{X.as<const T>(count, n, k), reinterpret_cast<const T*>(weight), static_cast<T>(scale),
                               static_cast<T>(ratio)};
        potri_batch<T>(L.as<const T>(count, n, n), update, B.as<T>(count, n, n));
    });
}

void potri_vjp(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t g,
               index_t g_batch, index_t g_row, index_t g_col, std::uintptr_t r, index_t r_batch, index_t r_row,
               index_t r_col, index_t count, index_t n) {
    const Operand L{l, l_batch, l_row, l_col}, G{g, g_batch, g_row, g_col}, R{r, r_batch, r_row, r_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        potri_vjp_batch<T>(L.as<const T>(count, n, n), G.as<const T>(count, n, n), R.as<T>(count, n, n));
    });
}

// X := (L L')^-1 A. Returns item * n + index of a zero on the diagonal (then nothing is written), or -1.
index_t cho_solve(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t a,
                  index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t x, index_t x_batch, index_t x_row,
                  index_t x_col, index_t count, index_t n, index_t m) {
    const Operand L{l, l_batch, l_row, l_col}, A{a, a_batch, a_row, a_col}, X{x, x_batch, x_row, x_col};
    nb::gil_scoped_release unlocked;
    return with_type(item_size, [&](auto type) -> index_t {
        using T = decltype(type);
        const Batch<const T> factors = L.as<const T>(count, n, n);
        const index_t zero = find_zero_diagonal<T>(factors);
        if (zero >= 0) return zero;
        cho_solve_batch<T>(factors, A.as<const T>(count, n, m), X.as<T>(count, n, m));
        return -1;
    });
}

// out[item] := constant + logs * sum_i log |l_ii| + squares * |W|^2, W n x k.
void sumlogdiag(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t w,
                index_t w_batch, index_t w_row, index_t w_col, std::uintptr_t out, index_t count, index_t n, index_t k,
                double constant, double logs, double squares) {
    const Operand L{l, l_batch, l_row, l_col}, W{w, w_batch, w_row, w_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        sumlogdiag_batch<T>(L.as<const T>(count, n, n), W.as<const T>(count, n, k), constant, logs, squares,
                            reinterpret_cast<T*>(out));
    });
}

// The lower triangle of C := alpha (A B + D E), A and D n x k; the upper one is zero, or mirrored if symmetric.
void gemmt_sum(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t b,
               index_t b_batch, index_t b_row, index_t b_col, std::uintptr_t d, index_t d_batch, index_t d_row,
               index_t d_col, std::uintptr_t e, index_t e_batch, index_t e_row, index_t e_col, std::uintptr_t c,
               index_t c_batch, index_t c_row, index_t c_col, index_t count, index_t n, index_t k, double alpha,
               bool symmetric) {
    const Operand A{a, a_batch, a_row, a_col}, B{b, b_batch, b_row, b_col}, D{d, d_batch, d_row, d_col},
        E{e, e_batch, e_row, e_col}, C{c, c_batch, c_row, c_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        gemmt_sum_batch<T>(static_cast<T>(alpha), A.as<const T>(count, n, k), B.as<const T>(count, k, n),
                           D.as<const T>(count, n, k), E.as<const T>(count, k, n), C.as<T>(count, n, n), symmetric);
    });
}

// L (n x rank), pivots and ranks (int64, contiguous) := the factors with pivoting. Returns (item, status) of the first item that
// is not finite, or None.
nb::object pstrf(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t l,
                 index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t pivots, std::uintptr_t ranks, index_t count,
                 index_t n, index_t rank, double tolerance) {
    const Operand A{a, a_batch, a_row, a_col}, L{l, l_batch, l_row, l_col};
    std::vector<std::int32_t> status(static_cast<std::size_t>(count));
    {
        nb::gil_scoped_release unlocked;
        with_type(item_size, [&](auto type) {
            using T = decltype(type);
            pstrf_batch<T>(A.as<const T>(count, n, n), L.as<T>(count, n, rank), reinterpret_cast<std::int64_t*>(pivots),
                           reinterpret_cast<std::int64_t*>(ranks), tolerance, status.data());
        });
    }
    for (index_t b = 0; b < count; ++b)
        if (status[b]) return nb::make_tuple(b, status[b]);
    return nb::none();
}

// gA (contiguous) := the gradient of the square factor L; pivots and ranks as from pstrf.
void pstrf_vjp(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t g, index_t g_batch,
               index_t g_row, index_t g_col, std::uintptr_t pivots, std::uintptr_t ranks, std::uintptr_t a, index_t count, index_t n) {
    const Operand L{l, l_batch, l_row, l_col}, G{g, g_batch, g_row, g_col}, A{a, n * n, n, 1};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        pstrf_vjp_batch<T>(L.as<const T>(count, n, n), G.as<const T>(count, n, n), reinterpret_cast<const std::int64_t*>(pivots),
                           reinterpret_cast<const std::int64_t*>(ranks), A.as<T>(count, n, n));
    });
}

}  // namespace

void bind_potri(nb::module_& m) {
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
