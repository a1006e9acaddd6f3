// Parallel loops on the OpenMP pool that PyTorch has already started.
//
// A second pool would compete with the first for the same cores, so the entry points of libgomp are looked up in the copy that
// torch loaded and called through pointers. Without such a copy (another OpenMP runtime, no torch) every loop is serial.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <thread>

#include "base/contention.h"
#include "base/view.h"

namespace lapgrad::parallel {

struct Pool {
    void (*run_team)(void (*fn)(void*), void* data, unsigned threads, unsigned flags) = nullptr;  // GOMP_parallel
    int (*max_threads)() = nullptr;                                                               // omp_get_max_threads
    int (*in_parallel)() = nullptr;                                                               // omp_in_parallel
};

// Binds the OpenMP runtime that the library at `path` uses; the library must be loaded already. Returns the file of the
// runtime, or an empty string if there is none.
std::string bind_pool(const char* path);
const Pool& pool();

// Returns the number of threads of the pool that the calling thread may use: 1 inside a parallel region.
int pool_threads();
// Returns the number of threads that a loop started now gets: fewer than the pool has while other programs use the cores.
int threads();

namespace detail {
template <class F>
struct Loop {
    F& body;
    index_t count;
    const contention::nanoseconds begin = contention::read_clock();
    std::thread::id caller = std::this_thread::get_id();
    contention::nanoseconds work_ended = 0;  // of the calling thread
    std::atomic<index_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};

    static void enter(void* self) {
        Loop& loop = *static_cast<Loop*>(self);
        loop.work();
        if (std::this_thread::get_id() == loop.caller) loop.work_ended = contention::read_clock();
    }
    void report_join() const {
        const contention::nanoseconds now = contention::read_clock();
        contention::governor().report_join(now, work_ended - begin, now - work_ended);
    }
    void work() {
        for (index_t i; !failed && (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            try {
                body(i);
            } catch (...) {
                // An exception must not cross the OpenMP frame: the first one is rethrown by the caller.
                if (!failed.exchange(true)) error = std::current_exception();
            }
        }
    }
};
}  // namespace detail

// Calls body(i) for i in [0, count); threads take one index at a time. The team is the whole pool, whatever the count: libgomp ends
// surplus threads when a team shrinks, and has to start them again for the next full team. Only while other programs use the cores
// (contention.h) the team is smaller.
template <class F>
void for_each(index_t count, F body) {
    const int team = count > 1 ? threads() : 1;
    if (team <= 1) {
        for (index_t i = 0; i < count; ++i) body(i);
        return;
    }
    detail::Loop<F> loop{body, count};
    pool().run_team(&detail::Loop<F>::enter, &loop, team < pool_threads() ? unsigned(team) : 0, 0);
    loop.report_join();
    if (loop.error) std::rethrow_exception(loop.error);
}

// Calls body(begin, end) for ranges of [0, count) with at least `grain` items each; several ranges per thread balance the load.
template <class F>
void for_ranges(index_t count, index_t grain, F body) {
    const index_t team = threads();
    const index_t wanted = team > 1 ? 4 * team : 1;
    index_t size = (count + wanted - 1) / wanted;
    size = size > grain ? size : grain;
    if (size <= 0) return;
    for_each((count + size - 1) / size, [&](index_t r) {
        const index_t begin = r * size;
        body(begin, begin + size < count ? begin + size : count);
    });
}

}  // namespace lapgrad::parallel
