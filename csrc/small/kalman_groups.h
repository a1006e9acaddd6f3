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

template <class T>
void kalman_forward(const KalmanForward<T>& task, bool wide, index_t begin, index_t end, void* memory) {
    if (wide) return filter_groups<T, true>(task, begin, end, memory);
    filter_groups<T, false>(task, begin, end, memory);
}

template <class T>
void kalman_reverse(const KalmanReverse<T>& task, const KalmanOperands<T>& gradient, bool wide, index_t begin,
                    index_t end, void* memory) {
    if (wide) return reverse_groups<T, true>(task, gradient, begin, end, memory);
    reverse_groups<T, false>(task, gradient, begin, end, memory);
}
