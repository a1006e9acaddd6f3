// Types and declarations that the files which bind operators to Python (bind_*.cpp) share.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <vector>

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

// A batch of contiguous row-major matrices; an address of 0 stands for a missing batch.
template <class T>
Batch<T> make_dense(std::uintptr_t address, index_t count, index_t rows, index_t cols) {
    return {reinterpret_cast<T*>(address), count, address ? rows * cols : 0, rows, cols, cols, 1};
}

// Calls body(T{}) with T = double or float, whichever has `item_size` bytes.
template <class F>
auto with_type(int item_size, F body) {
    return item_size == 8 ? body(double{}) : body(float{});
}

// The same, while other threads may run Python.
template <class F>
auto without_gil(int item_size, F body) {
    nb::gil_scoped_release unlocked;
    return with_type(item_size, body);
}

// A status per item, 0 if it succeeded; without an allocation for one item.
class StatusArray {
  public:
    explicit StatusArray(index_t count) : count_(count), several_(count > 1 ? count : 0) {}
    std::int32_t* data() { return several_.empty() ? &single_ : several_.data(); }

    // Returns (item, status) of the first item for which fails(item, status) is true; None if there is none.
    template <class F>
    nb::object find_first(F fails) {
        for (index_t b = 0; b < count_; ++b)
            if (fails(b, data()[b])) return nb::make_tuple(b, data()[b]);
        return nb::none();
    }
    nb::object find_first() {
        return find_first([](index_t, std::int32_t code) { return code != 0; });
    }
    bool has_failed() {
        return std::any_of(data(), data() + count_, [](std::int32_t code) { return code != 0; });
    }

  private:
    index_t count_;
    std::int32_t single_ = 0;
    std::vector<std::int32_t> several_;
};

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

// Reads an Operand from a tuple of four integers.
template <>
struct nanobind::detail::type_caster<lapgrad::binding::Operand> {
    NB_TYPE_CASTER(lapgrad::binding::Operand, const_name("tuple[int, int, int, int]"))

    bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
        if (!PyTuple_CheckExact(source.ptr()) || PyTuple_Size(source.ptr()) != 4) return false;
        long long entries[4];
        for (int i = 0; i < 4; ++i) {
            entries[i] = PyLong_AsLongLong(PyTuple_GetItem(source.ptr(), i));
            if (entries[i] == -1 && PyErr_Occurred()) {
                PyErr_Clear();
                return false;
            }
        }
        value = {static_cast<std::uintptr_t>(entries[0]), entries[1], entries[2], entries[3]};
        return true;
    }
};
