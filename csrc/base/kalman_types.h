// Types that the Kalman filter (ops/kalman.h) shares with its kernels per instruction set (small/lane_kalman.h).
#pragma once

#include "base/view.h"

namespace lapgrad {

// A matrix or vector of the model for every series and time: dense and row-major, with a stride of 0 where it is shared.
template <class T>
struct Varying {
    T* data;
    index_t series_stride, time_stride;

    [[gnu::always_inline]] T* at(index_t series, index_t time) const {
        return data + series * series_stride + time * time_stride;
    }
};

// h[t+1] = A[t] h[t] + c[t] + N(0, Q[t]), y[t] = B[t] h[t] + N(0, R[t]), h[0] ~ N(m, P).
// m and P exist only at time 0. m is n x (1 + d): the mean, then d directions in which the prior is flat. T is const for a model, and not for its gradient.
template <class T>
struct KalmanOperands {
    Varying<T> y, A, B, Q, R, m, P, c;
};

struct KalmanSizes {
    index_t series, times, states, observations, flat;

    // How many numbers the columns of a predicted mean and the lower triangle of its covariance are.
    [[gnu::always_inline]] index_t moments() const { return states * (1 + flat) + states * (states + 1) / 2; }
    // How many numbers one series needs as workspace besides stored moments: matrices, then vectors (see KalmanSteps).
    [[gnu::always_inline]] index_t work() const {
        const index_t n = states, p = observations, q = 1 + flat;
        return 13 * n * n + 10 * n * p + 7 * p * p + (5 * n + 5 * p + 3 * q) * q + 4 * n + 4 * p + 8;
    }
    // The same for SingleSeries, with the kept results of `kept_steps` steps, with or without filtered moments.
    [[gnu::always_inline]] index_t single_work(index_t kept_steps, bool keeps_moments) const {
        const index_t n = states, q = 1 + flat, row = (n + 7) / 8 * 8;
        const index_t record = row + q + 16 + (keeps_moments ? (q + n) * row + 8 : 0);
        return 8 * row * row + 6 * q * row + 4 * row + 4 * q * q + 4 * q + 4 * n * n + 4 * n + 8 * 32 + kept_steps * record;
    }
};

// The first failure of a series. code 0: none; +k: the innovation covariance at `step` is not positive definite, its leading minor k is not
// positive; -k: pivot k is NaN or infinite (k = observations + 1: the innovation itself is); observations + 2: the data do not
// determine the flat direction `step`.
struct KalmanStatus {
    index_t step;
    std::int32_t code;
};

// The operands of the filter: s receives the value of each series, and status its first failure.
template <class T>
struct KalmanForward {
    KalmanSizes sizes;
    KalmanOperands<const T> model;
    T* s;
    KalmanStatus* status;
    bool single;  // by SingleSeries
};

// The operands of the adjoint. Predicted moments are stored for `segment` steps at a time, and once per segment, so the buffer
// `kept` holds segment + ceil(times / segment) of them per lane. Gradients are added to their targets; null: not wanted.
template <class T>
struct KalmanReverse {
    KalmanSizes sizes;
    KalmanOperands<const T> model;
    const T* gs;
    T* s;  // null: values are not wanted
    KalmanStatus* status;
    index_t segment;
    bool single;  // by SingleSeries, without segments
};

}  // namespace lapgrad
