// Types and declarations that the files which bind operators to Python (bind_*.cpp) share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "base/view.h"

namespace lapgrad::binding {

namespace nb = nanobind;

// A batch of matrices as Python passes it: address, batch stride, row stride, column stride (in elements).
struct Operand {
    std::uintptr_t address;
    index_t batch_stride, row_stride, col_stride;

    template <class T>
    Batch<T> as(index_t count, index_t rows, index_t cols) const {
        return {reinterpret_cast<T*>(address), count, batch_stride, rows, cols, row_stride, col_stride};
    }
};

// Calls body(T{}) with T = double or float, whichever has `item_size` bytes.
template <class F>
auto with_type(int item_size, F body) {
    return item_size == 8 ? body(double{}) : body(float{});
}

// Each adds the functions of one file to the module; bind.cpp calls them all.
void bind_lu(nb::module_& m);
void bind_syevd(nb::module_& m);
void bind_triangular(nb::module_& m);
void bind_potri(nb::module_& m);
void bind_gesvd(nb::module_& m);
void bind_gelqf(nb::module_& m);
void bind_device(nb::module_& m);
void bind_kalman(nb::module_& m);
void bind_gate(nb::module_& m);
void bind_contention(nb::module_& m);
void bind_shortcuts(nb::module_& m);
void bind_gradients(nb::module_& m);
void bind_statistics(nb::module_& m);
void bind_device_shortcuts(nb::module_& m);
void bind_translation(nb::module_& m);

}  // namespace lapgrad::binding
