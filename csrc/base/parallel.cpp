#include "base/parallel.h"

#include <dlfcn.h>

namespace lapgrad::parallel {

namespace {
Pool bound;
}

const Pool& pool() { return bound; }

std::string bind_pool(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!library) return {};
    Pool found;
    found.run_team = reinterpret_cast<decltype(found.run_team)>(dlsym(library, "GOMP_parallel"));
    found.max_threads = reinterpret_cast<decltype(found.max_threads)>(dlsym(library, "omp_get_max_threads"));
    found.in_parallel = reinterpret_cast<decltype(found.in_parallel)>(dlsym(library, "omp_in_parallel"));
    if (!found.run_team || !found.max_threads || !found.in_parallel) return {};
    bound = found;
    Dl_info where{};
    dladdr(reinterpret_cast<void*>(found.run_team), &where);
    return where.dli_fname ? where.dli_fname : path;
}

int pool_threads() {
    if (!bound.run_team || bound.in_parallel()) return 1;
    return bound.max_threads();
}

int threads() { return contention::limit_threads(pool_threads()); }

}  // namespace lapgrad::parallel
