// Calls kernels of torch by address, for the gates of bind_gate.cpp.
//
// torch's Python interface to a kernel reads arguments by the schema of the operator and takes more than a microsecond, longer if
// other code has been running in between. The kernels are C++ functions with public names whose parameters are tensors, truth values
// and strings. Python finds their addresses (lapgrad._torch.kernels); the name of a C++ function holds the types of its parameters,
// so that a function with other parameters is not found. Nothing of torch is included: a tensor is a pointer that is passed on.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lapgrad::binding {

namespace nb = nanobind;

// A function (keys, tensors..., [string,] truth values...) -> tensors, with or without keys.
class TorchCall {
public:
    TorchCall() = default;
    // From a dictionary of Python: address, tensors, text, flags, results; or None.
    explicit TorchCall(nb::handle described);

    bool is_bound() const { return address_ != nullptr; }

    // Returns what the function returns for the arguments of an operator from position `first` on; null with a Python error where
    // torch raised. Returns null without one where it does not serve the arguments: torch's Python interface then computes, or raises.
    // `keys`: the first argument of the function, null if it takes none. `is_long`: release Python's lock.
    PyObject* call(const std::uint64_t* keys, PyObject* arguments, Py_ssize_t first, PyObject* options, bool is_long) const;

private:
    struct Parameter {
        nb::object name;
        bool is_text, has_default, truth;
        std::string text;
    };

    void* address_ = nullptr;
    int tensors_ = 0, results_ = 0;
    std::string form_;  // of the parameters after the tensors: "s" for a string, "b" for a truth value
    std::vector<Parameter> parameters_;
};

// Stores the functions of torch that are needed to call others. `names` has addresses and a tensor; see lapgrad._torch.kernels.
// Returns false, and binds nothing, if tensors are not laid out as expected.
bool bind_torch_calls(nb::dict names);

// Registers torch's CPU kernel of linalg_solve_triangular under the key of a backend that is not in use, for good. torch's Autograd
// kernel, called with that key, goes on to it, and meets no override at the key of the CPU.
bool register_solve_triangular(nb::dict names);

}  // namespace lapgrad::binding
