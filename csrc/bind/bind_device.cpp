// Matrices on a GPU: algorithms that call cuBLAS and launch kernels without returning to Python in between.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <vector>

#include "bind/binding.h"
#include "gpu/device_gelqf.h"
#include "gpu/device_polar.h"
#include "gpu/device_potrf.h"
#include "gpu/device_potri.h"
#include "gpu/device_spectral.h"

namespace lapgrad::binding {
namespace {

using device::Arena;
using device::InvertedBlocks;

// A batch of matrices as Python passes it: address, items, stride between items, rows, columns, strides of rows and columns.
using Blocks = std::tuple<std::uintptr_t, index_t, index_t, index_t, index_t, index_t, index_t>;

template <class T>
Batch<T> as(const Blocks& blocks) {
    const auto& [address, count, step, rows, cols, row, col] = blocks;
    return {reinterpret_cast<T*>(address), count, step, rows, cols, row, col};
}

// The kernels of one device for one type, and the stream they are launched on.
class Device {
  public:
    Device(int item_size, const std::vector<std::uintptr_t>& kernels) : item_size_(item_size) {
        for (const std::uintptr_t kernel : kernels) kernels_.push_back(reinterpret_cast<void*>(kernel));
    }

    template <class F>
    void run(std::uintptr_t handle, std::uintptr_t stream, F body) const {
        nb::gil_scoped_release unlocked;
        with_type(item_size_, [&](auto type) {
            using T = decltype(type);
            body(device::Queue<T>(reinterpret_cast<void*>(handle), reinterpret_cast<void*>(stream), kernels_), T{});
        });
    }

    // Returns how many elements of workspace body(queue, arena, type) needs, by calling it without a queue.
    template <class F>
    index_t measure_workspace(F body) const {
        index_t most = 0;
        with_type(item_size_, [&](auto type) {
            using T = decltype(type);
            Arena<T> arena(nullptr);
            body(static_cast<const device::Queue<T>*>(nullptr), arena, type);
            most = arena.peak();
        });
        return most;
    }

    // With work == 0 only returns how many elements of workspace are needed; else runs body in that memory and returns 0.
    template <class F>
    index_t with_work(std::uintptr_t handle, std::uintptr_t stream, std::uintptr_t work, F body) const {
        if (work == 0) return measure_workspace(body);
        run(handle, stream, [&](const auto& queue, auto type) {
            Arena<decltype(type)> arena(reinterpret_cast<decltype(type)*>(work));
            body(&queue, arena, type);
        });
        return 0;
    }

  private:
    int item_size_;
    std::vector<void*> kernels_;
};

void reshape(const Device& device, std::uintptr_t handle, std::uintptr_t stream, int kind, const Blocks& A) {
    device.run(handle, stream, [&](const auto& queue, auto type) {
        queue.reshape(static_cast<device::Kernel>(kind), as<decltype(type)>(A));
    });
}

void gemm(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& C, const Blocks& A,
          const Blocks& B, double alpha, double beta) {
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        queue.gemm(as<T>(C), as<T>(A), as<T>(B), static_cast<T>(alpha), static_cast<T>(beta));
    });
}

void trmm(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& C, const Blocks& L,
          const Blocks& B, bool lower, bool right) {
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        queue.trmm(as<T>(C), as<T>(L), as<T>(B), lower, right);
    });
}

void trsm(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& B, const Blocks& L,
          bool lower, bool right) {
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        queue.trsm(as<T>(B), as<T>(L), lower, right);
    });
}

void syrk(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& C, const Blocks& A,
          bool lower, double alpha, double beta) {
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        queue.syrk(as<T>(C), as<T>(A), lower, static_cast<T>(alpha), static_cast<T>(beta));
    });
}

void triangular_product(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& C,
                        const Blocks& A, const Blocks& B, bool lower, double alpha, double beta, index_t cut) {
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        device::triangular_product(queue, as<T>(C), as<T>(A), as<T>(B), lower, static_cast<T>(alpha),
                                   static_cast<T>(beta), cut);
    });
}

index_t potrf_vjp(const Device& device, std::uintptr_t handle, std::uintptr_t stream, std::uintptr_t work,
                  const Blocks& L, const Blocks& G, index_t size, index_t cut) {
    return device.with_work(handle, stream, work, [&](const auto* queue, auto& arena, auto type) {
        using T = decltype(type);
        const InvertedBlocks<T> inverted = device::invert_blocks(queue, arena, as<T>(L), size);
        device::sweep(queue, arena, as<T>(L), as<T>(G), inverted, cut);
    });
}

// X := alpha times B after one or more solves with the same inverted blocks. Each letter of `steps` is a solve with M ("l", "r") or
// M' ("L", "R") from the left or the right. The lower triangle of M is read, with `unit` without its diagonal of ones. B may be X. `refine`
// applies to solves from the left.
index_t solve(const Device& device, std::uintptr_t handle, std::uintptr_t stream, std::uintptr_t work, const Blocks& X,
              const Blocks& B, const Blocks& M, const std::string& steps, double alpha, bool refine, bool unit, index_t size) {
    return device.with_work(handle, stream, work, [&](const auto* queue, auto& arena, auto type) {
        using T = decltype(type);
        const Batch<T> factor = as<T>(M), target = as<T>(X);
        const InvertedBlocks<T> inverted = device::invert_blocks(queue, arena, factor, size, unit);
        Batch<T> right = as<T>(B);
        T scale = static_cast<T>(alpha);
        for (const char step : steps) {
            const bool lower = step == 'l' || step == 'r';
            const Batch<T> side = lower ? factor : factor.t();
            const InvertedBlocks<T> inverses = lower ? inverted : inverted.t();
            if (step == 'l' || step == 'L')
                device::solve_left(queue, arena, target, right, side, inverses, lower, scale, refine);
            else
                device::solve_right(queue, arena, target, right, side, inverses, lower, scale);
            right = target;
            scale = 1;
        }
    });
}

// (handle, columns, shared memory) of the kernels that factor panels, in the order of their columns.
using PanelKernels = std::vector<std::tuple<std::uintptr_t, index_t, std::size_t>>;

// The operands of device::Panels: rows, factors, right, product, signs, height of a panel.
using PanelOperands = std::tuple<Blocks, Blocks, Blocks, Blocks, std::uintptr_t, index_t>;

template <class T>
device::Panels<T> as_panels(const PanelOperands& operands) {
    const auto& [rows, factors, right, product, signs, height] = operands;
    return {as<T>(rows), as<T>(factors), as<T>(right), as<T>(product), reinterpret_cast<T*>(signs), height};
}

void gelqf_factor(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const PanelOperands& operands,
                  const Blocks& L, const PanelKernels& kernels, unsigned threads) {
    std::vector<device::PanelKernel> known;
    for (const auto& [kernel, columns, shared] : kernels) known.push_back({reinterpret_cast<void*>(kernel), columns, shared});
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        as_panels<T>(operands).factor(queue, as<T>(L), known, threads);
    });
}

void gelqf_form(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const PanelOperands& operands,
                const Blocks& Q) {
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        as_panels<T>(operands).form(queue, as<T>(Q));
    });
}

index_t gelqf_vjp(const Device& device, std::uintptr_t handle, std::uintptr_t stream, std::uintptr_t work,
                  const Blocks& gA, const Blocks& Q, const Blocks& L, const Blocks& gQ, const Blocks& gL, index_t block,
                  index_t cut) {
    return device.with_work(handle, stream, work, [&](const auto* queue, auto& arena, auto type) {
        using T = decltype(type);
        device::gelqf_vjp(queue, arena, as<T>(gA), as<T>(Q), as<T>(L), as<T>(gQ), as<T>(gL), block, cut);
    });
}

index_t potri(const Device& device, std::uintptr_t handle, std::uintptr_t stream, std::uintptr_t work, const Blocks& B,
              index_t size) {
    return device.with_work(handle, stream, work, [&](const auto* queue, auto& arena, auto type) {
        const auto matrix = as<decltype(type)>(B);
        device::invert_from_factor(queue, arena, matrix, device::invert_blocks(queue, arena, matrix, size));
    });
}

bool iterate_polar(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& X, const Blocks& target,
                   const Blocks& G, const Blocks& middle, const std::vector<std::tuple<double, double, double>>& weights) {
    bool moved = false;
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        moved = device::iterate_polar(queue, as<T>(X), as<T>(target), as<T>(G), as<T>(middle), weights);
    });
    return moved;
}

// Launches one kernel and returns the driver's status. Python ints become pointers and 64-bit integers, floats become doubles.
int launch(std::uintptr_t kernel, nb::tuple grid, unsigned threads, unsigned shared, std::uintptr_t stream,
           nb::tuple arguments) {
    constexpr std::size_t kMost = 128;
    union {
        long long integer;
        double real;
    } values[kMost];
    void* addresses[kMost];
    if (arguments.size() > kMost || grid.size() > 3) throw std::length_error("a launch has too many arguments or sizes");
    unsigned sizes[3] = {1, 1, 1};
    for (std::size_t i = 0; i < grid.size(); ++i) sizes[i] = nb::cast<unsigned>(grid[i]);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        PyObject* const argument = PyTuple_GetItem(arguments.ptr(), static_cast<Py_ssize_t>(i));
        if (PyFloat_Check(argument))
            values[i].real = PyFloat_AsDouble(argument);
        else
            values[i].integer = PyLong_AsLongLong(argument);
        addresses[i] = &values[i];
    }
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    nb::gil_scoped_release unlocked;  // the driver waits when its queue is full
    return device::launch_kernel(reinterpret_cast<void*>(kernel), sizes[0], sizes[1], sizes[2], threads, 1, 1, shared,
                                 reinterpret_cast<void*>(stream), addresses, nullptr);
}

// Copies one integer from a device to the host without blocking the stream. `place` is an address in pinned memory that `owner`
// keeps alive. Its event is destroyed by the driver that made it, whichever is bound by then.
class Mailbox {
  public:
    Mailbox(nb::object owner, std::uintptr_t place)
        : owner_(owner), place_(reinterpret_cast<volatile long long*>(place)) {
        constexpr unsigned kWithoutTime = 2;  // CU_EVENT_DISABLE_TIMING
        device::check_status(device::create_event(&event_, kWithoutTime));
    }
    Mailbox(const Mailbox&) = delete;

    // Waits until the number has arrived, because the memory must not be reused before. Errors of a driver that has shut down are
    // ignored.
    ~Mailbox() {
        if (sent_) wait_(event_);
        destroy_(event_);
    }

    // Starts the copy from the device address `cell`, after what is queued on `stream`.
    void send(std::uintptr_t cell, std::uintptr_t stream) {
        void* const queue = reinterpret_cast<void*>(stream);
        device::check_status(device::copy_to_host(const_cast<long long*>(place_), cell, sizeof(long long), queue));
        device::check_status(device::record_event(event_, queue));
        sent_ = true;
    }

    // Waits for the number and returns it.
    long long receive() {
        nb::gil_scoped_release unlocked;
        device::check_status(wait_(event_));
        sent_ = false;
        return *place_;
    }

  private:
    nb::object owner_;
    volatile long long* place_;
    device::of_event_fn wait_ = device::wait_for_event, destroy_ = device::destroy_event;
    void* event_ = nullptr;
    bool sent_ = false;
};

// The values, their cotangents or 0, the policy, its tolerance, the cell of the status or 0, and how many rows a warp measures.
using Rule = std::tuple<std::uintptr_t, std::uintptr_t, index_t, double, std::uintptr_t, index_t>;

template <class T>
device::SpectralRule<T> as_rule(const Rule& rule) {
    const auto& [values, slope, policy, tol, cell, share] = rule;
    return {reinterpret_cast<const T*>(values), reinterpret_cast<const T*>(slope), policy, tol,
            reinterpret_cast<long long*>(cell), share};
}

// Returns a function that sends the status cell of a rule by `mailbox`; it does nothing if that is 0.
auto make_sender(nb::handle mailbox, const Rule& rule, std::uintptr_t stream) {
    Mailbox* const target = nb::isinstance<Mailbox>(mailbox) ? nb::cast<Mailbox*>(mailbox) : nullptr;
    return [target, cell = std::get<4>(rule), stream] {
        if (target != nullptr) target->send(cell, stream);
    };
}

// Memory: inner, sizes.
void syevd_vjp(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& gA, const Blocks& U,
               const Blocks& gU, const Rule& rule, nb::handle mailbox, std::uintptr_t inner, std::uintptr_t sizes, index_t triangle,
               index_t cut) {
    const auto send = make_sender(mailbox, rule, stream);
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        device::syevd_vjp(queue, as<T>(gA), as<T>(U), as<T>(gU), as_rule<T>(rule), reinterpret_cast<T*>(inner),
                          reinterpret_cast<T*>(sizes), triangle, cut, send);
    });
}

// Memory: middle, inner, moved, sizes.
void gesvd_vjp(const Device& device, std::uintptr_t handle, std::uintptr_t stream, const Blocks& gA, const Blocks& U,
               const Blocks& V, const Blocks& gU, const Blocks& gV, const Rule& rule, nb::handle mailbox, std::uintptr_t middle,
               std::uintptr_t inner, std::uintptr_t moved, std::uintptr_t sizes) {
    const auto send = make_sender(mailbox, rule, stream);
    device.run(handle, stream, [&](const auto& queue, auto type) {
        using T = decltype(type);
        device::gesvd_vjp(queue, as<T>(gA), as<T>(U), as<T>(V), as<T>(gU), as<T>(gV), as_rule<T>(rule),
                          reinterpret_cast<T*>(middle), reinterpret_cast<T*>(inner), reinterpret_cast<T*>(moved),
                          reinterpret_cast<T*>(sizes), send);
    });
}

}  // namespace

void bind_device(nb::module_& m) {
    nb::class_<Device>(m, "Device").def(nb::init<int, const std::vector<std::uintptr_t>&>());
    m.def("device_bind", [](const std::string& name, std::uintptr_t address) {
        const std::optional<void*> previous = device::bind(name, reinterpret_cast<void*>(address));
        if (!previous) throw nb::key_error(name.c_str());
        return reinterpret_cast<std::uintptr_t>(*previous);
    });
    nb::class_<Mailbox>(m, "Mailbox")
        .def(nb::init<nb::object, std::uintptr_t>())
        .def("send", &Mailbox::send)
        .def("receive", &Mailbox::receive);
    m.def("device_launch", &launch);
    m.def("device_reshape", &reshape);
    m.def("device_gemm", &gemm);
    m.def("device_trmm", &trmm);
    m.def("device_trsm", &trsm);
    m.def("device_syrk", &syrk);
    m.def("device_triangular_product", &triangular_product);
    m.def("device_potrf_vjp", &potrf_vjp);
    m.def("device_solve", &solve);
    m.def("device_gelqf_factor", &gelqf_factor);
    m.def("device_gelqf_form", &gelqf_form);
    m.def("device_gelqf_vjp", &gelqf_vjp);
    m.def("device_potri", &potri);
    m.def("device_iterate_polar", &iterate_polar);
    m.def("device_syevd_vjp", &syevd_vjp);
    m.def("device_gesvd_vjp", &gesvd_vjp);
}

}  // namespace lapgrad::binding
