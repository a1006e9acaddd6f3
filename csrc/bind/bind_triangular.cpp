// Binds Cholesky, triangular solves and products, symmetric products and packed triangles. All functions take addresses, sizes and
// strides, and return a status.
#include <vector>

#include "bind/binding.h"
#include "ops/copyltu.h"
#include "ops/packing.h"
#include "ops/potrf.h"
#include "ops/trmm.h"

namespace lapgrad::binding {
namespace {

// L := Cholesky factor of A. Returns (item, code) of the first failure, or None. info: address of a code per item, or 0.
nb::object potrf(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t l,
                 index_t l_batch, index_t l_row, index_t l_col, index_t count, index_t n, std::uintptr_t info) {
    const Operand A{a, a_batch, a_row, a_col}, L{l, l_batch, l_row, l_col};
    std::int32_t single = 0;
    std::vector<std::int32_t> own;
    std::int32_t* status = reinterpret_cast<std::int32_t*>(info);
    if (!status && count == 1) status = &single;
    if (!status) {
        own.resize(count);
        status = own.data();
    }
    {
        nb::gil_scoped_release unlocked;
        with_type(item_size, [&](auto type) {
            using T = decltype(type);
            potrf_batch<T>(A.as<const T>(count, n, n), L.as<T>(count, n, n), status);
        });
    }
    for (index_t b = 0; b < count; ++b)
        if (status[b]) return nb::make_tuple(b, status[b]);
    return nb::none();
}

void potrf_vjp(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t g,
               index_t g_batch, index_t g_row, index_t g_col, std::uintptr_t a, index_t a_batch, index_t a_row,
               index_t a_col, index_t count, index_t n, std::uintptr_t info) {
    const Operand L{l, l_batch, l_row, l_col}, G{g, g_batch, g_row, g_col}, A{a, a_batch, a_row, a_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        potrf_vjp_batch<T>(L.as<const T>(count, n, n), G.as<const T>(count, n, n), A.as<T>(count, n, n),
                           reinterpret_cast<const std::int32_t*>(info));
    });
}

// X := L^-1 A or L A. Returns item * n + index of a zero on the diagonal (then nothing is written), or -1.
template <bool Solve>
index_t triangle(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, std::uintptr_t a,
                 index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t x, index_t x_batch, index_t x_row,
                 index_t x_col, index_t count, index_t n, index_t m, bool lower) {
    const Operand L{l, l_batch, l_row, l_col}, A{a, a_batch, a_row, a_col}, X{x, x_batch, x_row, x_col};
    nb::gil_scoped_release unlocked;
    return with_type(item_size, [&](auto type) -> index_t {
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

// The lower triangle of C := alpha A B, A n x k; the upper one is zero, or mirrored if symmetric.
void gemmt(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t b,
           index_t b_batch, index_t b_row, index_t b_col, std::uintptr_t c, index_t c_batch, index_t c_row,
           index_t c_col, index_t count, index_t n, index_t k, double alpha, bool symmetric) {
    const Operand A{a, a_batch, a_row, a_col}, B{b, b_batch, b_row, b_col}, C{c, c_batch, c_row, c_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        gemmt_batch<T>(static_cast<T>(alpha), A.as<const T>(count, n, k), B.as<const T>(count, k, n),
                       C.as<T>(count, n, n), symmetric);
    });
}

// B := the symmetric matrix with the lower triangle of A.
void copyltu(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t b,
             index_t b_batch, index_t b_row, index_t b_col, index_t count, index_t n) {
    const Operand A{a, a_batch, a_row, a_col}, B{b, b_batch, b_row, b_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        copyltu_batch<T>(A.as<const T>(count, n, n), B.as<T>(count, n, n));
    });
}

// B := rows [begin, end) of A + A'.
void add_transpose(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t b,
                   index_t b_batch, index_t b_row, index_t b_col, index_t count, index_t n, index_t begin,
                   index_t end) {
    const Operand A{a, a_batch, a_row, a_col}, B{b, b_batch, b_row, b_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        add_transpose_batch<T>(A.as<const T>(count, n, n), begin, B.as<T>(count, end - begin, n));
    });
}

// v (contiguous) := A's lower triangle, row by row, starting with the diagonal `skip` below the main one.
void extracttrian(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t v,
                  index_t count, index_t n, index_t skip) {
    const Operand A{a, a_batch, a_row, a_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        extracttrian_batch<T>(A.as<const T>(count, n, n), skip, reinterpret_cast<T*>(v));
    });
}

// The reverse of extracttrian, with zeros elsewhere. v_step: stride between the entries of a vector; a_row or a_col is 1.
void maketrian(int item_size, std::uintptr_t v, index_t v_batch, index_t v_step, std::uintptr_t a, index_t a_batch,
               index_t a_row, index_t a_col, index_t count, index_t n, index_t skip) {
    const Operand A{a, a_batch, a_row, a_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
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
    m.def("gemmt", &gemmt);
    m.def("copyltu", &copyltu);
    m.def("extracttrian", &extracttrian);
    m.def("maketrian", &maketrian);
    m.def("add_transpose", &add_transpose);
}

}  // namespace lapgrad::binding
