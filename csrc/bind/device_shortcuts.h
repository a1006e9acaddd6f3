// Shortcuts of operators for ordinary tensors on a GPU, in place of the operator's public Python function.
//
// A launch takes the host a few microseconds, and an operator's function in Python several times as long. A shortcut checks here
// what that function would check: ordinary tensors on one device, of one dtype, with shapes that fit, outside of transforms and modes.
// Then it repeats a recorded launch, or calls a function of lapgrad (lapgrad._kernels.cuda.shortcuts) that allocates, launches and
// returns, or a function of torch. For any other call it returns None, and Python takes over.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "bind/binding.h"
#include "bind/tensor.h"

namespace lapgrad::binding {

// A tensor on the device: the number of leading dimensions, and the sizes of the others.
struct DeviceOperand {
    dlpack::Tensor header;
    int leading;
    index_t rows, cols;  // the last two sizes; 1 where there are fewer
};

inline bool is_true(nb::handle flag) {
    return flag.ptr() == Py_True || (flag.ptr() != Py_False && PyObject_IsTrue(flag.ptr()) == 1);
}

// Whether the shapes of operands fit each other; `flags` are the arguments after them.
using Fits = bool (*)(const DeviceOperand* operands, PyObject* const* flags);

// An argument of a kernel: a number, or an address in the memory of an operand or of the result.
struct LaunchArgument {
    enum Source { integer, real, operand, result } source;
    int position;     // of the operand
    long long whole;  // the integer, or the distance in bytes from the address of a tensor
    double number;
};

// One launch that computes the result of a call. All but the addresses depends on sizes, strides and flags alone.
struct Recipe {
    void* kernel = nullptr;  // null: such calls are computed otherwise
    unsigned grid[3] = {1, 1, 1}, threads = 0, shared = 0;
    std::vector<LaunchArgument> arguments;
    PyObject* shape = nullptr;  // of the result, a tuple
};

struct DeviceShortcut {
    const char* name;
    const char* inner;  // per operand, as a digit: how many dimensions follow the leading ones
    int flags;          // how many arguments follow the operands
    Fits fits;
    bool is_known = false;
    PyObject *plain = nullptr, *recorded = nullptr;  // null: this kind of call is left to Python
    bool multiplies = false;                         // has products that torch may be set to round
    PyObject* planned = nullptr;                     // null, or launches once and returns the launch, which is then repeated from here
    PyObject* direct = nullptr;                      // null, or torch's functions for one matrix and for a batch, without flags
    std::unordered_map<std::string, Recipe> recipes = {};

    bool serves(nb::handle first) const;  // whether an operand is on the device
    nb::object run(PyObject* const* arguments);
    void forget_recipes();

  private:
    nb::object follow_recipe(PyObject* const* arguments, const DeviceOperand* operands, int count);
    nb::object find_recipe(PyObject* const* arguments, const DeviceOperand* operands, int count, const std::string& key);
};

namespace device_shortcuts {
extern DeviceShortcut gemm, gemm2, gemmt, syrk, syrk_vjp, trmm, trsm, trsm_again, makediag, extractdiag, maketrian, extracttrian, sumlogdiag, sumlogdiag_vjp,
    copyltu, potrf, potrf_ex, potrf_vjp, potri, potri_vjp, inverse, inverse_vjp, gesv;
}

// A shortcut for CPU tensors, with one for tensors on a device beside it.
template <auto Cpu, DeviceShortcut& shortcut>
struct OnEitherDevice;

template <class... Handles, nb::object (*Cpu)(Handles...), DeviceShortcut& shortcut>
struct OnEitherDevice<Cpu, shortcut> {
    static nb::object call(Handles... arguments) {
        PyObject* const all[] = {arguments.ptr()...};
        return shortcut.serves(all[0]) ? shortcut.run(all) : Cpu(arguments...);
    }
};

}  // namespace lapgrad::binding
