// What the Kalman filter (kalman.h) and its kernels per instruction set (lane_kalman.h) agree on.
#pragma once

#include "base/view.h"

namespace lapgrad {

// What a matrix or vector of the model is at (series, time): dense row-major, a stride of 0 where it is shared.
template <class T>
struct Varying {
    T* data;
    index_t series_stride, time_stride;

    [[gnu::always_inline]] T* at(index_t series, index_t time) const {
        return data + series * series_stride + time * time_stride;
    }
};

// h[t+1] = A[t] h[t] + c[t] + N(0, Q[t]), y[t] = B[t] h[t] + N(0, R[t]), h[0] ~ N(m, P).
// m and P have no time but 0. Of the model T is const, of its gradient not.
template <class T>
struct KalmanOperands {
    Varying<T> y, A, B, Q, R, m, P, c;
};

struct KalmanSizes {
    index_t series, times, states, observations;

    // Numbers of a predicted mean and the lower triangle of its covariance.
    [[gnu::always_inline]] index_t moments() const { return states * (states + 3) / 2; }
    // Numbers of the work space of one series besides stored moments: matrices, then vectors (see KalmanSteps).
    [[gnu::always_inline]] index_t work() const {
        const index_t n = states, p = observations;
        return 12 * n * n + 9 * n * p + 7 * p * p + 8 * n + 8 * p + 8;
    }
};

// code 0: all is well; +k: the innovation covariance at `step` is not positive definite, its leading minor k is not
// positive; -k: pivot k is NaN or infinite (k = observations + 1: the innovation itself is).
struct KalmanStatus {
    index_t step;
    std::int32_t code;
};

// The value of the series [begin, end), and where they fail. `work`: sizes.work() numbers per lane.
template <class T>
struct KalmanForward {
    KalmanSizes sizes;
    KalmanOperands<const T> model;
    T* s;
    KalmanStatus* status;
};

// Predicted moments are kept for `segment` steps at a time, and once per segment: `kept` has room for
// segment + ceil(times / segment) of them per lane. Gradients are added to what is there; null: not wanted.
template <class T>
struct KalmanReverse {
    KalmanSizes sizes;
    KalmanOperands<const T> model;
    const T* gs;
    index_t segment;
};

}  // namespace lapgrad
