// Binds inverses, determinants, solves and their gradients: addresses, sizes and strides in, status out.
#include <algorithm>

#include "bind/binding.h"
#include "ops/gesv.h"
#include "ops/lu.h"

namespace lapgrad::binding {
namespace {

// B := A^-1. Returns (item, status) of the first item that has no inverse, or None.
nb::object inverse(int item_size, const Operand& A, const Operand& B, index_t count, index_t n) {
    StatusArray status(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        inverse_batch<T>(A.as<const T>(count, n, n), B.as<T>(count, n, n), status.data());
    });
    return status.find_first();
}

// gA := -B' gB B'.
void inverse_vjp(int item_size, const Operand& B, const Operand& G, const Operand& A, index_t count, index_t n) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        inverse_vjp_batch<T>(B.as<const T>(count, n, n), G.as<const T>(count, n, n), A.as<T>(count, n, n));
    });
}

// Returns the batch of factors: column-major and contiguous; address 0: they are not stored.
template <class T>
Batch<T> make_factors(std::uintptr_t address, index_t count, index_t n) {
    return {reinterpret_cast<T*>(address), count, n * n, n, n, 1, n};
}

// first := det A, or with `second` first := its sign and second := log |det A|. Returns (item, status) of the first item that is
// not finite, or None.
nb::object determinant(int item_size, const Operand& A, std::uintptr_t first, std::uintptr_t second, std::uintptr_t lu,
                       std::uintptr_t pivots, index_t count, index_t n) {
    StatusArray status(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        determinant_batch<T>(A.as<const T>(count, n, n), reinterpret_cast<T*>(first), reinterpret_cast<T*>(second),
                             make_factors<T>(lu, count, n), reinterpret_cast<pivot_t*>(pivots), status.data());
    });
    return status.find_first([](index_t, std::int32_t code) { return code < 0; });
}

// gA := weight A^-T, or with `by_determinant` weight det(A) A^-T; zero for singular items. Returns (item, status) of the first singular
// item with a nonzero weight, or None; with `by_determinant` a list of the items that the caller has to compute by another algorithm.
nb::object determinant_vjp(int item_size, const Operand& A, std::uintptr_t lu, std::uintptr_t pivots, std::uintptr_t weight,
                           bool by_determinant, std::uintptr_t g, index_t count, index_t n) {
    StatusArray status(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        determinant_vjp_batch<T>(A.as<const T>(count, n, n), make_factors<const T>(lu, count, n),
                                 reinterpret_cast<const pivot_t*>(pivots), reinterpret_cast<const T*>(weight),
                                 by_determinant, make_dense<T>(g, count, n, n), status.data());
    });
    if (by_determinant) {
        nb::list unfinished;
        for (index_t b = 0; b < count; ++b)
            if (status.data()[b]) unfinished.append(b);
        return unfinished;
    }
    return with_type(item_size, [&](auto type) {
        const auto* weights = reinterpret_cast<const decltype(type)*>(weight);
        return status.find_first([&](index_t b, std::int32_t code) { return code != 0 && weights[b] != 0; });
    });
}

// X := A^-1 B, or A^-T B, and the factors of A. Returns the first item that has none.
nb::object gesv(int item_size, const Operand& A, const Operand& B, const Operand& X, std::uintptr_t lu, std::uintptr_t pivots,
                bool transposed, index_t count, index_t n, index_t m) {
    StatusArray status(count);
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gesv_batch<T>(A.as<const T>(count, n, n), B.as<const T>(count, n, m), X.as<T>(count, n, m), transposed,
                      make_factors<T>(lu, count, n), reinterpret_cast<pivot_t*>(pivots), status.data());
    });
    return status.find_first();
}

// X := A^-1 B, or A^-T B, from the factors of A.
void gesv_factored(int item_size, std::uintptr_t lu, std::uintptr_t pivots, const Operand& B, const Operand& X, bool transposed,
                   index_t count, index_t n, index_t m) {
    without_gil(item_size, [&](auto type) {
        using T = decltype(type);
        gesv_factored_batch<T>(make_factors<T>(lu, count, n), reinterpret_cast<pivot_t*>(pivots),
                                B.as<const T>(count, n, m), X.as<T>(count, n, m), transposed);
    });
}

}  // namespace

void bind_lu(nb::module_& m) {
    m.def("inverse", &inverse);
    m.def("inverse_vjp", &inverse_vjp);
    m.def("determinant", &determinant);
    m.def("determinant_vjp", &determinant_vjp);
    m.def("gesv", &gesv);
    m.def("gesv_factored", &gesv_factored);
}

}  // namespace lapgrad::binding
