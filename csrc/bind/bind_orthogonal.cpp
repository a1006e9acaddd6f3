// Binds factorisations with orthogonal factors and their gradients: LQ, singular values, eigenvalues of symmetric matrices. Addresses,
// sizes and strides in, status out.
#include <algorithm>
#include <utility>

#include "bind/binding.h"
#include "ops/gelqf.h"
#include "ops/gesvd.h"
#include "ops/gesvd_vjp.h"
#include "ops/syevd.h"

namespace lapgrad::binding {
namespace {

// Returns (item, row), or None for a negative item.
nb::object convert_place(std::pair<index_t, index_t> place) {
    if (place.first < 0) return nb::none();
    return nb::make_tuple(place.first, place.second);
}

nb::object gelqf(int item_size, const Operand& A, std::uintptr_t q, std::uintptr_t l, index_t count, index_t m, index_t n,
                 bool positive) {
    const index_t r = std::min(m, n);
    return convert_place(without_gil(item_size, [&](auto type) -> std::pair<index_t, index_t> {
        using T = decltype(type);
        return gelqf_batch<T>(A.as<const T>(count, m, n), make_dense<T>(q, count, r, n), make_dense<T>(l, count, m, r), positive);
    }));
}

nb::object find_dependent_row(int item_size, const Operand& L, index_t count, index_t m, index_t r, double tolerance,
                              bool relative_to_largest) {
    return convert_place(with_type(item_size, [&](auto type) -> std::pair<index_t, index_t> {
        using T = decltype(type);
        return find_dependent_row_batch<T>(L.as<const T>(count, m, r), static_cast<T>(tolerance), relative_to_largest);
    }));
}

void gelqf_vjp(int item_size, std::uintptr_t q, std::uintptr_t l, std::uintptr_t gq, std::uintptr_t gl, std::uintptr_t ga,
               index_t count, index_t m, index_t n) {
    const index_t r = std::min(m, n);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gelqf_vjp_batch<T>(make_dense<const T>(q, count, r, n), make_dense<const T>(l, count, m, r),
                           make_dense<const T>(gq, count, r, n), make_dense<const T>(gl, count, m, r),
                           make_dense<T>(ga, count, m, n));
    });
}

void gelqf_l_vjp(int item_size, const Operand& A, std::uintptr_t l, std::uintptr_t gl, std::uintptr_t ga, index_t count,
                 index_t m, index_t n) {
    const index_t r = std::min(m, n);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gelqf_l_vjp_batch<T>(A.as<const T>(count, m, n), make_dense<const T>(l, count, m, r),
                             make_dense<const T>(gl, count, m, r), make_dense<T>(ga, count, m, n));
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

// Returns None, or (item, status) of the first item that failed. u and v null: values only.
nb::object gesvd(int item_size, const Operand& A, std::uintptr_t u, std::uintptr_t s, std::uintptr_t v, index_t count, index_t m,
                 index_t n) {
    const index_t k = std::min(m, n);
    StatusArray status(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gesvd_batch<T>(A.as<const T>(count, m, n), make_dense<T>(u, count, k, m), make_dense<T>(s, count, 1, k),
                       make_dense<T>(v, count, k, n), status.data());
    });
    return status.find_first();
}

// m <= n. Cotangents may be null; U, S, V and gS are dense. Returns whether an item was found ambiguous.
bool gesvd_vjp(int item_size, std::uintptr_t u, std::uintptr_t s, std::uintptr_t v, const Operand& gU, std::uintptr_t gs,
               const Operand& gV, const Operand& gA, index_t count, index_t m, index_t n, int policy, double tol,
               std::uintptr_t ambiguous) {
    std::uint8_t* const marks = reinterpret_cast<std::uint8_t*>(ambiguous);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        const SvdGradient<T> gradient{make_dense<const T>(u, count, m, m), make_dense<const T>(s, count, 1, m),
                                      make_dense<const T>(v, count, m, n), gU.as<const T>(count, m, m),
                                      make_dense<const T>(gs, count, 1, m), gV.as<const T>(count, m, n),
                                      gA.as<T>(count, m, n), static_cast<Degeneracy>(policy), static_cast<T>(tol),
                                      marks};
        gesvd_vjp_batch<T>(gradient);
    });
    return std::any_of(marks, marks + count, [](std::uint8_t mark) { return mark != 0; });
}

}  // namespace

void bind_gesvd(nb::module_& m) {
    m.def("gesvd", &gesvd);
    m.def("gesvd_vjp", &gesvd_vjp);
}

namespace {

// Eigenvalues and, unless u is 0, eigenvectors of the lower triangles; u and eigenvalues are contiguous. Returns (item, code) of the
// first failure, or None.
nb::object syevd(int item_size, const Operand& A, std::uintptr_t u, std::uintptr_t eigenvalues, index_t count, index_t n) {
    StatusArray status(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        syevd_batch<T>(A.as<const T>(count, n, n), make_dense<T>(u, count, n, n), reinterpret_cast<T*>(eigenvalues),
                       status.data());
    });
    return status.find_first();
}

// ga := the gradient; gu or g_eigenvalues may be 0. All but gu are contiguous. Returns (item, 1) of the first item on which the loss
// has no derivative, or None.
nb::object syevd_vjp(int item_size, std::uintptr_t u, std::uintptr_t eigenvalues, const Operand& gU, std::uintptr_t g_eigenvalues,
                     int gaps, double tol, std::uintptr_t ga, index_t count, index_t n) {
    StatusArray uneven(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        syevd_vjp_batch<T>(make_dense<const T>(u, count, n, n), reinterpret_cast<const T*>(eigenvalues),
                           gU.as<const T>(count, n, n), reinterpret_cast<const T*>(g_eigenvalues),
                           static_cast<Degeneracy>(gaps), static_cast<T>(tol), make_dense<T>(ga, count, n, n), uneven.data());
    });
    return uneven.find_first();
}

}  // namespace

void bind_syevd(nb::module_& m) {
    m.def("syevd", &syevd);
    m.def("syevd_vjp", &syevd_vjp);
}

}  // namespace lapgrad::binding
