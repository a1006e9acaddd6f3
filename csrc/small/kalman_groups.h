// The Kalman filter and its adjoint over many series, in groups of one per lane or one after the other. Included only by
// isa_kernels.cpp.

// Calls body(first, last) for groups of series that are computed together.
template <class T, bool Wide, class Body>
void for_series_groups(index_t begin, index_t end, Body body) {
    constexpr index_t W = Numbers<T, Wide>::width;
    for (index_t b = begin; b < end; b += W) body(b, end - b < W ? end : b + W);
}

template <class T, bool Wide>
void filter_groups(const KalmanForward<T>& task, index_t begin, index_t end, void* memory) {
    for_series_groups<T, Wide>(begin, end, [&](index_t first, index_t last) {
        KalmanSteps<T, Wide>(task.sizes, task.model, memory, first, last).forward(task.s, task.status);
    });
}

template <class T, bool Wide>
void reverse_groups(const KalmanReverse<T>& task, const KalmanOperands<T>& gradient, index_t begin, index_t end,
                       void* memory) {
    using V = typename Numbers<T, Wide>::V;
    for_series_groups<T, Wide>(begin, end, [&](index_t first, index_t last) {
        KalmanSteps<T, Wide>(task.sizes, task.model, memory, first, last)
            .reverse(gradient, task.gs, task.s, task.status, task.segment, reinterpret_cast<V*>(memory) + task.sizes.work());
    });
}

// Calls body(series) with a SingleSeries for each series: vectors of 4 numbers for few states, else the longest ones.
template <class Body>
void for_single_series(const KalmanSizes& sizes, const KalmanOperands<const double>& model, index_t begin, index_t end,
                       void* memory, Body body) {
    constexpr int half = vector_bytes < 32 ? vector_bytes : 32;
    double* const work = reinterpret_cast<double*>(memory);
    for (index_t b = begin; b < end; ++b) {
        if (sizes.states * static_cast<index_t>(sizeof(double)) <= half)
            body(SingleSeries<half>(sizes, model, work, b), b);
        else
            body(SingleSeries<vector_bytes>(sizes, model, work, b), b);
    }
}

template <class T>
void kalman_forward(const KalmanForward<T>& task, bool wide, index_t begin, index_t end, void* memory) {
    if constexpr (std::is_same_v<T, double>)
        if (task.single)
            return for_single_series(task.sizes, task.model, begin, end, memory, [&](auto&& series, index_t) {
                series.run_forward(task.s, task.status, false, false);
            });
    if (wide) return filter_groups<T, true>(task, begin, end, memory);
    filter_groups<T, false>(task, begin, end, memory);
}

template <class T>
void kalman_reverse(const KalmanReverse<T>& task, const KalmanOperands<T>& gradient, bool wide, index_t begin,
                    index_t end, void* memory) {
    if constexpr (std::is_same_v<T, double>)
        if (task.single)
            return for_single_series(task.sizes, task.model, begin, end, memory, [&](auto&& series, index_t b) {
                if (series.run_forward(task.s, task.status, true, gradient.A.data != nullptr))
                    series.run_backward(gradient, task.gs[b]);
            });
    if (wide) return reverse_groups<T, true>(task, gradient, begin, end, memory);
    reverse_groups<T, false>(task, gradient, begin, end, memory);
}
