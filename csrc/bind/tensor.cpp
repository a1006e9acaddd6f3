#include "bind/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/pages.h"

namespace lapgrad::binding {
namespace {

// What Python passes in, by name. The references are kept for the life of the process.
struct TorchNames {
    int (*describe)(void*, dlpack::Tensor*) = nullptr;
    PyObject *tensor_type = nullptr, *parameter_type = nullptr;
    PyObject *are_transforms_active = nullptr, *count_dispatch_modes = nullptr, *count_function_modes = nullptr;
    PyObject *is_older_vmap_active = nullptr, *is_tracing = nullptr, *is_wrapper_or_sparse = nullptr;
    PyObject* forward_ad_names = nullptr;  // the dictionary of torch.autograd.forward_ad
    PyObject *is_grad_enabled = nullptr, *empty_like = nullptr;
    PyObject* whole_number = nullptr;  // a tensor of int32 without dimensions
    PyObject *level_name = nullptr, *requires_grad_name = nullptr, *is_neg_name = nullptr, *new_empty_name = nullptr;
    PyObject* is_zero_name = nullptr;
};

TorchNames torch_names;

// C functions of torch by address, from Python, which knows their names. Either all are bound or none.
struct TorchFunctions {
    // The interface of torch's ahead-of-time compiler: tensors by handle, results by pointer, and an error code.
    int (*empty_strided)(std::int64_t ndim, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                         std::int32_t device_type, std::int32_t device_index, void** tensor) = nullptr;
    int (*get_data)(void* tensor, void** data) = nullptr;
    int (*delete_tensor)(void* tensor) = nullptr;
    PyObject* (*wrap)(void* tensor) = nullptr;  // takes a C++ reference to what a handle points to
    std::int64_t (*count_dispatch_modes)() = nullptr, (*count_function_modes)() = nullptr;
    bool (*is_key_included)(std::uint16_t key) = nullptr;
    bool (*is_recording)() = nullptr;
    // Optional, all or none: they read the data of a tensor, whose pointer is at `tensor_offset` in its Python object.
    bool (*requires_gradient)(const void* data) = nullptr;
    bool (*is_negated)(const void* const* data) = nullptr;
    std::size_t tensor_offset = 0;
    // Keys that are there while a transform of torch.func, the older vmap, or torch.jit.trace is active.
    std::uint16_t front_key = 0, back_key = 0, vmap_key = 0, trace_key = 0;
};

TorchFunctions torch_functions;

// torch's numbers of dtypes, and of the CPU. They are part of files that torch saves, and do not change.
constexpr std::int32_t int32_number = 3, float32_number = 6, float64_number = 7, cpu_number = 0;

// Calls a method with at most one argument. This and `call_with` are the fastest calls in Python's stable ABI.
PyObject* call_method(PyObject* object, PyObject* name, PyObject* argument = nullptr) {
    PyObject* arguments[] = {nullptr, object, argument};
    return PyObject_VectorcallMethod(name, arguments + 1, (argument ? 2 : 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// Calls a function with at most one argument. Returns whether its result is false.
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

// The sizes of a new tensor: at most a batch, rows and columns.
struct Sizes {
    std::int64_t ndim = 0, sizes[3] = {};

    Sizes(const TensorOperand& like, std::initializer_list<index_t> inner) {
        if (!like.is_single) sizes[ndim++] = like.count;
        for (const index_t size : inner) sizes[ndim++] = size;
    }
};

NewTensor find_memory(PyObject* tensor) {
    if (!tensor) throw nb::python_error();
    NewTensor result{nb::steal(tensor)};
    dlpack::Tensor found{};
    if (torch_names.describe(tensor, &found) != 0) throw nb::python_error();
    result.address = reinterpret_cast<std::uintptr_t>(found.data) + found.byte_offset;
    return result;
}

// Allocates by torch's C functions, matrices by columns if asked to. Returns no tensor if one of them reports an error.
NewTensor allocate_by_function(const TorchFunctions& torch, const Sizes& sizes, std::int32_t dtype, bool by_columns = false) {
    std::int64_t strides[3];
    std::int64_t step = 1;
    for (std::int64_t d = sizes.ndim - 1; d >= 0; step *= sizes.sizes[d--]) strides[d] = step;  // in the end the number of elements
    if (by_columns) {
        strides[sizes.ndim - 2] = 1;
        strides[sizes.ndim - 1] = sizes.sizes[sizes.ndim - 2];
    }
    void *handle = nullptr, *data = nullptr;
    if (torch.empty_strided(sizes.ndim, sizes.sizes, strides, dtype, cpu_number, 0, &handle) != 0) return {};
    PyObject* const tensor = torch.get_data(handle, &data) == 0 ? torch.wrap(handle) : nullptr;
    torch.delete_tensor(handle);
    if (!tensor) return PyErr_Clear(), NewTensor{};
    use_huge_pages(data, static_cast<std::size_t>(step) * (dtype == float64_number ? 8 : 4));
    return {nb::steal(tensor), reinterpret_cast<std::uintptr_t>(data)};
}

// Allocates by the method new_empty of a tensor.
NewTensor allocate_by_method(PyObject* like, const Sizes& sizes) {
    PyObject* const shape = PyTuple_New(sizes.ndim);
    for (std::int64_t d = 0; shape && d < sizes.ndim; ++d) PyTuple_SetItem(shape, d, PyLong_FromLongLong(sizes.sizes[d]));
    PyObject* const result = shape ? call_method(like, torch_names.new_empty_name, shape) : nullptr;
    Py_XDECREF(shape);
    return find_memory(result);
}

NewTensor allocate(const TensorOperand& like, std::initializer_list<index_t> inner) {
    const Sizes sizes(like, inner);
    if (torch_functions.wrap)
        if (NewTensor result = allocate_by_function(torch_functions, sizes, like.item_size == 4 ? float32_number : float64_number))
            return result;
    return allocate_by_method(like.tensor.ptr(), sizes);
}

// Stores the addresses that Python has found, and tests them on a tensor. If the test fails, none stays bound.
void bind_functions(nb::dict addresses) {
    torch_functions = {};
    if (!addresses.size()) return;
    TorchFunctions found;
    const auto get = [&](const char* name) { return nb::cast<std::uintptr_t>(addresses[name]); };
    const auto set = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(get(name));
    };
    set(found.empty_strided, "empty_strided");
    set(found.get_data, "get_data");
    set(found.delete_tensor, "delete_tensor");
    set(found.wrap, "wrap");
    set(found.count_dispatch_modes, "count_dispatch_modes");
    set(found.count_function_modes, "count_function_modes");
    set(found.is_key_included, "is_key_included");
    set(found.is_recording, "is_recording");
    found.front_key = static_cast<std::uint16_t>(get("front_key"));
    found.back_key = static_cast<std::uint16_t>(get("back_key"));
    found.vmap_key = static_cast<std::uint16_t>(get("vmap_key"));
    found.trace_key = static_cast<std::uint16_t>(get("trace_key"));
    TensorOperand like{};
    like.count = 2;
    const NewTensor tried = allocate_by_function(found, Sizes(like, {3, 5}), float64_number);
    dlpack::Tensor seen{};
    if (!tried || reinterpret_cast<PyObject*>(Py_TYPE(tried.ptr())) != torch_names.tensor_type) return;
    if (torch_names.describe(tried.ptr(), &seen) != 0) return PyErr_Clear();
    const bool is_right = seen.ndim == 3 && seen.shape[0] == 2 && seen.shape[1] == 3 && seen.shape[2] == 5 && seen.strides[0] == 15 &&
                          seen.strides[1] == 5 && seen.strides[2] == 1 && seen.device_type == dlpack::cpu_device &&
                          seen.dtype.code == dlpack::float_code && seen.dtype.bits == 64 &&
                          reinterpret_cast<std::uintptr_t>(seen.data) + seen.byte_offset == tried.address;
    if (is_right) torch_functions = found;
}

// The pointer to the data of a tensor, where it stands in the Python object.
const void* const* find_data(PyObject* tensor, std::size_t offset) {
    return reinterpret_cast<const void* const*>(reinterpret_cast<const char*>(tensor) + offset);
}

// Stores the functions that read a tensor's data, if they give the known answers for the tensors in `names`.
void bind_readers(nb::dict names) {
    if (!names.size() || !torch_functions.wrap) return;
    const auto get = [&](const char* name) { return nb::cast<std::uintptr_t>(names[name]); };
    const nb::object plain(names["tensor"]), tracked(names["tracked"]), negated(names["negated"]);
    const std::optional<std::size_t> offset = find_tensor_offset(plain.ptr(), get("data_of_tensor"), get("size_of_tensor"));
    if (!offset) return;
    TorchFunctions found = torch_functions;
    found.tensor_offset = *offset;
    found.requires_gradient = reinterpret_cast<decltype(found.requires_gradient)>(get("requires_gradient"));
    found.is_negated = reinterpret_cast<decltype(found.is_negated)>(get("is_negated"));
    const auto matches = [&](const nb::object& tensor, bool is_tracked, bool is_negative) {
        const void* const* const data = find_data(tensor.ptr(), *offset);
        return found.requires_gradient(*data) == is_tracked && found.is_negated(data) == is_negative;
    };
    if (matches(plain, false, false) && matches(tracked, true, false) && matches(negated, false, true)) torch_functions = found;
}

}  // namespace

std::optional<std::size_t> find_tensor_offset(PyObject* tensor, std::uintptr_t data, std::size_t size) {
    constexpr std::size_t word = sizeof(void*), first = 2 * word, last = 6 * word;
    for (std::size_t offset = first; offset <= last && offset + word <= size; offset += word) {
        std::uintptr_t seen;
        std::memcpy(&seen, reinterpret_cast<const char*>(tensor) + offset, word);
        if (seen == data) return offset;
    }
    return std::nullopt;
}

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
    // Tensors without memory of their own, for example sparse ones, raise here.
    if (torch_names.describe(tensor.ptr(), &out) != 0) return PyErr_Clear(), false;
    return true;
}

bool requires_gradient(nb::handle tensor) {
    if (torch_functions.requires_gradient) return torch_functions.requires_gradient(*find_data(tensor.ptr(), torch_functions.tensor_offset));
    return has_true_attribute(tensor.ptr(), torch_names.requires_grad_name);
}

bool has_memory(nb::handle tensor, std::uintptr_t address) {
    constexpr std::uintptr_t lowest = std::uintptr_t(1) << 40;  // torch is asked below it
    return address >= lowest || method_returns_false(tensor.ptr(), torch_names.is_zero_name);
}

bool is_negated(nb::handle tensor) {
    if (torch_functions.is_negated) return torch_functions.is_negated(find_data(tensor.ptr(), torch_functions.tensor_offset));
    return !method_returns_false(tensor.ptr(), torch_names.is_neg_name);
}

bool is_recording() {
    return torch_functions.wrap ? torch_functions.is_recording() : !returns_false(torch_names.is_grad_enabled);
}

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
    found.is_tracing = get("is_tracing");
    found.is_wrapper_or_sparse = get("is_wrapper_or_sparse");
    found.forward_ad_names = get("forward_ad_names");
    found.is_grad_enabled = get("is_grad_enabled");
    found.empty_like = get("empty_like");
    found.whole_number = get("whole_number");
    found.level_name = PyUnicode_InternFromString("_current_level");
    found.requires_grad_name = PyUnicode_InternFromString("requires_grad");
    found.is_neg_name = PyUnicode_InternFromString("is_neg");
    found.new_empty_name = PyUnicode_InternFromString("new_empty");
    found.is_zero_name = PyUnicode_InternFromString("_is_zerotensor");
    found.describe = table->describe;
    torch_names = found;
    bind_functions(nb::cast<nb::dict>(names["functions"]));
    bind_readers(nb::cast<nb::dict>(names["readers"]));
    return true;
}

bool is_plain_eager() {
    if (!torch_names.describe) return false;
    PyObject* const level = PyDict_GetItemWithError(torch_names.forward_ad_names, torch_names.level_name);
    if (!level || PyLong_AsLong(level) >= 0) return PyErr_Clear(), false;
    if (const TorchFunctions& torch = torch_functions; torch.wrap)
        return !torch.is_key_included(torch.front_key) && !torch.is_key_included(torch.back_key) && torch.count_dispatch_modes() == 0 &&
               torch.count_function_modes() == 0 && !torch.is_key_included(torch.vmap_key) && !torch.is_key_included(torch.trace_key);
    // torch.autograd.grad(is_grads_batched=True) runs under an older vmap, whose tensors have no memory of their own. Reading one raises an
    // exception in torch, which takes milliseconds.
    return returns_false(torch_names.are_transforms_active) && returns_false(torch_names.count_dispatch_modes) &&
           returns_false(torch_names.count_function_modes) && returns_false(torch_names.is_older_vmap_active) &&
           returns_false(torch_names.is_tracing);
}

namespace {

// Describes a tensor with `inner` dimensions (0 for numbers, 1 for vectors, 2 for matrices) after at most one for the batch.
bool describe(nb::handle tensor, int inner, TensorOperand& out) {
    dlpack::Tensor found{};
    if (!is_ordinary(tensor) || (requires_gradient(tensor) && (is_recording() || is_wrapped(tensor)))) return false;
    if (!read_header(tensor, found)) return false;
    const bool is_number = found.dtype.code == dlpack::float_code && (found.dtype.bits == 32 || found.dtype.bits == 64);
    if (found.device_type != dlpack::cpu_device || !is_number || found.dtype.lanes != 1) return false;
    if ((found.ndim != inner && found.ndim != inner + 1) || !found.data || (!found.strides && found.ndim > 0)) return false;
    const int last = found.ndim - 1;
    out.is_single = found.ndim == inner;
    out.is_vector = inner == 1;
    out.count = out.is_single ? 1 : found.shape[0];
    out.cols = inner > 0 ? found.shape[last] : 1;
    out.rows = inner == 2 ? found.shape[last - 1] : 1;
    if (out.count == 0 || out.rows == 0 || out.cols == 0) return false;
    if (std::max(out.rows, out.cols) > std::numeric_limits<std::int32_t>::max()) return false;
    out.item_size = found.dtype.bits / 8;
    const index_t row_stride = inner == 2 ? found.strides[last - 1] : out.cols, col_stride = inner > 0 ? found.strides[last] : 1;
    out.memory = {reinterpret_cast<std::uintptr_t>(found.data) + found.byte_offset, out.is_single ? 0 : found.strides[0], row_stride,
                  col_stride};
    const auto matches = [](index_t size, index_t stride, index_t wanted) { return size == 1 || stride == wanted; };
    out.is_contiguous = matches(out.cols, col_stride, 1) && matches(out.rows, row_stride, out.cols) &&
                        matches(out.count, out.memory.batch_stride, out.rows * out.cols);
    out.tensor = tensor;
    if (!has_memory(tensor, out.memory.address)) return false;
    return adapt_strides(out) && !is_negated(tensor);
}

}  // namespace

bool describe_tensor(nb::handle tensor, TensorOperand& out) { return describe(tensor, 2, out); }

bool describe_vectors(nb::handle tensor, TensorOperand& out) { return describe(tensor, 1, out); }

bool describe_numbers(nb::handle tensor, TensorOperand& out) { return describe(tensor, 0, out); }

NewTensor allocate_like(const TensorOperand& like) {
    if (!torch_functions.wrap && like.is_contiguous && !like.is_vector)  // It keeps the strides of a dense tensor.
        return find_memory(call_with(torch_names.empty_like, like.tensor.ptr()));
    return like.is_vector ? allocate_vector(like, like.cols) : allocate_matrix(like, like.rows, like.cols);
}

NewTensor allocate_matrix(const TensorOperand& like, index_t rows, index_t cols) { return allocate(like, {rows, cols}); }

NewTensor allocate_vector(const TensorOperand& like, index_t size) { return allocate(like, {size}); }

NewTensor allocate_scalar(const TensorOperand& like) { return allocate(like, {}); }

NewTensor allocate_by_columns(const TensorOperand& like, index_t rows, index_t cols) {
    if (!torch_functions.wrap) return {};
    return allocate_by_function(torch_functions, Sizes(like, {rows, cols}), like.item_size == 4 ? float32_number : float64_number, true);
}

NewTensor allocate_status(const TensorOperand& like) {
    const Sizes sizes(like, {});
    if (torch_functions.wrap)
        if (NewTensor result = allocate_by_function(torch_functions, sizes, int32_number)) return result;
    return allocate_by_method(torch_names.whole_number, sizes);
}

}  // namespace lapgrad::binding
