// Binds Cholesky, triangular solves and products, products and packed triangles. All functions take addresses, sizes and
// strides, and return a status.
#include "bind/binding.h"
#include "ops/copyltu.h"
#include "ops/isclose.h"
#include "ops/packing.h"
#include "ops/potrf.h"
#include "ops/products.h"
#include "ops/trmm.h"

namespace lapgrad::binding {
namespace {

// L := Cholesky factor of A. Returns (item, code) of the first failure, or None. info: address of a code per item, or 0.
nb::object potrf(int item_size, const Operand& A, const Operand& L, index_t count, index_t n, std::uintptr_t info) {
    StatusArray own(info ? 0 : count);
    std::int32_t* const status = info ? reinterpret_cast<std::int32_t*>(info) : own.data();
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        potrf_batch<T>(A.as<const T>(count, n, n), L.as<T>(count, n, n), status);
    });
    for (index_t b = 0; b < count; ++b)
        if (status[b]) return nb::make_tuple(b, status[b]);
    return nb::none();
}

void potrf_vjp(int item_size, const Operand& L, const Operand& G, const Operand& A, index_t count, index_t n,
               std::uintptr_t info) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        potrf_vjp_batch<T>(L.as<const T>(count, n, n), G.as<const T>(count, n, n), A.as<T>(count, n, n),
                           reinterpret_cast<const std::int32_t*>(info));
    });
}

// X := L^-1 A or L A. Returns item * n + index of a zero on the diagonal (then nothing is written), or -1.
template <bool Solve>
index_t triangle(int item_size, const Operand& L, const Operand& A, const Operand& X, index_t count, index_t n, index_t m,
                 bool lower) {
    return without_gil(item_size, [&](auto type) -> index_t {
        using T = decltype(type);
        const Batch<const T> triangles = L.as<const T>(count, n, n);
        if (Solve) {
            const index_t zero = find_zero_diagonal<T>(triangles);
            if (zero >= 0) return zero;
        }
        (Solve ? trsm_batch<T> : trmm_batch<T>)(triangles, lower, A.as<const T>(count, n, m), X.as<T>(count, n, m));
        return -1;
    });
}

// C := alpha A B + beta C, A m x k, B k x n. C is not read where beta is 0.
void gemm(int item_size, const Operand& A, const Operand& B, const Operand& C, index_t count, index_t m, index_t n, index_t k,
          double alpha, double beta) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gemm_batch<T>(static_cast<T>(alpha), A.as<const T>(count, m, k), B.as<const T>(count, k, n), static_cast<T>(beta),
                      C.as<const T>(count, m, n), C.as<T>(count, m, n));
    });
}

// The lower triangle of C := alpha A B, A n x k; the upper one is zero, or mirrored if symmetric.
void gemmt(int item_size, const Operand& A, const Operand& B, const Operand& C, index_t count, index_t n, index_t k, double alpha,
           bool symmetric) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gemmt_batch<T>(static_cast<T>(alpha), A.as<const T>(count, n, k), B.as<const T>(count, k, n),
                       C.as<T>(count, n, n), symmetric);
    });
}

// B := the symmetric matrix with the lower triangle of A.
void copyltu(int item_size, const Operand& A, const Operand& B, index_t count, index_t n) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        copyltu_batch<T>(A.as<const T>(count, n, n), B.as<T>(count, n, n));
    });
}

// close (contiguous, of bool) := which entries of A, stored by rows, are close to those of B.
void isclose(int item_size, const Operand& A, const Operand& B, std::uintptr_t close, index_t count, index_t rows, index_t cols,
             double rtol, double atol) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        isclose_batch<T>(A.as<const T>(count, rows, cols), B.as<const T>(count, rows, cols), T(rtol), T(atol),
                         reinterpret_cast<bool*>(close));
    });
}

// B := rows [begin, end) of A + A'.
void add_transpose(int item_size, const Operand& A, const Operand& B, index_t count, index_t n, index_t begin, index_t end) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        add_transpose_batch<T>(A.as<const T>(count, n, n), begin, B.as<T>(count, end - begin, n));
    });
}

// v (contiguous) := A's lower triangle, row by row, starting with the diagonal `skip` below the main one.
void extracttrian(int item_size, const Operand& A, std::uintptr_t v, index_t count, index_t n, index_t skip) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        extracttrian_batch<T>(A.as<const T>(count, n, n), skip, reinterpret_cast<T*>(v));
    });
}

// The reverse of extracttrian, with zeros elsewhere. v_step: stride between the entries of a vector; a_row or a_col is 1.
void maketrian(int item_size, std::uintptr_t v, index_t v_batch, index_t v_step, const Operand& A, index_t count, index_t n,
               index_t skip) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        maketrian_batch<T>({reinterpret_cast<const T*>(v), v_step}, v_batch, skip, A.as<T>(count, n, n));
    });
}

}  // namespace

void bind_triangular(nb::module_& m) {
    m.def("potrf", &potrf);
    m.def("potrf_vjp", &potrf_vjp);
    m.def("trsm", &triangle<true>);
    m.def("trmm", &triangle<false>);
    m.def("gemm", &gemm);
    m.def("gemmt", &gemmt);
    m.def("copyltu", &copyltu);
    m.def("isclose", &isclose);
    m.def("extracttrian", &extracttrian);
    m.def("maketrian", &maketrian);
    m.def("add_transpose", &add_transpose);
}

}  // namespace lapgrad::binding
