"""Mean functions, known noise, leave-one-out predictions, added data and terms of GPRegression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE
from tolerances import HIGHER_ORDER, assert_close
from torch import Tensor, nn

import lapgrad
from lapgrad.models import GPRegression, Model, SparseGPRegression
from lapgrad.models._gp.batched_loss import BatchedLoss
from lapgrad.models._training.fitting import get_scales
from lapgrad.models.kernels import (
    RBF,
    Constant,
    Deep,
    Linear,
    Matern52,
    Periodic,
    Polynomial,
    RationalQuadratic,
    White,
)

F64 = torch.float64


def data(n: int = 25, k: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=source, dtype=F64)
    y = torch.sin(6.0 * X[:, :1]) + 3.0 * X[:, 1:] + 0.1 * torch.randn(n, k or 1, generator=source, dtype=F64)
    return X.to(DEVICE), (y[:, 0] if k is None else y).to(DEVICE)


class Slope(nn.Module):
    """3 times the second input, and a learned offset."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros((), dtype=F64))

    def forward(self, X: Tensor) -> Tensor:
        return 3.0 * X[..., 1] + self.offset


KERNELS = {
    "composite": lambda: RBF(ard=True) * Periodic() + Linear(ard=True) + 1.0 + White(),
    "powers": lambda: (RationalQuadratic() + Polynomial(2)) ** 2 * Constant(),
    "Matern": lambda: Matern52(active_dims=[1]),
}


@pytest.mark.parametrize("mean", ["constant", "linear", "zero"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_batch_of_hyperparameters_is_evaluated_at_once(kernel: str, mean: str) -> None:
    model = GPRegression(*data(k=2), KERNELS[kernel](), mean=mean, normalise=False)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scales = get_scales(model, learned)
    start = torch.cat([parameter.detach().flatten().cpu() for parameter in learned]) / scales
    points = start + 0.3 * torch.randn(3, len(start), dtype=F64)
    values, gradients = BatchedLoss(model)(points)
    for point, value, gradient in zip(points * scales, values, gradients / scales, strict=True):
        with torch.no_grad():
            for parameter, part in zip(learned, point.split([p.numel() for p in learned]), strict=True):
                parameter.copy_(part.view_as(parameter))
        loss = model.loss()
        expected = torch.cat([g.flatten().cpu() for g in torch.autograd.grad(loss, learned)])
        assert_close(value, loss.detach().cpu(), HIGHER_ORDER)
        assert_close(gradient, expected, HIGHER_ORDER)


def test_points_that_cannot_be_evaluated_do_not_spoil_the_others() -> None:
    model = GPRegression(*data(), RBF(ard=True))
    batched = BatchedLoss(model)
    good = torch.cat([p.detach().flatten().cpu() for p in model.parameters() if p.requires_grad])
    bad = torch.full_like(good, torch.nan)
    values, _ = batched(torch.stack([good, bad, good, 800.0 * torch.ones_like(good)]))
    assert values.isfinite().tolist() == [True, False, True, False]
    assert_close(values[0], model.loss().detach().cpu())


def test_more_starts_are_not_worse() -> None:
    X, y = data(40)
    one = GPRegression(X, y, Matern52(30.0, ard=True), noise_var=1.0).fit(starts=1)
    several = GPRegression(X, y, Matern52(30.0, ard=True), noise_var=1.0).fit(starts=8)
    default = GPRegression(X, y, Matern52(30.0, ard=True), noise_var=1.0).fit()
    assert several.loss <= one.loss + 1e-3
    assert default.loss <= one.loss + 1e-6
    again = GPRegression(X, y, Matern52(30.0, ard=True), noise_var=1.0).fit(starts=8)
    assert again.loss == several.loss
    with pytest.raises(lapgrad.OptionError, match="starts must be a positive number, got 0"):
        GPRegression(X, y).fit(starts=0)


def test_networks_are_learned_from_one_start() -> None:
    X, y = data()
    model = GPRegression(X, y, Deep(RBF(), nn.Linear(2, 2, dtype=F64, device=DEVICE)))
    assert model.fit(starts=3, steps=10).steps == 10


@pytest.mark.parametrize("kind", [GPRegression, SparseGPRegression])
def test_linear_mean_is_the_constant_mean_plus_a_line(kind: Any) -> None:
    X, y = data()
    model = kind(X, y, RBF(0.7, 1.0), mean="linear", normalise=False, noise_var=0.1, **extra(kind))
    model.slope = torch.tensor([[0.5], [3.0]], dtype=F64)
    model.constant = 0.2
    line = X @ model.slope.detach() + 0.2
    without = kind(
        X, y - line[:, 0], RBF(0.7, 1.0), mean="zero", normalise=False, noise_var=0.1, **extra(kind)
    )
    assert_close(model.loss(), without.loss())
    new = data(6, seed=3)[0]
    expected = without.predict(new).mean + (new @ model.slope.detach())[:, 0] + 0.2
    assert_close(model.predict(new).mean, expected)
    assert_close(model.predict(new).variance, without.predict(new).variance)
    new.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: model.predict(x).mean, (new,))


def extra(kind: type) -> dict[str, Any]:
    return {"inducing": data()[0][:9]} if kind is SparseGPRegression else {}


@pytest.mark.parametrize("kind", [GPRegression, SparseGPRegression])
def test_any_module_is_a_mean(kind: Any, tmp_path: Path) -> None:
    X, y = data()
    model = kind(X, y, RBF(0.7, 1.0), mean=Slope(), normalise=False, noise_var=0.1, **extra(kind))
    zero = kind(
        X, y - 3.0 * X[:, 1], RBF(0.7, 1.0), mean="zero", normalise=False, noise_var=0.1, **extra(kind)
    )
    assert_close(model.loss(), zero.loss())
    model.fit(steps=5)
    assert model.mean_module.offset.item() != 0.0
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model", modules={"mean": Slope()})
    assert_close(again.predict(X).mean, model.predict(X).mean)
    with pytest.raises(lapgrad.OptionError, match=r"modules=\{'mean'"):
        Model.load(tmp_path / "model")
    with pytest.raises(lapgrad.ShapeError, match="the mean must map inputs"):
        kind(X, y, mean=nn.Linear(2, 3, dtype=F64), **extra(kind))


def test_known_noise_of_each_observation(tmp_path: Path) -> None:
    """Two observations at a place with variances a and b are one with the variance ab / (a + b)."""
    X, y = data()
    noise = torch.linspace(0.1, 2.0, 25, dtype=F64, device=DEVICE)
    model = GPRegression(X, y, RBF(0.7, 1.0), noise_var=noise, normalise=False)
    assert "noise_var" not in model.hyperparameters()
    A = model.kernel(X).detach() + torch.diag(noise)
    expected = -torch.distributions.MultivariateNormal(model.constant.detach().expand(25), A).log_prob(y)
    assert_close(model.loss().detach(), expected)
    scaled = GPRegression(X, y, RBF(), noise_var=noise)
    result = scaled.fit(starts=2)
    assert result.converged
    new = data(4, seed=1)[0]
    of_new = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=F64, device=DEVICE)
    plain = scaled.predict(new).variance
    assert_close(scaled.predict(new, noise=of_new).variance, plain + of_new)
    assert_close(scaled.predict(new, noise=True).variance, plain + noise.mean())
    assert scaled.log_prob(new, of_new, noise=of_new).shape == (4,)
    scaled.save(tmp_path / "model")
    again = GPRegression.load(tmp_path / "model")
    assert_close(again.predict(new).mean, scaled.predict(new).mean)
    with pytest.raises(lapgrad.ShapeError, match="one entry for each of the 25"):
        GPRegression(X, y, noise_var=noise[:3])
    with pytest.raises(lapgrad.OptionError, match="noise_var must be positive"):
        GPRegression(X, y, noise_var=-noise)


@pytest.mark.parametrize("k", [None, 2])
def test_leaving_one_out_is_a_model_without_it(k: int | None) -> None:
    X, y = data(12, k)
    model = GPRegression(X, y, RBF(0.7, 1.0), noise_var=0.1)
    found = model.leave_one_out()
    for i in range(12):
        rest = torch.arange(12, device=DEVICE) != i
        other = GPRegression(X[rest], y[rest], RBF(0.7, 1.0), noise_var=0.1)
        for name in ("x_shift", "x_scale", "y_shift", "y_scale"):
            setattr(other, name, getattr(model, name))
        other.load_state_dict({**model.state_dict(), "X": X[rest], "y": other.y})
        mean, variance = other.predict(X[i : i + 1], noise=True)
        assert_close(found.mean[i], mean[0], HIGHER_ORDER)
        assert_close(found.variance[i], variance[0], HIGHER_ORDER)
        assert_close(found.log_density[i], other.log_prob(X[i : i + 1], y[i : i + 1])[0], HIGHER_ORDER)
    assert_close(model.loo_loss().detach(), -found.log_density.sum(), HIGHER_ORDER)
    errors = y - found.mean
    assert found.rmse == pytest.approx(float(errors.square().mean().sqrt()))
    assert found.compute_coverage(0.999999) == 1.0


def test_learning_by_leave_one_out() -> None:
    X, y = data(30)
    model = GPRegression(X, y, RBF(ard=True))
    before = model.loo_loss().item()
    result = model.fit(criterion="leave-one-out", starts=2)
    assert abs(result.loss - model.loo_loss().item()) < 1e-6
    assert result.loss < before - 1.0
    with pytest.raises(lapgrad.OptionError, match="criterion must be one of 'regularised', 'likelihood'"):
        model.fit(criterion="loo")


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("k", [None, 2])
def test_added_data_are_data(k: int | None, known: bool) -> None:
    X, y = data(20, k)
    noise = torch.linspace(0.1, 0.5, 20, dtype=F64, device=DEVICE)
    grown, whole = (
        GPRegression(X[:n], y[:n], RBF(0.7, 1.0), noise_var=noise[:n] if known else 0.1, normalise=False)
        for n in (13, 20)
    )
    whole.constant = grown.constant
    new = data(5, seed=2)[0]
    grown.predict(new)
    grown.add_data(X[13:18], y[13:18], noise_var=noise[13:18] if known else None)
    grown.add_data(X[18:], y[18:], noise_var=noise[18:] if known else None)
    for one, other in zip(grown.predict(new), whole.predict(new), strict=True):
        assert_close(one, other, HIGHER_ORDER)
    assert_close(grown.loss(), whole.loss())
    assert grown.fit(steps=5).loss < whole.loss()
    with pytest.raises(lapgrad.OptionError, match="noise_var does not fit"):
        grown.add_data(X[:1], y[:1], noise_var=None if known else noise[:1])


def test_added_data_do_not_cost_a_factorisation(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data(20)
    model = GPRegression(X[:15], y[:15], RBF())
    model.predict(X[:1])

    def refuse(*arguments: object) -> None:
        raise AssertionError("the covariance was factorised again")

    monkeypatch.setattr(model, "_compute_posterior", refuse)
    model.add_data(X[15:], y[15:])
    assert model.predict(X[:1]).mean.shape == (1,)


def test_terms_of_a_sum_add_up() -> None:
    X, y = data()
    model = GPRegression(X, y, RBF(0.7, name="smooth") + Linear(name="line"))
    new = data(5, seed=2)[0]
    parts = [model.predict(new, part=name).mean for name in ("smooth", "line")]
    assert_close(
        sum(parts) + model.constant.detach() * model.y_scale + model.y_shift, model.predict(new).mean
    )
    only = model.predict(new, part="line", full_cov=True)
    assert torch.linalg.eigvalsh(only.covariance).min() > -1e-9
    with pytest.raises(lapgrad.OptionError, match="part must be one of 'smooth', 'line', got 'lin'"):
        model.predict(new, part="lin")


def test_names_lead_to_parts(tmp_path: Path) -> None:
    X, y = data()
    model = GPRegression(X, y, RBF(name="smooth") * Matern52(name="rough") + 2.0 * Linear(name="line"))
    assert model.kernel["rough"] is model.kernel.parts[0].parts[1]
    assert "kernel.parts.0.smooth.lengthscale" in model.hyperparameters()
    model.fix("kernel.parts.1.line.variance")
    model.save(tmp_path / "model")
    again = GPRegression.load(tmp_path / "model")
    assert isinstance(again.kernel["line"], Linear)
    assert not again.kernel["line"].raw_variance.requires_grad
    with pytest.raises(lapgrad.OptionError, match="must be one of 'smooth', 'rough', 'line', got 'x'"):
        model.kernel["x"]
    with pytest.raises(lapgrad.OptionError, match="two parts have the same name"):
        RBF(name="a") + Linear(name="a")
    with pytest.raises(lapgrad.OptionError, match="name must be letters"):
        RBF(name="a.b")


def test_algebra_with_numbers() -> None:
    x = torch.linspace(0.0, 1.0, 4, dtype=F64, device=DEVICE)
    one = RBF(0.5, 1.5)
    assert_close((2.0 * one + 1.0)(x), 2.0 * one(x) + 1.0)
    assert_close((1 + one * 3)(x), 3.0 * one(x) + 1.0)
    assert_close((one**3)(x), one(x) ** 3)
    assert_close((one**0.5).diag(x), one.diag(x).sqrt())
    assert_close(sum([one, Linear(1.0)])(x), one(x) + Linear(1.0)(x))
    for wrong in (lambda: one + "a", lambda: one * None, lambda: one ** "2", lambda: None + one):
        with pytest.raises(TypeError, match="unsupported operand"):
            wrong()
    with pytest.raises(lapgrad.OptionError, match="positive"):
        -2.0 * one
    with pytest.raises(lapgrad.OptionError, match="exponent must be positive"):
        one**-1
