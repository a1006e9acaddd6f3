// Eigenvalues and eigenvectors of symmetric matrices: addresses, sizes and strides in, status out.
#include <vector>

#include "bind/binding.h"
#include "ops/syevd.h"

namespace lapgrad::binding {
namespace {

// A contiguous batch of matrices, or none.
Operand contiguous(std::uintptr_t address, index_t n) { return {address, n * n, n, 1}; }

// (item, code) of the first item that is not 0, or None.
nb::object first_of(const std::vector<std::int32_t>& status) {
    for (std::size_t b = 0; b < status.size(); ++b)
        if (status[b]) return nb::make_tuple(b, status[b]);
    return nb::none();
}

// Eigenvalues and, if u, eigenvectors of the lower triangles; u and eigenvalues are contiguous.
nb::object syevd(int item_size, std::uintptr_t a, index_t a_batch, index_t a_row, index_t a_col, std::uintptr_t u,
                 std::uintptr_t eigenvalues, index_t count, index_t n) {
    const Operand A{a, a_batch, a_row, a_col}, U = contiguous(u, n);
    std::vector<std::int32_t> info(count);
    {
        nb::gil_scoped_release unlocked;
        with_type(item_size, [&](auto type) {
            using T = decltype(type);
            syevd_batch<T>(A.as<const T>(count, n, n), U.as<T>(count, n, n), reinterpret_cast<T*>(eigenvalues),
                           info.data());
        });
    }
    return first_of(info);
}

// The gradient; gu or g_eigenvalues may be 0. All but gu are contiguous.
nb::object syevd_vjp(int item_size, std::uintptr_t u, std::uintptr_t eigenvalues, std::uintptr_t g, index_t g_batch,
                     index_t g_row, index_t g_col, std::uintptr_t g_eigenvalues, int gaps, double tol, std::uintptr_t ga,
                     index_t count, index_t n) {
    const Operand U = contiguous(u, n), gU{g, g_batch, g_row, g_col}, gA = contiguous(ga, n);
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
    return first_of(uneven);
}

}  // namespace

void bind_syevd(nb::module_& m) {
    m.def("syevd", &syevd);
    m.def("syevd_vjp", &syevd_vjp);
}

}  // namespace lapgrad::binding
