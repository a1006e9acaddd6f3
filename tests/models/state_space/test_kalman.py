"""kalman_nll, kalman_filter, kalman_smoother: against the joint normal distribution of everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from device import DEVICE
from joint_gaussian import JointGaussian
from tolerances import HIGHER_ORDER, SUMS_OVER_STEPS, assert_close, of_joint_density
from torch import Tensor
from torch.autograd import gradcheck

import lapgrad
from lapgrad._kernels import cpu as _cpu
from lapgrad.fused import kalman_nll
from lapgrad.models import kalman_filter, kalman_smoother

Operands = tuple[Tensor, ...]


def make_problem(
    times: int = 6,
    n: int = 3,
    p: int = 2,
    *,
    varying: bool = False,
    seed: int = 0,
    batch: tuple[int, ...] = (),
) -> Operands:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE)

    def spd(*shape: int) -> Tensor:
        X = random(*shape)
        return X @ X.mT / shape[-1] + 0.3 * torch.eye(shape[-1], dtype=torch.float64, device=DEVICE)

    time = (times,) if varying else (1,)
    return (
        random(*batch, times, p),
        0.6 * random(*batch, *time, n, n),
        random(*batch, *time, p, n),
        spd(*batch, *time, n, n),
        spd(*batch, *time, p, p),
        random(*batch, n),
        spd(*batch, n, n),
    )


def leave_gaps(y: Tensor) -> Tensor:
    """A whole step, single entries, and the end are missing."""
    y = y.clone()
    y[..., 1, :] = torch.nan
    y[..., 2, 0] = torch.nan
    y[..., 4, -1] = torch.nan
    y[..., -1, :] = torch.nan
    return y


def offsets(times: int, n: int, p: int) -> dict[str, Tensor]:
    return {
        "state_offset": torch.linspace(-1, 1, times * n, dtype=torch.float64, device=DEVICE).view(times, n),
        "observation_offset": torch.linspace(1, -2, p, dtype=torch.float64, device=DEVICE),
    }


CASES: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "plain": ({}, False, False),
    "one state, one observation": ({"n": 1, "p": 1}, False, False),
    "more observations than states": ({"n": 2, "p": 4}, False, False),
    "varying matrices": ({"varying": True}, False, False),
    "missing": ({"times": 7}, True, False),
    "missing, varying, offsets": ({"times": 7, "varying": True}, True, True),
    "one step": ({"times": 1}, False, True),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Operands, dict[str, Tensor]]:
    sizes, gaps, offset = CASES[request.param]
    y, *others = make_problem(**sizes)
    y = leave_gaps(y) if gaps else y
    return (y, *others), offsets(y.shape[0], others[4].shape[-1], y.shape[1]) if offset else {}


def test_likelihood(case: Any) -> None:
    operands, flags = case
    oracle = JointGaussian(*operands, **flags)
    assert_close(kalman_nll(*operands, **flags), -oracle.log_likelihood())


@pytest.mark.parametrize("form", ["covariance", "square_root"])
def test_filter(case: Any, form: str) -> None:
    operands, flags = case
    oracle = JointGaussian(*operands, **flags)
    found = kalman_filter(*operands, **flags, form=form)
    assert_close(found.log_likelihood.sum(), oracle.log_likelihood())
    for t in range(oracle.times):
        for mean, covariance, until in (
            (found.mean, found.covariance, t + 1),
            (found.predicted_mean, found.predicted_covariance, t),
        ):
            expected_mean, expected = oracle.states(until)
            assert_close(mean[t], expected_mean[t])
            assert_close(covariance[t], oracle.block(expected, t))
        assert_close(
            found.log_likelihood[t], oracle.log_likelihood(t + 1) - oracle.log_likelihood(t), SUMS_OVER_STEPS
        )


@pytest.mark.parametrize("method", ["auto", "rts", "bryson_frazier"])
def test_smoother(case: Any, method: str) -> None:
    operands, flags = case
    oracle = JointGaussian(*operands, **flags)
    found = kalman_smoother(*operands, **flags, method=method)
    mean, covariance = oracle.states(oracle.times)
    assert_close(found.mean, mean)
    assert_close(found.log_likelihood, oracle.log_likelihood())
    for t in range(oracle.times):
        assert_close(found.covariance[t], oracle.block(covariance, t))
        if t + 1 < oracle.times:
            assert_close(found.cross_covariance[t], oracle.block(covariance, t + 1, t))


def gradients(f: Any, operands: Operands, flags: dict[str, Tensor]) -> list[Tensor]:
    leaves = [operand.detach().clone().requires_grad_() for operand in (*operands, *flags.values())]
    given = dict(zip(flags, leaves[len(operands) :], strict=True))
    found = torch.autograd.grad(f(*leaves[: len(operands)], **given), leaves, materialize_grads=True)
    # Symmetric operands: what differs is the share of each triangle.
    return [0.5 * (g + g.mT) if i in (3, 4, 6) else g for i, g in enumerate(found)]


def test_gradient(case: Any) -> None:
    """Against autograd through the joint density; nothing flows into what is missing."""
    operands, flags = case
    expected = gradients(lambda *x, **k: -JointGaussian(*x, **k).log_likelihood(), operands, flags)
    for f in (kalman_nll, lambda *x, **k: -kalman_filter(*x, **k).log_likelihood.sum()):
        found = gradients(f, operands, flags)
        for actual, wanted in zip(found, expected, strict=True):
            assert_close(actual, torch.nan_to_num(wanted))
    assert torch.count_nonzero(found[0][operands[0].isnan()]) == 0


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("isa", _cpu.ISA_VARIANTS)
def test_batches_of_series_of_different_length(isa: str, dtype: torch.dtype, wide: bool) -> None:
    """In lanes and one by one, on every instruction set: each series is what it is alone."""
    core = _cpu.core
    if core is None or not core.isa_supported(isa):
        pytest.skip(f"no {isa} here")
    batch, times = 19, 9
    operands = make_problem(times, 4, 2, varying=True, batch=(batch,))
    y = operands[0]
    for i in range(batch):
        y[i, 1 + i % times :] = torch.nan
        y[i, i % 5, i % 2] = torch.nan
    leaves = [operand.to(dtype).requires_grad_() for operand in operands]
    before, plan = core.isa(), core.plan()
    try:
        assert core.select_isa(isa)
        for name in ("lane_order_f32", "lane_order_f64"):
            core.set_plan(name, 24 if wide else 0)
        s = kalman_nll(*leaves)
        found = torch.autograd.grad(s.sum(), leaves)
    finally:
        core.select_isa(before)
        for name in ("lane_order_f32", "lane_order_f64"):
            core.set_plan(name, plan[name])
    for i in range(batch):
        one = [operand[i].requires_grad_() for operand in operands]
        oracle = JointGaussian(*one)
        expected = -oracle.log_likelihood()
        units = of_joint_density(oracle.condition(), dtype)
        assert_close(s[i].detach(), expected.detach().to(dtype), units)
        wanted = (
            torch.autograd.grad(expected, one, allow_unused=True) if expected.requires_grad else [None] * 7
        )
        for position, (gradient, value) in enumerate(zip(found, wanted, strict=True)):
            value = torch.zeros_like(operands[position][i]) if value is None else torch.nan_to_num(value)
            if position in (3, 4, 6):
                value = 0.5 * (value + value.mT)
            assert_close(gradient[i], value.to(dtype), units)


def test_shared_gradients_are_sums_and_do_not_depend_on_threads() -> None:
    y = make_problem(30, 3, 2, batch=(50,))[0]
    _, *others = make_problem(30, 3, 2, varying=True)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        leaves = [operand.clone().requires_grad_() for operand in others]
        found.append(torch.autograd.grad(kalman_nll(y, *leaves).sum(), leaves))
    torch.set_num_threads(1)
    apart = [operand.expand(50, *operand.shape).clone().requires_grad_() for operand in others]
    for position, expected in enumerate(torch.autograd.grad(kalman_nll(y, *apart).sum(), apart)):
        assert_close(found[0][position], expected.sum(0))
        assert torch.equal(found[0][position], found[1][position])
        assert torch.equal(found[0][position], found[2][position])


def test_long_series() -> None:
    """Longer than the steps that the adjoint keeps at a time; in single precision the sum stays exact."""
    y, *others = make_problem(3_000, 12, 1, seed=2)
    others[0] = 0.9 * torch.linalg.qr(others[0]).Q
    leaves = [operand.requires_grad_() for operand in (y, *others)]
    parts = kalman_nll(*leaves)
    found = torch.autograd.grad(parts, leaves)
    half = 100
    first = kalman_filter(y[:half], *others)
    A, Q = others[0][0], others[2][0]
    m = A @ first.mean[-1]
    P = A @ first.covariance[-1] @ A.mT + Q
    rest = kalman_nll(y[half:], *others[:4], m, P)
    expected = -first.log_likelihood.sum() + rest
    assert_close(parts, expected, SUMS_OVER_STEPS)
    wanted = torch.autograd.grad(expected, leaves)
    for i, (actual, value) in enumerate(zip(found, wanted, strict=True)):
        value = 0.5 * (value + value.mT) if i in (3, 4, 6) else value
        assert_close(actual, value, SUMS_OVER_STEPS)
    single = kalman_nll(*[leaf.detach().float() for leaf in leaves])
    assert_close(single, parts.detach().float(), SUMS_OVER_STEPS)


@pytest.mark.parametrize("name", ["filter", "square root filter", "smoother", "Bryson-Frazier"])
def test_derivatives(name: str) -> None:
    y, *others = make_problem(3, 2, 1, varying=True)
    y[1] = torch.nan
    functions = {
        "filter": lambda *x: kalman_filter(y, *x),
        "square root filter": lambda *x: kalman_filter(y, *x, form="square_root"),
        "smoother": lambda *x: kalman_smoother(y, *x, method="rts"),
        "Bryson-Frazier": lambda *x: kalman_smoother(y, *x, method="bryson_frazier"),
    }

    def symmetric(*x: Tensor) -> tuple[Tensor, ...]:
        A, B, Q, R, m, P = x
        return tuple(functions[name](A, B, *(0.5 * (X + X.mT) for X in (Q, R)), m, 0.5 * (P + P.mT)))

    assert gradcheck(symmetric, [operand.requires_grad_() for operand in others])


def test_broadcasting() -> None:
    """Leading dimensions of all operands meet; each item is what it is alone."""
    y, A, B, Q, R, m, P = make_problem(4, 2, 1)
    A = A * torch.tensor([1.0, 0.5], dtype=torch.float64, device=DEVICE)[:, None, None, None]
    m = m + torch.arange(3.0, dtype=torch.float64, device=DEVICE)[:, None, None]
    s = kalman_nll(y, A, B, Q, R, m, P)
    filtered, smoothed = kalman_filter(y, A, B, Q, R, m, P), kalman_smoother(y, A, B, Q, R, m, P)
    assert s.shape == (3, 2)
    assert filtered.mean.shape == (3, 2, 4, 2)
    for i in range(3):
        for j in range(2):
            alone = y, A[j], B, Q, R, m[i, 0], P
            assert_close(s[i, j], kalman_nll(*alone))
            assert_close(filtered.covariance[i, j], kalman_filter(*alone).covariance)
            assert_close(smoothed.mean[i, j], kalman_smoother(*alone).mean)


def test_no_steps() -> None:
    y, *others = make_problem(0, 2, 1)
    assert kalman_nll(y, *others).item() == 0.0
    assert kalman_filter(y, *others).mean.shape == (0, 2)
    assert kalman_smoother(y, *others, method="bryson_frazier").covariance.shape == (0, 2, 2)
    assert kalman_smoother(y, *others).mean.shape == (0, 2)


def test_nothing_observed() -> None:
    y, *others = make_problem(3, 2, 1)
    leaves = [operand.requires_grad_() for operand in others]
    s = kalman_nll(torch.full_like(y, torch.nan), *leaves)
    assert s.item() == 0.0
    assert all(torch.count_nonzero(g) == 0 for g in torch.autograd.grad(s, leaves))


def make_singular_problem() -> Operands:
    """Return an autoregression seen without noise: A is singular, and so are Q, R and all covariances."""
    double = torch.float64
    A = torch.tensor([[0.5, 0.0], [1.0, 0.0]], dtype=double, device=DEVICE)
    y = torch.tensor([[0.3], [1.0], [-0.5], [0.8]], dtype=double, device=DEVICE)
    Q, B = (
        torch.diag(torch.tensor([1.0, 0.0], dtype=double, device=DEVICE)),
        torch.tensor([[1.0, 0.0]], dtype=double, device=DEVICE),
    )
    return (
        y,
        A,
        B,
        Q,
        torch.zeros(1, 1, dtype=double, device=DEVICE),
        torch.zeros(2, dtype=double, device=DEVICE),
        torch.eye(2, dtype=double, device=DEVICE),
    )


def test_singular_transition_and_states_known_exactly() -> None:
    operands = make_singular_problem()
    oracle = JointGaussian(*operands)
    assert_close(kalman_nll(*operands), -oracle.log_likelihood())
    found = kalman_smoother(*operands)
    mean, covariance = oracle.states(4)
    assert_close(found.mean, mean)
    assert_close(found.covariance[1], oracle.block(covariance, 1))
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match='method="bryson_frazier"') as caught:
        kalman_smoother(*operands, method="rts")
    assert caught.value.item == (3,)


def test_square_root_form_with_factors_of_singular_covariances() -> None:
    y, A, B, _, R, m, P = make_singular_problem()
    G = torch.tensor([[1.0], [0.2]], dtype=torch.float64, device=DEVICE)
    R = R + 0.1
    expected = kalman_filter(y, A, B, G @ G.mT, R, m, P)
    root = torch.nn.functional.pad(G, (0, 1))
    found = kalman_filter(y, A, B, root, R.sqrt(), m, P, form="square_root", factors=True)
    again = kalman_filter(y, A, B, root, R.sqrt(), m, P, factors=True)
    for actual, same, wanted in zip(found, again, expected, strict=True):
        assert_close(actual, wanted)
        assert_close(same, wanted)


def test_square_root_form_keeps_more_digits() -> None:
    """With a wide prior and a precise observation in float32, only the square root form keeps the digits."""
    y, A, B = (
        torch.ones(3, 1, device=DEVICE),
        torch.eye(2, device=DEVICE),
        torch.tensor([[1.0, 1.0]], device=DEVICE),
    )
    Q, R, m, P = (
        1e-8 * torch.eye(2, device=DEVICE),
        1e-6 * torch.eye(1, device=DEVICE),
        torch.zeros(2, device=DEVICE),
        1e3 * torch.eye(2, device=DEVICE),
    )
    exact = kalman_filter(*(x.double() for x in (y, A, B, Q, R, m, P))).log_likelihood.sum()
    found = kalman_filter(y, A, B, Q, R, m, P, form="square_root").log_likelihood.sum()
    assert abs(found - exact) < 1e-3 * abs(exact)
    try:
        rounded = kalman_filter(y, A, B, Q, R, m, P).log_likelihood.sum()
    except lapgrad.NotPositiveDefiniteError:
        return
    assert abs(rounded - exact) > 50 * abs(found - exact)


@pytest.mark.parametrize("f", [kalman_nll, kalman_filter, kalman_smoother])
def test_failure_names_series_and_step(f: Any) -> None:
    y, A, B, Q, R, m, P = make_problem(5, 2, 1, varying=True, batch=(3,))
    R = R.clone()
    R[1, 3] = -50.0
    name = f.__name__ if f is not kalman_nll else "fused.kalman_nll"
    message = rf"^{name}: series\[1\]: the covariance of the observation at step 3, given .* of order 1"
    with pytest.raises(lapgrad.NotPositiveDefiniteError, match=message) as caught:
        f(y, A, B, Q, R, m, P)
    assert caught.value.item == (1, 3)
    R[1, 3] = torch.nan
    with pytest.raises(lapgrad.NonFiniteError, match=r"at step 3, given those before it, contains NaN"):
        f(y, A, B, Q, R, m, P)


@pytest.mark.parametrize("series", [1, 40])
def test_infinite_observation_is_named(series: int) -> None:
    y, *others = make_problem(5, 2, 1)
    y = y.expand(series, 5, 1).clone()
    y[series - 1, 2] = torch.inf
    with pytest.raises(lapgrad.NonFiniteError, match=rf"series\[{series - 1}\]: the observation at step 2"):
        kalman_nll(y, *others)


def test_unstable_series_that_ended_long_ago() -> None:
    """Padding of a short series next to a long one: its covariance would overflow, and does no harm."""
    y = torch.full((9, 3000, 1), torch.nan, dtype=torch.float64, device=DEVICE)
    y[:, :3] = 1.0
    y[0] = 1.0
    one = torch.ones(1, 1, dtype=torch.float64, device=DEVICE)
    A = torch.full((9, 1, 1, 1), 3.0, dtype=torch.float64, device=DEVICE)
    A[0] = 0.5
    A.requires_grad_()
    s = kalman_nll(y, A, one, one, one, one[0], one)
    (gradient,) = torch.autograd.grad(s.sum(), A)
    assert s.isfinite().all()
    assert gradient.isfinite().all()
    assert_close(s[1].detach(), kalman_nll(y[1, :3], A[1].detach(), one, one, one, one[0], one))


@pytest.mark.parametrize(
    ("position", "shape", "message"),
    [
        (2, (3, 3), "B must end in (p, n)"),
        (3, (2, 2), "Q must end in (n, n)"),
        (5, (2,), "m must end in (n,)"),
        (1, (5, 3, 3), "the dimension of time of A"),
        (6, (4, 3, 3), "the leading dimensions, those before time"),
    ],
)
def test_shapes_that_do_not_fit(position: int, shape: tuple[int, ...], message: str) -> None:
    operands = list(make_problem(4, 3, 2, batch=(2,)))
    operands[position] = torch.ones(shape, dtype=torch.float64, device=DEVICE)
    with pytest.raises(lapgrad.ShapeError) as caught:
        kalman_nll(*operands)
    assert message in str(caught.value)
    assert f"{'yABQRmP'[position]} {shape}" in str(caught.value)


def test_unknown_options() -> None:
    operands = make_problem()
    with pytest.raises(lapgrad.OptionError, match="form"):
        kalman_filter(*operands, form="information")
    with pytest.raises(lapgrad.OptionError, match="method"):
        kalman_smoother(*operands, method="fixed lag")


def test_second_derivative_with_missing_observations() -> None:
    y, *others = make_problem(4, 2, 2)
    y[1], y[2, 0] = torch.nan, torch.nan

    def second(f: Any) -> list[Tensor]:
        leaves = [operand.clone().requires_grad_() for operand in others]
        first = torch.autograd.grad(f(y, *leaves), leaves, create_graph=True)
        seconds = torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)
        return [0.5 * (g + g.mT) if i in (2, 3, 5) else g for i, g in enumerate(seconds)]

    def symmetric(y: Tensor, A: Tensor, B: Tensor, Q: Tensor, R: Tensor, m: Tensor, P: Tensor) -> Tensor:
        Q, R, P = (0.5 * (X + X.mT) for X in (Q, R, P))
        return -kalman_filter(y, A, B, Q, R, m, P).log_likelihood.sum()

    for actual, expected in zip(second(kalman_nll), second(symmetric), strict=True):
        assert_close(actual, expected, HIGHER_ORDER)
