#include "bind/tensor.h"

#include <algorithm>
#include <limits>

namespace lapgrad::binding {
namespace {

// What Python passes in, by name. The references are kept for the life of the process.
struct TorchNames {
    int (*describe)(void*, dlpack::Tensor*) = nullptr;
    PyObject *tensor_type = nullptr, *parameter_type = nullptr;
    PyObject *are_transforms_active = nullptr, *count_dispatch_modes = nullptr, *count_function_modes = nullptr;
    PyObject *is_older_vmap_active = nullptr, *is_wrapper_or_sparse = nullptr;
    PyObject* forward_ad_names = nullptr;  // the dictionary of torch.autograd.forward_ad
    PyObject *is_grad_enabled = nullptr, *empty_like = nullptr;
    PyObject* whole_number = nullptr;  // a tensor of int32 without dimensions
    PyObject *level_name = nullptr, *requires_grad_name = nullptr, *is_neg_name = nullptr, *new_empty_name = nullptr;
};

TorchNames torch_names;

// Calls a method with at most one argument. This and `call_with` are the fastest calls in Python's stable ABI.
PyObject* call_method(PyObject* object, PyObject* name, PyObject* argument = nullptr) {
    PyObject* arguments[] = {nullptr, object, argument};
    return PyObject_VectorcallMethod(name, arguments + 1, (argument ? 2 : 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// Returns whether a function without arguments, or of one, returns something false.
bool returns_false(PyObject* function, PyObject* argument = nullptr) {
    PyObject* const result = argument ? call_with(function, argument) : PyObject_CallNoArgs(function);
    if (!result) {
        PyErr_Clear();
        return false;
    }
    const bool is_false = PyObject_IsTrue(result) == 0;
    Py_DECREF(result);
    return is_false;
}

bool method_returns_false(PyObject* object, PyObject* name) {
    PyObject* const result = call_method(object, name);
    if (!result) {
        PyErr_Clear();
        return false;
    }
    const bool is_false = result == Py_False;
    Py_DECREF(result);
    return is_false;
}

// Chooses strides that BLAS accepts for dimensions of size 1, which may have any. Returns false if there are none.
bool adapt_strides(TensorOperand& out) {
    Operand& m = out.memory;
    if (out.cols == 1 && (out.rows == 1 || m.row_stride >= 1)) {
        m.row_stride = std::max<index_t>(m.row_stride, 1);
        m.col_stride = 1;
    } else if (out.rows == 1 && m.col_stride == 1) {
        m.row_stride = std::max(out.cols, m.row_stride);
    }
    const bool by_rows = m.col_stride == 1 && m.row_stride >= out.cols, by_columns = m.row_stride == 1 && m.col_stride >= out.rows;
    return (by_rows || by_columns) && std::max(m.row_stride, m.col_stride) <= std::numeric_limits<std::int32_t>::max();
}

nb::object allocate(const TensorOperand& like, PyObject* shape) {
    PyObject* const result =
        shape ? call_method(like.tensor.ptr(), torch_names.new_empty_name, shape) : nullptr;
    Py_XDECREF(shape);
    if (!result) throw nb::python_error();
    return nb::steal(result);
}

}  // namespace

PyObject* call_with(PyObject* function, PyObject* argument) {
    PyObject* arguments[] = {nullptr, argument};
    return PyObject_Vectorcall(function, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

bool has_true_attribute(PyObject* object, PyObject* name) {
    PyObject* const value = PyObject_GetAttr(object, name);
    if (!value) {
        PyErr_Clear();
        return true;
    }
    const bool is_true = value == Py_True;
    Py_DECREF(value);
    return is_true;
}

PyObject* make_empty(PyObject* like, PyObject* shape) { return call_method(like, torch_names.new_empty_name, shape); }

bool is_ordinary(nb::handle tensor) {
    PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
    return type == torch_names.tensor_type || type == torch_names.parameter_type;
}

bool is_wrapped(nb::handle tensor) { return !returns_false(torch_names.is_wrapper_or_sparse, tensor.ptr()); }

bool read_header(nb::handle tensor, dlpack::Tensor& out) {
    // Tensors without memory of their own, sparse ones say, raise here.
    if (torch_names.describe(tensor.ptr(), &out) != 0) return PyErr_Clear(), false;
    return true;
}

bool requires_gradient(nb::handle tensor) { return has_true_attribute(tensor.ptr(), torch_names.requires_grad_name); }

bool is_negated(nb::handle tensor) { return !method_returns_false(tensor.ptr(), torch_names.is_neg_name); }

bool is_recording() { return !returns_false(torch_names.is_grad_enabled); }

bool bind_torch(nb::handle names) {
    const auto get = [&](const char* name) { return nb::object(names[name]).release().ptr(); };
    const auto* table =
        static_cast<const dlpack::ExchangeTable*>(PyCapsule_GetPointer(nb::object(names["table"]).ptr(), "dlpack_exchange_api"));
    if (!table) PyErr_Clear();
    if (!table || table->version.major != 1 || !table->describe) return false;
    TorchNames found;
    found.tensor_type = get("tensor_type");
    found.parameter_type = get("parameter_type");
    found.are_transforms_active = get("are_transforms_active");
    found.count_dispatch_modes = get("count_dispatch_modes");
    found.count_function_modes = get("count_function_modes");
    found.is_older_vmap_active = get("is_older_vmap_active");
    found.is_wrapper_or_sparse = get("is_wrapper_or_sparse");
    found.forward_ad_names = get("forward_ad_names");
    found.is_grad_enabled = get("is_grad_enabled");
    found.empty_like = get("empty_like");
    found.whole_number = get("whole_number");
    found.level_name = PyUnicode_InternFromString("_current_level");
    found.requires_grad_name = PyUnicode_InternFromString("requires_grad");
    found.is_neg_name = PyUnicode_InternFromString("is_neg");
    found.new_empty_name = PyUnicode_InternFromString("new_empty");
    found.describe = table->describe;
    torch_names = found;
    return true;
}

bool is_plain_eager() {
    if (!torch_names.describe) return false;
    PyObject* const level = PyDict_GetItemWithError(torch_names.forward_ad_names, torch_names.level_name);
    if (!level || PyLong_AsLong(level) >= 0) return PyErr_Clear(), false;
    // torch.autograd.grad(is_grads_batched=True) runs under an older vmap, whose tensors have no memory of their own. To try and read
    // one raises an exception in torch, which takes milliseconds.
    return returns_false(torch_names.are_transforms_active) && returns_false(torch_names.count_dispatch_modes) &&
           returns_false(torch_names.count_function_modes) && returns_false(torch_names.is_older_vmap_active);
}

namespace {

// Describes a tensor with `inner` dimensions (1 for vectors, 2 for matrices) after at most one for the batch.
bool describe(nb::handle tensor, int inner, TensorOperand& out) {
    dlpack::Tensor found{};
    if (!is_ordinary(tensor) || (requires_gradient(tensor) && (is_recording() || is_wrapped(tensor)))) return false;
    if (!read_header(tensor, found)) return false;
    const bool is_number = found.dtype.code == dlpack::float_code && (found.dtype.bits == 32 || found.dtype.bits == 64);
    if (found.device_type != dlpack::cpu_device || !is_number || found.dtype.lanes != 1) return false;
    if ((found.ndim != inner && found.ndim != inner + 1) || !found.data || !found.strides) return false;
    const int last = found.ndim - 1;
    out.is_single = found.ndim == inner;
    out.is_vector = inner == 1;
    out.count = out.is_single ? 1 : found.shape[0];
    out.cols = found.shape[last];
    out.rows = inner == 2 ? found.shape[last - 1] : 1;
    if (out.count == 0 || out.rows == 0 || out.cols == 0) return false;
    if (std::max(out.rows, out.cols) > std::numeric_limits<std::int32_t>::max()) return false;
    out.item_size = found.dtype.bits / 8;
    const index_t row_stride = inner == 2 ? found.strides[last - 1] : out.cols, col_stride = found.strides[last];
    out.memory = {reinterpret_cast<std::uintptr_t>(found.data) + found.byte_offset, out.is_single ? 0 : found.strides[0], row_stride,
                  col_stride};
    const auto matches = [](index_t size, index_t stride, index_t wanted) { return size == 1 || stride == wanted; };
    out.is_contiguous = matches(out.cols, col_stride, 1) && matches(out.rows, row_stride, out.cols) &&
                        matches(out.count, out.memory.batch_stride, out.rows * out.cols);
    out.tensor = tensor;
    return adapt_strides(out) && !is_negated(tensor);
}

}  // namespace

bool describe_tensor(nb::handle tensor, TensorOperand& out) { return describe(tensor, 2, out); }

bool describe_vectors(nb::handle tensor, TensorOperand& out) { return describe(tensor, 1, out); }

nb::object allocate_like(const TensorOperand& like) {
    // empty_like keeps the strides of a dense tensor: those of a transposed one are not wanted.
    if (!like.is_contiguous) return allocate_matrix(like, like.rows, like.cols);
    PyObject* const result = call_with(torch_names.empty_like, like.tensor.ptr());
    if (!result) throw nb::python_error();
    return nb::steal(result);
}

nb::object allocate_matrix(const TensorOperand& like, index_t rows, index_t cols) {
    if (like.is_contiguous && !like.is_vector && rows == like.rows && cols == like.cols) return allocate_like(like);
    return allocate(like, like.is_single ? Py_BuildValue("(LL)", (long long)rows, (long long)cols)
                                         : Py_BuildValue("(LLL)", (long long)like.count, (long long)rows, (long long)cols));
}

nb::object allocate_vector(const TensorOperand& like, index_t size) {
    return allocate(like, like.is_single ? Py_BuildValue("(L)", (long long)size)
                                         : Py_BuildValue("(LL)", (long long)like.count, (long long)size));
}

nb::object allocate_scalar(const TensorOperand& like) {
    return allocate(like, like.is_single ? PyTuple_New(0) : Py_BuildValue("(L)", (long long)like.count));
}

nb::object allocate_status(const TensorOperand& like) {
    PyObject* result = nullptr;
    if (like.is_single) {
        result = call_with(torch_names.empty_like, torch_names.whole_number);
    } else {
        PyObject* const shape = Py_BuildValue("(L)", (long long)like.count);
        if (shape) result = call_method(torch_names.whole_number, torch_names.new_empty_name, shape);
        Py_XDECREF(shape);
    }
    if (!result) throw nb::python_error();
    return nb::steal(result);
}

std::uintptr_t get_address(nb::handle tensor) {
    dlpack::Tensor found{};
    if (torch_names.describe(tensor.ptr(), &found) != 0) throw nb::python_error();
    return reinterpret_cast<std::uintptr_t>(found.data) + found.byte_offset;
}

}  // namespace lapgrad::binding
