// The negative log likelihood of a linear Gaussian state space model, and its gradient: the Kalman filter and its adjoint
// over all steps of many series. small/lane_kalman.h has the mathematics of a step; this file distributes the series over lanes and
// threads and allocates the workspace.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "base/isa.h"
#include "base/kalman_types.h"
#include "base/parallel.h"
#include "base/plan.h"

namespace lapgrad::kalman {

// Whether series are computed one per lane: if at least half of the lanes are filled and the matrices stay in the cache. From some order on
// SingleSeries, where it can be used, is faster, because it skips the zeros of A.
template <class T>
bool uses_lanes(const KalmanSizes& sizes) {
    if (std::is_same_v<T, double> && sizes.observations == 1 && sizes.states >= plan::single_kalman_order) return false;
    return 2 * sizes.series >= isa::kernels<T>().lanes && sizes.series > 1 && sizes.states <= plan::lane_order<T>();
}

// Whether series are computed by SingleSeries: one observation at a time in double precision, and not one series per lane.
template <class T>
bool uses_single(const KalmanSizes& sizes) {
    return std::is_same_v<T, double> && sizes.observations == 1 && !uses_lanes<T>(sizes);
}

// The same for gradients: that of B is not wanted, and what is kept of all steps is not too much.
template <class T>
bool uses_single(const KalmanSizes& sizes, const KalmanOperands<T>& gradient) {
    const index_t bytes = sizes.single_work(sizes.times, gradient.A.data != nullptr) * static_cast<index_t>(sizeof(T));
    return uses_single<T>(sizes) && !gradient.B.data && bytes <= plan::kept_single_bytes;
}

// How the series are split among threads: `count` parts of `groups_each` groups of `group` series.
struct Parts {
    index_t group, count, groups_each;

    template <class T>
    static Parts choose(const KalmanSizes& sizes) {
        const index_t group = uses_lanes<T>(sizes) ? isa::kernels<T>().lanes : 1;
        const index_t groups = (sizes.series + group - 1) / group;
        const double n = static_cast<double>(sizes.states), p = static_cast<double>(sizes.observations);
        const double work = static_cast<double>(groups * sizes.times) * (n + p) * (n + p) * (n + p);
        const index_t useful = static_cast<index_t>(std::min(work / static_cast<double>(plan::parallel_operations), 1e6)) + 1;
        const index_t count = std::max<index_t>(1, std::min({groups, useful, plan::most_kalman_parts}));
        return {group, count, (groups + count - 1) / count};
    }
    index_t begin(index_t part) const { return part * groups_each * group; }
};

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Returns memory of that many bytes, aligned for vectors.
inline Memory allocate_aligned(index_t bytes) {
    Memory memory(std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64 + 64)));
    if (!memory) throw std::bad_alloc();
    return memory;
}

// Calls body(part, begin, end) for the parts of the series, each on one thread.
template <class T, class Body>
void for_parts(const KalmanSizes& sizes, Body body) {
    const Parts parts = Parts::choose<T>(sizes);
    parallel::for_each(parts.count, [&](index_t part) {
        const index_t begin = parts.begin(part), end = std::min(sizes.series, parts.begin(part + 1));
        if (begin < end) body(part, begin, end);
    });
}

// Computes the value of every series.
template <class T>
void run_filter(KalmanForward<T> task) {
    const bool wide = uses_lanes<T>(task.sizes);
    task.single = uses_single<T>(task.sizes);
    for_parts<T>(task.sizes, [&](index_t, index_t begin, index_t end) {
        const index_t lanes = wide ? isa::kernels<T>().lanes : 1;
        const index_t count = task.single ? task.sizes.single_work(1, false) : task.sizes.work() * lanes;
        const Memory memory = allocate_aligned(count * static_cast<index_t>(sizeof(T)));
        isa::kernels<T>().kalman_forward(task, wide, begin, end, memory.get());
    });
}

// A gradient that all series share. Every part of the series adds up its own copy of it. `size`: how many numbers it has.
template <class T>
struct SharedGradient {
    Varying<T> KalmanOperands<T>::*operand;
    index_t size;
};

template <class T>
std::vector<SharedGradient<T>> find_shared_gradients(const KalmanSizes& sizes, const KalmanOperands<T>& gradient) {
    const index_t n = sizes.states, p = sizes.observations;
    using Operands = KalmanOperands<T>;
    const SharedGradient<T> all[] = {{&Operands::A, n * n}, {&Operands::B, n * p}, {&Operands::Q, n * n}, {&Operands::R, p * p},
                             {&Operands::m, n * (1 + sizes.flat)}, {&Operands::P, n * n}, {&Operands::c, n}};
    std::vector<SharedGradient<T>> found;
    for (SharedGradient<T> one : all) {
        const Varying<T>& target = gradient.*one.operand;
        if (!target.data || target.series_stride || sizes.series <= 1) continue;
        if (target.time_stride) one.size *= sizes.times;
        found.push_back(one);
    }
    return found;
}

// Adds the gradients of all series to `gradient`, which the caller has filled with zeros.
template <class T>
void run_adjoint(KalmanReverse<T> task, const KalmanOperands<T>& gradient) {
    const KalmanSizes& sizes = task.sizes;
    const bool wide = uses_lanes<T>(sizes);
    const index_t lanes = wide ? isa::kernels<T>().lanes : 1, number = static_cast<index_t>(sizeof(T));
    const index_t moments = std::max<index_t>(1, sizes.moments());
    task.segment = std::max<index_t>(1, std::min(sizes.times, std::max(plan::fewest_kept_steps, plan::kept_moment_bytes / (moments * lanes * number))));
    const index_t kept = moments * (task.segment + (sizes.times + task.segment - 1) / task.segment);
    task.single = uses_single<T>(sizes, gradient);
    const index_t count =
        task.single ? sizes.single_work(sizes.times, gradient.A.data != nullptr) : (sizes.work() + kept) * lanes;

    const std::vector<SharedGradient<T>> shared = find_shared_gradients(sizes, gradient);
    const index_t parts = Parts::choose<T>(sizes).count;
    std::vector<std::vector<T>> sums(static_cast<std::size_t>(parts));
    for_parts<T>(sizes, [&](index_t part, index_t begin, index_t end) {
        KalmanOperands<T> own = gradient;
        std::vector<T>& sum = sums[static_cast<std::size_t>(part)];
        if (parts > 1) {
            index_t total = 0;
            for (const SharedGradient<T>& one : shared) total += one.size;
            sum.assign(static_cast<std::size_t>(total), T(0));
            T* next = sum.data();
            for (const SharedGradient<T>& one : shared) {
                (own.*one.operand).data = next;
                next += one.size;
            }
        }
        const Memory memory = allocate_aligned(count * number);
        isa::kernels<T>().kalman_reverse(task, own, wide, begin, end, memory.get());
    });
    if (parts == 1) return;
    for (const std::vector<T>& sum : sums) {
        if (sum.empty()) continue;
        const T* next = sum.data();
        for (const SharedGradient<T>& one : shared) {
            T* const target = (gradient.*one.operand).data;
            for (index_t e = 0; e < one.size; ++e) target[e] += next[e];
            next += one.size;
        }
    }
}

}  // namespace lapgrad::kalman
