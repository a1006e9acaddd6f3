// The steps of a polar decomposition by products on a GPU (src/lapgrad/_kernels/cuda/large/polar.py).
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "gpu/device.h"

namespace lapgrad::device {

// For each (a, b, c): target := (a I + b G + c G^2) X, G = X X', and then X and target change places. Returns whether the result lies
// in the memory that `target` had. All matrices are contiguous; G and `middle` have as many rows and columns as X has rows.
template <class T>
bool iterate_polar(const Queue<T>& queue, Batch<T> X, Batch<T> target, const Batch<T>& G, const Batch<T>& middle,
                   const std::vector<std::tuple<double, double, double>>& weights) {
    for (const auto& [a, b, c] : weights) {
        queue.gemm(G, X, X.t());
        queue.copy_numbers(middle.data, G.data, G.count * G.rows * G.cols);
        queue.gemm(middle, G, G, static_cast<T>(c), static_cast<T>(b));
        queue.copy_numbers(target.data, X.data, X.count * X.rows * X.cols);
        queue.gemm(target, middle, X, T(1), static_cast<T>(a));
        std::swap(X, target);
    }
    return weights.size() % 2 == 1;
}

}  // namespace lapgrad::device
