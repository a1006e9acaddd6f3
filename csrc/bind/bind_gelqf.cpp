// Binds the LQ factorisation: addresses, sizes and strides in, status out. Q, L, their cotangents and gA are row-major and dense.
#include <utility>

#include "bind/binding.h"
#include "ops/gelqf.h"

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

}  // namespace lapgrad::binding
