#include "bind/torch_calls.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <exception>
#include <string_view>
#include <tuple>
#include <utility>

#include "bind/tensor.h"

namespace lapgrad::binding {
namespace {

// What is passed as `const at::Tensor&`: the address of a pointer to torch's data.
using TensorReference = void* const*;

struct Functions {
    PyObject* (*wrap)(TensorReference tensor) = nullptr;
    int (*delete_tensor)(void* tensor) = nullptr;  // of a tensor in memory of operator new
    // c10::impl::ExcludeDispatchKeyGuard: its constructor and destructor.
    void (*begin_exclusion)(void* guard, std::uint64_t keys) = nullptr;
    void (*end_exclusion)(void* guard) = nullptr;
    void (*translate)(const std::exception_ptr& error) = nullptr;  // makes it Python's, as torch's Python interface does
    std::uint64_t excluded = 0;     // keys that record gradients
    std::size_t tensor_offset = 0;  // of the pointer in the Python object of a tensor
};

Functions torch;

// A tensor that a function of torch has returned. It must be returned as at::Tensor is, through a hidden pointer: the destructor sees
// to that.
struct ReturnedTensor {
    void* data = nullptr;

    ReturnedTensor() = default;
    ReturnedTensor(const ReturnedTensor&) = delete;
    ReturnedTensor& operator=(const ReturnedTensor&) = delete;
    ~ReturnedTensor() {
        if (data) torch.delete_tensor(release());
    }

    // Gives the tensor away in a new block of memory: a handle, as torch's C functions take it.
    void* release() {
        void** const copy = static_cast<void**>(operator new(sizeof(void*)));
        *copy = std::exchange(data, nullptr);
        return copy;
    }
};

// While it exists, calls of torch in this thread record no gradients and track no views, as inside of torch's own kernels.
class BelowAutograd {
public:
    BelowAutograd() { torch.begin_exclusion(guard_.data(), torch.excluded); }
    ~BelowAutograd() { torch.end_exclusion(guard_.data()); }
    BelowAutograd(const BelowAutograd&) = delete;
    BelowAutograd& operator=(const BelowAutograd&) = delete;

private:
    std::array<std::uint64_t, 4> guard_{};  // two words in torch 2.11 to 2.13
};

class Unlocked {
public:
    explicit Unlocked(bool wanted) : state_(wanted ? PyEval_SaveThread() : nullptr) {}
    ~Unlocked() {
        if (state_) PyEval_RestoreThread(state_);
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_;
};

PyObject* wrap(const ReturnedTensor& tensor) { return torch.wrap(&tensor.data); }

template <class... Tensors>
PyObject* wrap(const std::tuple<Tensors...>& tensors) {
    PyObject* const all = PyTuple_New(sizeof...(Tensors));
    if (!all) return nullptr;
    Py_ssize_t position = 0;
    bool failed = false;
    const auto put = [&](const ReturnedTensor& tensor) {
        PyObject* const wrapped = failed ? nullptr : wrap(tensor);
        failed |= !wrapped;
        PyTuple_SetItem(all, position++, wrapped);
    };
    std::apply([&](const Tensors&... each) { (put(each), ...); }, tensors);
    if (failed) return Py_DECREF(all), nullptr;
    return all;
}

// Calls the function at `address`, with keys or below autograd, and returns its results as Python objects.
template <class Results, class... Arguments>
PyObject* call_as(void* address, const std::uint64_t* keys, bool is_long, Arguments... arguments) {
    if (keys) {
        const auto function = reinterpret_cast<Results (*)(std::uint64_t, Arguments...)>(address);
        const auto run = [&]() -> Results {
            const Unlocked unlocked(is_long);
            return function(*keys, arguments...);
        };
        const Results results = run();
        return wrap(results);
    }
    const auto function = reinterpret_cast<Results (*)(Arguments...)>(address);
    const auto run = [&]() -> Results {
        const BelowAutograd below;
        const Unlocked unlocked(is_long);
        return function(arguments...);
    };
    const Results results = run();
    return wrap(results);
}

template <class... Arguments>
PyObject* call_with_results(int results, void* address, const std::uint64_t* keys, bool is_long, Arguments... arguments) {
    using T = ReturnedTensor;
    switch (results) {
        case 1: return call_as<T>(address, keys, is_long, arguments...);
        case 2: return call_as<std::tuple<T, T>>(address, keys, is_long, arguments...);
        case 3: return call_as<std::tuple<T, T, T>>(address, keys, is_long, arguments...);
        case 4: return call_as<std::tuple<T, T, T, T>>(address, keys, is_long, arguments...);
        default: return nullptr;
    }
}

constexpr int kMostTensors = 2;
constexpr int kMostFlags = 3;

ReturnedTensor (*solve_triangular)(TensorReference A, TensorReference B, bool upper, bool left, bool unitriangular) = nullptr;

// linalg_solve_triangular as a kernel of torch's stable interface: the stack holds the arguments, which are taken, and then the result.
void run_solve_triangular(std::uint64_t* stack, std::uint64_t, std::uint64_t) {
    struct Operand {
        void* tensor;
        explicit Operand(std::uint64_t entry) : tensor(reinterpret_cast<void*>(entry)) {}
        ~Operand() { torch.delete_tensor(tensor); }
        TensorReference get() const { return static_cast<TensorReference>(tensor); }
    };
    const Operand A(stack[0]), B(stack[1]);
    const auto flag = [&](int position) {
        bool value;
        std::memcpy(&value, &stack[position], sizeof value);
        return value;
    };
    ReturnedTensor X = solve_triangular(A.get(), B.get(), flag(2), flag(3), flag(4));
    stack[0] = reinterpret_cast<std::uint64_t>(X.release());
}

}  // namespace

bool bind_torch_calls(nb::dict names) {
    torch = {};
    const auto get = [&](const char* name) { return nb::cast<std::uint64_t>(names[name]); };
    const auto set = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(get(name));
    };
    Functions found;
    set(found.wrap, "wrap");
    set(found.delete_tensor, "delete_tensor");
    set(found.begin_exclusion, "begin_exclusion");
    set(found.end_exclusion, "end_exclusion");
    set(found.translate, "translate");
    found.excluded = get("excluded");
    const nb::object tensor(names["tensor"]);
    const std::optional<std::size_t> offset = find_tensor_offset(tensor.ptr(), get("data_of_tensor"), get("size_of_tensor"));
    if (!offset) return false;
    found.tensor_offset = *offset;
    torch = found;
    return true;
}

bool register_solve_triangular(nb::dict names) {
    const auto get = [&](const char* name) { return nb::cast<std::uintptr_t>(names[name]); };
    using OpenLibrary = int (*)(const char* name, const char* key, const char* file, std::uint32_t line, void** library);
    using AddKernel = int (*)(void* library, const char* operator_name, void (*)(std::uint64_t*, std::uint64_t, std::uint64_t));
    const std::string key = nb::cast<std::string>(names["key"]);
    void* library = nullptr;  // kept: the kernel stays registered
    if (!torch.wrap) return false;
    solve_triangular = reinterpret_cast<decltype(solve_triangular)>(get("compute"));
    if (reinterpret_cast<OpenLibrary>(get("open_library"))("aten", key.c_str(), __FILE__, __LINE__, &library) != 0) return false;
    return reinterpret_cast<AddKernel>(get("add_kernel"))(library, "linalg_solve_triangular", run_solve_triangular) == 0;
}

TorchCall::TorchCall(nb::handle described) {
    if (described.is_none() || !torch.wrap) return;
    const nb::dict given = nb::cast<nb::dict>(described);
    tensors_ = nb::cast<int>(given["tensors"]);
    results_ = nb::cast<int>(given["results"]);
    for (const nb::handle entry : nb::cast<nb::list>(given["parameters"])) {
        const nb::tuple pair = nb::cast<nb::tuple>(entry);
        Parameter parameter{nb::object(pair[0]), false, true, false, {}};
        const nb::object value = nb::object(pair[1]);
        if (PyUnicode_Check(value.ptr())) {
            parameter.is_text = true;
            parameter.text = PyUnicode_AsUTF8AndSize(value.ptr(), nullptr);
        } else if (value.is_none()) {
            parameter.has_default = false;
        } else {
            parameter.truth = value.ptr() == Py_True;
        }
        form_ += parameter.is_text ? 's' : 'b';
        parameters_.push_back(std::move(parameter));
    }
    if (tensors_ > kMostTensors) return;
    address_ = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(given["address"]));
}

PyObject* TorchCall::call(const std::uint64_t* keys, PyObject* arguments, Py_ssize_t first, PyObject* options, bool is_long) const {
    const Py_ssize_t given = PyTuple_Size(arguments) - first;
    if (given < tensors_ || given > tensors_ + static_cast<Py_ssize_t>(parameters_.size())) return nullptr;
    std::array<TensorReference, kMostTensors> tensors{};
    for (int i = 0; i < tensors_; ++i) {
        auto* const object = reinterpret_cast<unsigned char*>(PyTuple_GetItem(arguments, first + i));
        tensors[i] = reinterpret_cast<TensorReference>(object + torch.tensor_offset);
    }
    std::array<bool, kMostFlags> flags{};
    std::string_view text;
    std::size_t flag = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& parameter = parameters_[i];
        const Py_ssize_t position = first + tensors_ + static_cast<Py_ssize_t>(i);
        PyObject* value = position < first + given ? PyTuple_GetItem(arguments, position) : nullptr;
        if (!value && options) value = PyDict_GetItemWithError(options, parameter.name.ptr());
        if (!value && !parameter.has_default) return nullptr;
        if (parameter.is_text) {
            text = parameter.text;
            if (value) {
                Py_ssize_t size = 0;
                const char* const characters = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &size) : nullptr;
                if (!characters) return PyErr_Clear(), nullptr;
                text = {characters, static_cast<std::size_t>(size)};
            }
        } else {
            if (value && value != Py_True && value != Py_False) return nullptr;
            if (flag == flags.size()) return nullptr;
            flags[flag++] = value ? value == Py_True : parameter.truth;
        }
    }
    const auto run = [&](auto... rest) { return call_with_results(results_, address_, keys, is_long, rest...); };
    const TensorReference A = tensors[0], B = tensors[1];
    const std::string_view form = form_;
    PyObject* result = nullptr;
    try {
        if (tensors_ == 1 && form.empty()) result = run(A);
        if (tensors_ == 1 && form == "b") result = run(A, flags[0]);
        if (tensors_ == 1 && form == "bb") result = run(A, flags[0], flags[1]);
        if (tensors_ == 1 && form == "s") result = run(A, text);
        if (tensors_ == 1 && form == "sb") result = run(A, text, flags[0]);
        if (tensors_ == 2 && form == "b") result = run(A, B, flags[0]);
        if (tensors_ == 2 && form == "bb") result = run(A, B, flags[0], flags[1]);
        if (tensors_ == 2 && form == "bbb") result = run(A, B, flags[0], flags[1], flags[2]);
    } catch (...) {
        // Not tried again: a hook that autograd has called may be what raised, for example that of a checkpoint.
        torch.translate(std::current_exception());
    }
    return result;
}

}  // namespace lapgrad::binding
