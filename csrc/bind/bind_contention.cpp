// Binds the response of the core to other programs on the same cores. The class is for tests, which pass times of their own.
#include "base/contention.h"
#include "base/parallel.h"
#include "bind/binding.h"

namespace lapgrad::binding {

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
