// Binds factorisations with orthogonal factors and their gradients: LQ, singular values, eigenvalues of symmetric matrices. Addresses,
// sizes and strides in, status out.
#include <utility>
#include <vector>

#include "bind/binding.h"
#include "ops/gelqf.h"
#include "ops/gesvd.h"
#include "ops/gesvd_vjp.h"
#include "ops/syevd.h"

namespace lapgrad::binding {
namespace {

// Returns a dense row-major operand of rows x cols; an address of 0 stands for a missing matrix.
Operand make_dense(std::uintptr_t address, index_t rows, index_t cols) {
    return {address, address ? rows * cols : 0, cols, 1};
}

// Returns (item, row), or None for a negative item.
nb::object convert_place(std::pair<index_t, index_t> place) {
    if (place.first < 0) return nb::none();
    return nb::make_tuple(place.first, place.second);
}

nb::object gelqf(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t q,
                 std::uintptr_t l, index_t count, index_t m, index_t n, bool positive) {
    const index_t r = std::min(m, n);
    const Operand A{a, a_batch, a_row, a_col}, Q = make_dense(q, r, n), L = make_dense(l, m, r);
    std::pair<index_t, index_t> place;
    {
        nb::gil_scoped_release unlocked;
        place = with_type(item_size, [&](auto type) -> std::pair<index_t, index_t> {
            using T = decltype(type);
            return gelqf_batch<T>(A.as<const T>(count, m, n), Q.as<T>(count, r, n), L.as<T>(count, m, r), positive);
        });
    }
    return convert_place(place);
}

nb::object find_dependent_row(int item_size, std::uintptr_t l, index_t l_batch, index_t l_row, index_t l_col, index_t count,
                         index_t m, index_t r, double tolerance, bool relative_to_largest) {
    const Operand L{l, l_batch, l_row, l_col};
    return convert_place(with_type(item_size, [&](auto type) -> std::pair<index_t, index_t> {
        using T = decltype(type);
        return find_dependent_row_batch<T>(L.as<const T>(count, m, r), static_cast<T>(tolerance), relative_to_largest);
    }));
}

void gelqf_vjp(int item_size, std::uintptr_t q, std::uintptr_t l, std::uintptr_t gq, std::uintptr_t gl, std::uintptr_t ga,
               index_t count, index_t m, index_t n) {
    const index_t r = std::min(m, n);
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        gelqf_vjp_batch<T>(make_dense(q, r, n).as<const T>(count, r, n), make_dense(l, m, r).as<const T>(count, m, r),
                           make_dense(gq, r, n).as<const T>(count, r, n), make_dense(gl, m, r).as<const T>(count, m, r),
                           make_dense(ga, m, n).as<T>(count, m, n));
    });
}

void gelqf_l_vjp(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t l,
                 std::uintptr_t gl, std::uintptr_t ga, index_t count, index_t m, index_t n) {
    const index_t r = std::min(m, n);
    const Operand A{a, a_batch, a_row, a_col};
    nb::gil_scoped_release unlocked;
    with_type(item_size, [&](auto type) {
        using T = decltype(type);
        gelqf_l_vjp_batch<T>(A.as<const T>(count, m, n), make_dense(l, m, r).as<const T>(count, m, r),
                             make_dense(gl, m, r).as<const T>(count, m, r), make_dense(ga, m, n).as<T>(count, m, n));
    });
}

}  // namespace

void bind_gelqf(nb::module_& m) {
    m.def("gelqf", &gelqf);
    m.def("find_dependent_row", &find_dependent_row);
    m.def("gelqf_vjp", &gelqf_vjp);
    m.def("gelqf_l_vjp", &gelqf_l_vjp);
}

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

namespace {

// Returns a contiguous batch of n x n matrices; an address of 0 stands for a missing batch.
Operand make_contiguous(std::uintptr_t address, index_t n) { return {address, n * n, n, 1}; }

// Returns (item, code) of the first code that is not 0, or None.
nb::object find_first(const std::vector<std::int32_t>& status) {
    for (std::size_t b = 0; b < status.size(); ++b)
        if (status[b]) return nb::make_tuple(b, status[b]);
    return nb::none();
}

// Eigenvalues and, unless u is 0, eigenvectors of the lower triangles; u and eigenvalues are contiguous. Returns (item, code) of the
// first failure, or None.
nb::object syevd(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t u,
                 std::uintptr_t eigenvalues, index_t count, index_t n) {
    const Operand A{a, a_batch, a_row, a_col}, U = make_contiguous(u, n);
    std::vector<std::int32_t> info(count);
    {
        nb::gil_scoped_release unlocked;
        with_type(item_size, [&](auto type) {
            using T = decltype(type);
            syevd_batch<T>(A.as<const T>(count, n, n), U.as<T>(count, n, n), reinterpret_cast<T*>(eigenvalues),
                           info.data());
        });
    }
    return find_first(info);
}

// ga := the gradient; gu or g_eigenvalues may be 0. All but gu are contiguous. Returns (item, 1) of the first item on which the loss
// has no derivative, or None.
nb::object syevd_vjp(int item_size, std::uintptr_t u, std::uintptr_t eigenvalues, std::uintptr_t g, index_t g_batch,
                     index_t g_row, index_t g_col, std::uintptr_t g_eigenvalues, int gaps, double tol, std::uintptr_t ga,
                     index_t count, index_t n) {
    const Operand U = make_contiguous(u, n), gU{g, g_batch, g_row, g_col}, gA = make_contiguous(ga, n);
    std::vector<std::int32_t> uneven(count);
    {
        nb::gil_scoped_release unlocked;
        with_type(item_size, [&](auto type) {
            using T = decltype(type);
            syevd_vjp_batch<T>(U.as<const T>(count, n, n), reinterpret_cast<const T*>(eigenvalues),
                               gU.as<const T>(count, n, n), reinterpret_cast<const T*>(g_eigenvalues),
                               static_cast<Degeneracy>(gaps), static_cast<T>(tol), gA.as<T>(count, n, n), uneven.data());
        });
    }
    return find_first(uneven);
}

}  // namespace

void bind_syevd(nb::module_& m) {
    m.def("syevd", &syevd);
    m.def("syevd_vjp", &syevd_vjp);
}

}  // namespace lapgrad::binding
