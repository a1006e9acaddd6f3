// Binds the singular value decomposition and its gradient: addresses, sizes and strides in, status out.
#include <vector>

#include "bind/binding.h"
#include "ops/gesvd.h"
#include "ops/gesvd_vjp.h"

namespace lapgrad::binding {
namespace {

// Returns a batch of dense row-major matrices of rows x cols; an address of 0 stands for a missing batch.
template <class T>
Batch<T> make_dense(std::uintptr_t address, index_t count, index_t rows, index_t cols) {
    return {reinterpret_cast<T*>(address), count, address ? rows * cols : 0, rows, cols, cols, 1};
}

// Returns None, or (item, status) of the first item that failed. u and v null: values only.
nb::object gesvd(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t u,
                 std::uintptr_t s, std::uintptr_t v, index_t count, index_t m, index_t n) {
    const Operand A{a, a_batch, a_row, a_col};
    const index_t k = std::min(m, n);
    std::vector<std::int32_t> status(static_cast<std::size_t>(count));
    {
        nb::gil_scoped_release unlocked;
        with_type(item_size, [&](auto type) {
            using T = decltype(type);
            gesvd_batch<T>(A.as<const T>(count, m, n), make_dense<T>(u, count, k, m), make_dense<T>(s, count, 1, k),
                           make_dense<T>(v, count, k, n), status.data());
        });
    }
    for (index_t b = 0; b < count; ++b)
        if (status[b] != svd_done) return nb::make_tuple(b, status[b]);
    return nb::none();
}

// m <= n. Cotangents may be null; U, S, V and gS are dense. Returns whether an item was found ambiguous.
bool gesvd_vjp(int item_size, std::uintptr_t u, std::uintptr_t s, std::uintptr_t v, std::uintptr_t gu, index_t gu_batch,
               index_t gu_row, index_t gu_col, std::uintptr_t gs, std::uintptr_t gv, index_t gv_batch, index_t gv_row,
               index_t gv_col, std::uintptr_t ga, index_t ga_batch, index_t ga_row, index_t ga_col, index_t count,
               index_t m, index_t n, int policy, double tol, std::uintptr_t ambiguous) {
    const Operand gU{gu, gu_batch, gu_row, gu_col}, gV{gv, gv_batch, gv_row, gv_col}, gA{ga, ga_batch, ga_row, ga_col};
    std::uint8_t* const marks = reinterpret_cast<std::uint8_t*>(ambiguous);
    {
        nb::gil_scoped_release unlocked;
        with_type(item_size, [&](auto type) {
            using T = decltype(type);
            const SvdGradient<T> gradient{make_dense<const T>(u, count, m, m), make_dense<const T>(s, count, 1, m),
                                          make_dense<const T>(v, count, m, n), gU.as<const T>(count, m, m),
                                          make_dense<const T>(gs, count, 1, m), gV.as<const T>(count, m, n),
                                          gA.as<T>(count, m, n), static_cast<Degeneracy>(policy), static_cast<T>(tol),
                                          marks};
            gesvd_vjp_batch<T>(gradient);
        });
    }
    for (index_t b = 0; b < count; ++b)
        if (marks[b]) return true;
    return false;
}

}  // namespace

void bind_gesvd(nb::module_& m) {
    m.def("gesvd", &gesvd);
    m.def("gesvd_vjp", &gesvd_vjp);
}

}  // namespace lapgrad::binding
