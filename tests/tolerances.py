"""How close is close: in units of the machine epsilon, relative to the largest entry of what is expected."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Values and first derivatives: a handful of roundings on well conditioned matrices of order 5.
DEFAULT = 200.0

#: Second and higher derivatives add up many products, each with a condition number or two.
HIGHER_ORDER = 5000.0

#: blr_nll by LQ of 16 powers of numbers that do not lie around zero, with a condition number of about 1e8:
#: 3e6 units are seen in the gradient. (By Cholesky: 1e14, that is nothing is right.)
LQ_OF_POWERS = 1e8

#: Gradients of the bound of a sparse Gaussian process, 400 inducing inputs, K_uu with eigenvalues from
#: 100 down to its jitter of 0.01: the condition number is 1e4, and comes in twice.
INDUCING = 1e6

#: A sparse Gaussian process with all points inducing is exact but for the jitter, here 1e-10 beside a noise
#: of 0.05: 2e10 units, or 4e-6, are seen far from the data.
OF_JITTER = 1e11

#: Gradients of the bound with a noise of 1e-5 and a jitter of 1e-8: two orders of the same solves differ by
#: up to 3e9 units in the gradient of the kernel's variance, whose terms cancel. (With products by an inverse
#: in place of solves: 1e13.)
LITTLE_NOISE = 3e10

#: The same sums over rows, added up in another order by several processes, and a dozen steps of an optimiser
#: from there: 1e-10. Rounding errors grow from step to step; 1e-12 is seen.
OVER_RANKS = 1e-10 / torch.finfo(torch.float64).eps

#: Gradients of the bound for float32 data: all arithmetic is in float64, data and results are rounded.
INDUCING_FLOAT32 = 100.0

#: Gradients of a layer of float32: K_uf is rounded to float32, and K_uu has a condition number of 1e7. 950
#: units are seen; 5500 if K_uu were float32, too.
FLOAT32_LAYER = 3000.0

#: 24 steps of Adam with a learning rate in float32 and one in float64, on a model in float64: the rates
#: differ by 3e-8, or 1e8 units; 9e6 are seen.
RATE_IN_FLOAT32 = 1e9

#: The same steps, recorded and not: operators add up in another order, and Adam takes steps of full length
#: along gradients that are all but zero. 600 units are seen.
REPLAYED = 5000.0

#: The same on a GPU, where a launch may choose another algorithm when it is recorded.
ON_A_DEVICE = 1e6

#: Weights of importance sampling that are all the same but for a variance of functions of exp(-40), and
#: jitter of 1e-12: 1e5 units are seen.
OF_EXACT_WEIGHTS = 1e7

#: Data around 1000 in units of 10: a hundred times the rounding errors of data around 0.
OF_SHIFTED_DATA = 20000.0

#: Criteria, gradients and predictions of Gaussian processes on a grid of processes, against one process:
#: orders up to 43 times condition numbers up to 400, as for any inverse by another order of operations. 3e3
#: are seen.
ON_A_GRID = 2e4

#: Fits on a grid: they end when a move gains less than 1e-5 nats of about 10, which rounding can decide.
FITTED_ON_A_GRID = 1e10

#: Log likelihoods of thousands of steps, and differences of such sums: the terms are larger than the result.
SUMS_OVER_STEPS = 1e4

#: Flat directions of a prior are integrated out when each pivot of their information is at least 1e-4 of the
#: entry it was computed from: rounding errors of sums over a hundred steps grow by up to 1e4.
FLAT_DIRECTIONS = 1e6

#: Smoothed states by one solve with the covariance of all times: the variance of a trend grows from step to
#: step, its condition number is 1e4 and more.
ALL_TIMES_AT_ONCE = 1e6

#: A prior of variance 1e5 in place of none at all, beside observations of a variance of 0.1, shifts moments
#: and likelihoods by up to 2e9 units. A wider one shifts them less, but the reference, one solve with the
#: covariance of all times, then loses more digits than that: 8e10 units with 1e7. (Against 50 digits and a
#: prior of 1e20, the moments without a prior are right to 2 units.)
DIFFUSE_LIMIT = 1e10

#: statsmodels filters without Joseph's update and with other priors inside: 1e-9 is seen.
OTHER_IMPLEMENTATION = 1e8

#: The same products of float32 matrices by another routine, which adds up in another order: 2 units are seen,
#: in second derivatives. Rounded to 10 bits they err by 1000 units, to 7 bits by 30000.
FLOAT32_PRODUCTS = 50.0

#: Orthogonality and residual of Householder factorisations, in units of n eps; below 1 is seen.
HOUSEHOLDER = 5.0

#: Orthogonality and residual of the CUDA kernels of eigenvalues and singular values, in units of n eps,
#: relative to the largest entry of the matrix (whose norm is up to n times that); below 2 is seen.
SPECTRAL = 10.0

#: Kernels of distances: the squares of offsets of 100 and more are subtracted from each other, and a root
#: near 0 magnifies what is left of them.
ROUNDED_DISTANCES = 2e4

#: Integrals over a function with the 20 nodes of Gauss and Hermite against sums over a fine grid, whose own
#: errors (a step of 1/200 of a deviation, ends at 8 to 10 deviations) are 700 to 4000 units: of smooth ones.
SMOOTH_INTEGRAL = 2e4

#: The same for densities about as narrow as the distribution of the function is wide: the error of the rule
#: is the 40th derivative of the density. 5e8 units, or 1e-7, are seen.
NARROW_INTEGRAL = 5e9

#: Large matrices on CUDA: products with inverses of diagonal blocks, condition numbers of about 10, n = 300.
INVERTED_BLOCKS = 2000.0

#: What is promised of factorisations of large matrices on CUDA, in units of n eps; below 1 is seen.
PROMISED_ON_CUDA = 50.0


#: How much more than ``of_order``: gradients of LQ factors divide by L, and the worst of nine small matrices
#: that tests draw as a batch has a condition number of 12. A change of that one by eps moves its gradient by
#: 15 units at n = 4, where of_order has 14: 13 are seen on a CPU, 20 on CUDA.
GRADIENT_OF_LQ = 2.0

#: How much more than ``of_order``: the gradient of a projector onto a group of values whose distance from the
#: others is a third of the largest one. Rounding turns the space by three times the error of the vectors, and
#: the gradient, which divides by that distance, by three times as much again.
OF_A_GROUP = 9.0


#: How much more than ``of_order``: the gradient of A^-1 B is made of two solves with A, and so is that of a
#: least squares solution, whose reference solves with A^T A. The condition number comes in twice.
SOLVED_TWICE = 2.0


#: Times the errors that a formula in plain torch makes in float32, in units of eps (the largest of a row or
#: column): 4 for its errors in float64, which are others of the same size, and 4 for an operator that uses
#: the same formula.
PLAIN_FORMULA = 8.0


def of_order(n: int) -> float:
    """Values and first derivatives of matrices of order n with a condition number of about 10.

    Units of eps, relative to the largest entry of the result. A backward stable algorithm returns what is
    exact for operands that differ by about eps times their largest entry, and the condition number makes 10
    units of that. Sums of n products add n roundings of random sign, which grow with sqrt(n), once in the
    operator and once in its reference; 8 units are the most that is seen at n = 257. Operators that amplify
    rounding by more (eigenvectors with small gaps, for example) multiply this by ``OperatorCase.condition``.
    """
    return 10.0 + 2.0 * math.sqrt(n)


def of_joint_density(condition: float, dtype: torch.dtype) -> float:
    """A Kalman filter against the density of all observations at once, which is evaluated in float64.

    The filter only ever solves with the covariance of one step, and a stable filter forgets its errors: in
    float32 gradients of 76 random series are right to 94 units after 9 steps and to 121 after 3000, and
    ``DEFAULT`` is for that. The rest is the error of the reference. It solves with the covariance S of all
    observations by a Cholesky factorisation, after rounding S: (S + E) x = y with |E| of about eps |S|, so
    that x errs by up to cond(S) eps |x|. These are epsilons of float64, whatever the dtype of the filter.
    """
    return DEFAULT + condition * torch.finfo(torch.float64).eps / torch.finfo(dtype).eps


def of_sensitivity(length: int, passes: int = 1) -> float:
    """Errors of values and gradients in units of eps, relative to their size plus their measured sensitivity.

    A backward stable algorithm returns the exact result for operands that differ from the given ones by their
    backward error. The sensitivity is how far the result moves, root mean square, for a random change of the
    operands of relative size 1. What remains is the backward error in units of eps. It grows with the root of
    the longest sum, as in ``of_order``, because roundings are random, and with the root of the number of
    passes, which add up like them. The rest is for the largest of many entries, about 5 times the root mean
    square, and for a sensitivity measured in 3 directions only, which can be too small by a factor of 2.
    """
    return of_order(length) * math.sqrt(passes)


def assert_close(actual: Tensor, expected: Tensor, units: float = DEFAULT) -> None:
    """Equal in shape, dtype and device, and up to ``units`` epsilons of the largest entry of ``expected``."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.device == expected.device, f"device {actual.device}, expected {expected.device}"
    if not expected.numel():
        return
    if not expected.is_floating_point():
        assert torch.equal(actual, expected), f"{actual}, expected {expected}"
        return
    scale = max(1.0, float(expected.detach().abs().max()))
    difference = float((actual.detach() - expected.detach()).abs().max())
    error = difference / (scale * torch.finfo(expected.dtype).eps)
    assert error <= units, f"error of {error:.3g} eps, allowed are {units:.3g}"


def assert_all_close(actual: object, expected: object, units: float = DEFAULT) -> None:
    """``assert_close`` for nested tuples and lists of tensors."""
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor), f"{type(actual).__name__}, expected a tensor"
        assert_close(actual, expected, units)
        return
    assert isinstance(expected, tuple | list)
    assert isinstance(actual, tuple | list)
    for one, other in zip(actual, expected, strict=True):
        assert_all_close(one, other, units)
