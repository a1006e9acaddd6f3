// Binds eigenvalues and eigenvectors of symmetric matrices: addresses, sizes and strides in, status out.
#include <vector>

#include "bind/binding.h"
#include "ops/syevd.h"

namespace lapgrad::binding {
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
