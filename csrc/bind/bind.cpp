// The Python module: binding of BLAS and OpenMP, the plan, the constants, and the operators (bind_*.cpp).
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "base/contention.h"
#include "base/blas.h"
#include "base/isa.h"
#include "base/lapack.h"
#include "base/parallel.h"
#include "base/plan.h"
#include "bind/binding.h"
#include "gpu/device.h"

namespace lapgrad::binding {
namespace {

// Stores the address of a BLAS or LAPACK routine by its Fortran name, such as dgemm.
void bind_routine(const std::string& name, std::uintptr_t address) {
    const std::string stem = name.substr(1);
    void* const routine = reinterpret_cast<void*>(address);
    const bool known = name[0] == 'd' ? blas::bind<double>(stem, routine) || lapack::bind<double>(stem, routine)
                                      : blas::bind<float>(stem, routine) || lapack::bind<float>(stem, routine);
    if (!known) throw nb::key_error(name.c_str());
}

void bind_threads(std::uintptr_t set_threads_local, bool serial_in_parallel_region) {
    blas::set_threads_local = reinterpret_cast<blas::set_threads_fn>(set_threads_local);
    blas::serial_in_parallel_region = serial_in_parallel_region;
    plan::current = plan::Plan{};
    const bool is_mkl = set_threads_local != 0;
    if (!is_mkl) return;
    if (isa::is_intel_cpu())
        plan::use_vendor_routines(plan::current);
    else if (isa::is_supported("avx512"))
        plan::use_own_products(plan::current);
}

// Returns the numbers that Python and CUDA code have to agree on with the core.
nb::dict list_constants() {
    nb::dict constants;
    const auto add = [&](const char* name, auto value) { constants[name] = static_cast<index_t>(value); };
    add("leaf", isa::leaf);
    add("lane_limit", isa::lane_limit);
    add("policy_mask", Degeneracy::mask);
    add("policy_lorentz", Degeneracy::lorentz);
    add("policy_clamp", Degeneracy::clamp);
    add("policy_nan", Degeneracy::nan);
    add("svd_not_finite", svd_not_finite);
    add("svd_not_converged", svd_not_converged);
    constants["svd_same_size"] = svd_same_size;
    constants["close_gap_f32"] = close_gap<float>;
    constants["close_gap_f64"] = close_gap<double>;
    constants["rounding_units_f64"] = rounding_units<double>(16.0);
    add("device_leaf", device::kLeaf);
    add("device_tile", device::kTile);
    add("device_largest_merge", device::kLargestMerge);
    add("device_strip", device::kStrip);
    add("device_depth", device::kDepth);
    add("device_threads", device::kThreads);
    add("device_mirror_up", device::kMirrorUp);
    add("device_mirror_down", device::kMirrorDown);
    add("device_move_down", device::kMoveDown);
    add("device_clear_upper", device::kClearUpper);
    add("device_clear_lower", device::kClearLower);
    add("device_copy_rows", device::kCopyRows);
    add("device_copy_transposed", device::kCopyTransposed);
    add("device_invert_leaves", device::kInvertLeaves);
    add("device_merge_inverses", device::kMergeInverses);
    return constants;
}

}  // namespace

// Binds the response of the core to other programs on the same cores. The class is for tests, which pass times of their own.
void bind_contention(nb::module_& m) {
    using contention::Governor;
    m.def("configure_contention", &contention::configure,
          "Whether threads are given up while other programs use the cores, and the most threads ever used (0: no limit).");
    m.def("limited_threads", &parallel::threads, "The threads that a loop started now gets; `threads` is what the pool has.");
    m.def("retreat_now", [] { contention::governor().report_preemptions(contention::read_clock(), 1000, 0); },
          "Tell the governor of the process that the cores are taken.");
    nb::class_<Governor>(m, "Governor")
        .def(nb::init<>())
        .def("limit", &Governor::limit)
        .def("report_join", &Governor::report_join)
        .def("report_preemptions", &Governor::report_preemptions);
}

}  // namespace lapgrad::binding

namespace nb = nanobind;

NB_MODULE(_core, m) {
    using namespace lapgrad;
    binding::bind_lu(m);
    binding::bind_syevd(m);
    binding::bind_triangular(m);
    binding::bind_potri(m);
    binding::bind_gesvd(m);
    binding::bind_gelqf(m);
    binding::bind_device(m);
    binding::bind_kalman(m);
    binding::bind_gate(m);
    binding::bind_contention(m);
    binding::bind_shortcuts(m);
    binding::bind_gradients(m);
    binding::bind_statistics(m);
    binding::bind_device_shortcuts(m);
    binding::bind_translation(m);
    m.def("bind_routine", &binding::bind_routine);
    m.def("bind_threads", &binding::bind_threads);
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
    m.def("constants", &binding::list_constants);
    m.def("threads", &parallel::pool_threads);
    m.def("select_isa", [](const std::string& name) { return isa::select(name.c_str()); });
    m.def("isa", [] { return std::string(isa::selected_name()); });
    m.def("isa_supported", [](const std::string& name) { return isa::is_supported(name.c_str()); });
}
