// Reads torch's tensors without torch's headers, for the shortcuts of bind_shortcuts.cpp.
//
// torch publishes a table of C functions (`torch.Tensor.__dlpack_c_exchange_api__`) that describe a tensor in DLPack's structures,
// whose layout is fixed: github.com/dmlc/dlpack, version 1. For what the structures do not say (whether a tensor needs a gradient, whether
// a transform is active) torch's Python functions are called, which Python passes in. Tensors are allocated by the C functions that torch's
// ahead-of-time compiler links its programs to, where Python has found them: an eighth of a microsecond instead of one.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "base/plan.h"
#include "base/view.h"
#include "bind/binding.h"

namespace lapgrad::binding {

// The structures of DLPack that are read here.
namespace dlpack {

struct Version {
    std::uint32_t major, minor;
};

struct DataType {
    std::uint8_t code, bits;
    std::uint16_t lanes;
};
constexpr std::uint8_t int_code = 0, float_code = 2;

struct Tensor {
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};
constexpr std::int32_t cpu_device = 1;

struct ExchangeTable {
    Version version;
    void* previous;
    void* allocate;
    void* from_object;
    void* to_object;
    int (*describe)(void* object, Tensor* out);  // may be null
    void* current_stream;
};

}  // namespace dlpack

// A matrix or a batch of matrices on the CPU that the core can read in place.
struct TensorOperand {
    int item_size;
    bool is_single, is_contiguous, is_vector;
    index_t count, rows, cols;
    Operand memory;
    nb::handle tensor;

    Operand transposed() const { return {memory.address, memory.batch_stride, memory.col_stride, memory.row_stride}; }
    Operand flip_if(bool flipped) const { return flipped ? transposed() : memory; }
};

// Stores torch's table and functions. Returns false if this torch has no table of version 1 with the function that is needed.
bool bind_torch(nb::handle torch_names);

// Returns where in the Python object of a tensor the pointer to its data, which is `data`, stands. It differs from release to release.
std::optional<std::size_t> find_tensor_offset(PyObject* tensor, std::uintptr_t data, std::size_t size);

// Whether shortcuts may run at all: no transform, mode or forward derivative is active.
bool is_plain_eager();

bool is_ordinary(nb::handle object);  // a tensor or a parameter, and no other subclass
bool requires_gradient(nb::handle tensor);
// torch.func.vjp saves tensors that are still wrapped when a second derivative is computed, after the transform. They have no memory of
// their own, and reading one raises an exception in torch, which takes milliseconds.
bool is_wrapped(nb::handle tensor);
// Reads the header of an ordinary tensor on any device. Returns false if it has no memory of its own.
bool read_header(nb::handle tensor, dlpack::Tensor& out);
// torch's tensors of zeros have no memory, and a view of one has an address that is its distance from null. `address`: of the first entry.
bool has_memory(nb::handle tensor, std::uintptr_t address);
bool is_negated(nb::handle tensor);  // a view that negates what is stored
bool is_recording();                 // whether gradients are recorded at all

// Returns a new uninitialised tensor of the dtype and device of `like`; null with a Python error set.
PyObject* make_empty(PyObject* like, PyObject* shape);

bool has_true_attribute(PyObject* object, PyObject* name);

// Calls a Python function with one argument; null with a Python error set.
PyObject* call_with(PyObject* function, PyObject* argument);

// Describes a tensor. Returns false if it is not an ordinary tensor of one or several matrices of float32 or float64 on the CPU with
// strides that BLAS can read, if it is empty, or if its gradient is being recorded.
bool describe_tensor(nb::handle tensor, TensorOperand& out);
// The same for one or several vectors, as matrices of one row.
bool describe_vectors(nb::handle tensor, TensorOperand& out);
// The same for one or several numbers, as matrices of one entry.
bool describe_numbers(nb::handle tensor, TensorOperand& out);

// A tensor that was just allocated, and where its numbers are.
struct NewTensor : nb::object {
    std::uintptr_t address = 0;
};

// Returns an uninitialised contiguous tensor like `like`, or with its batch and other sizes. Throws with a Python error set.
NewTensor allocate_like(const TensorOperand& like);
NewTensor allocate_matrix(const TensorOperand& like, index_t rows, index_t cols);
NewTensor allocate_vector(const TensorOperand& like, index_t size);
NewTensor allocate_scalar(const TensorOperand& like);
// The same for a status per item, int32.
NewTensor allocate_status(const TensorOperand& like);
// The same for matrices that are stored by columns. Returns no tensor if this torch has no function for it.
NewTensor allocate_by_columns(const TensorOperand& like, index_t rows, index_t cols);

// Calls body(T{}) for the dtype of an operand, with the lock released if the work is worth it.
template <class F>
auto compute(const TensorOperand& operand, double operations_per_item, F body) {
    if (operand.count * operations_per_item <= double(plan::locked_operations)) return with_type(operand.item_size, body);
    nb::gil_scoped_release unlocked;
    return with_type(operand.item_size, body);
}

}  // namespace lapgrad::binding
