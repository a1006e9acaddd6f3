// The Python module: addresses, sizes and strides in, status out. Nothing here knows torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <vector>

#include "batch.h"

namespace nb = nanobind;

namespace lapgrad::binding {
namespace {

// A batch of matrices as Python hands it over: address, batch stride, row stride, column stride (in elements).
struct Operand {
    std::uintptr_t address;
    index_t batch_stride, row_stride, col_stride;

    template <class T>
    Batch<T> as(index_t count, index_t rows, index_t cols) const {
        return {reinterpret_cast<T*>(address), count, batch_stride, rows, cols, row_stride, col_stride};
    }
};

// Calls body(T{}) with the type whose size is `item_size`.
template <class F>
auto with_type(int item_size, F body) {
    return item_size == 8 ? body(double{}) : body(float{});
}

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
        triangle_batch<T, Solve>(triangles, lower, A.as<const T>(count, n, m), X.as<T>(count, n, m));
        return -1;
    });
}

// C := alpha A B on the lower triangle, A n x k; the other one zero, or mirrored if symmetric.
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

// B := A's lower triangle, mirrored.
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

void bind_blas(std::uintptr_t sgemm, std::uintptr_t dgemm, std::uintptr_t set_threads_local,
               bool serial_in_parallel_region) {
    blas::routines<float>() = {reinterpret_cast<blas::gemm_fn<float>>(sgemm)};
    blas::routines<double>() = {reinterpret_cast<blas::gemm_fn<double>>(dgemm)};
    blas::set_threads_local = reinterpret_cast<blas::set_threads_fn>(set_threads_local);
    blas::serial_in_parallel_region = serial_in_parallel_region;
}

}  // namespace
}  // namespace lapgrad::binding

NB_MODULE(_core, m) {
    using namespace lapgrad;
    m.def("potrf", &binding::potrf);
    m.def("potrf_vjp", &binding::potrf_vjp);
    m.def("trsm", &binding::triangle<true>);
    m.def("trmm", &binding::triangle<false>);
    m.def("gemmt", &binding::gemmt);
    m.def("copyltu", &binding::copyltu);
    m.def("add_transpose", &binding::add_transpose);
    m.def("bind_blas", &binding::bind_blas);
    m.def("bind_pool", [](const std::string& path) { return parallel::bind_pool(path.c_str()); },
          "Bind the OpenMP that the loaded library `path` uses; returns its file, or '' if there is none.");
    m.def("plan", [] {
        nb::dict table;
        for (const plan::Entry& entry : plan::entries) table[entry.name] = plan::current.*entry.field;
        return table;
    });
    m.def("set_plan", [](const std::string& name, index_t value) {
        for (const plan::Entry& entry : plan::entries)
            if (name == entry.name) return void(plan::current.*entry.field = value);
        throw nb::key_error(name.c_str());
    });
    m.def("threads", &parallel::threads);
    m.def("select_isa", [](const std::string& name) { return isa::select(name.c_str()); });
    m.def("isa", [] { return std::string(isa::selected()); });
    m.def("isa_supported", [](const std::string& name) { return isa::supported(name.c_str()); });
}
