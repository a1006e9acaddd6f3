"""The layer of deep Gaussian processes: against dense formulas, in all its forms."""

from __future__ import annotations

import pytest
import tolerances
import torch
from torch import Tensor, nn

from lapgrad import NonFiniteError, NotPositiveDefiniteError, OptionError, ShapeError
from lapgrad._torch import lu as torch_lu
from lapgrad.models._deep.sparse_layer import SparseLayer
from lapgrad.models.kernels import RBF, Linear
from lapgrad_bench.bench.models.torch_layers import replace_operators_by_torch

U, D, K, N = 6, 2, 3, 5


def draw_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_layer(
    whiten: bool = True, covariance: str = "shared", jitter: float = 1e-3, **options
) -> SparseLayer:
    """Return a layer with a random q(u), which is the same with and without whitening."""
    kernel = RBF(torch.tensor([0.7, 1.3], dtype=torch.float64), 1.7)
    found = SparseLayer(
        draw_normal(U, D), K, kernel, whiten=whiten, covariance=covariance, jitter=jitter, **options
    )
    batch = (K,) if covariance == "separate" else ()
    root = 0.3 * draw_normal(*batch, U, U, seed=2).tril()
    root.diagonal(dim1=-2, dim2=-1).abs_().add_(0.1)
    mean = draw_normal(U, K, seed=3)
    if not whiten:
        Lu = found.prepare().factor.detach()
        mean, root = Lu @ mean, Lu @ root
    found.set_posterior(mean, root)
    return found


def get_posterior(of: SparseLayer) -> tuple[Tensor, Tensor]:
    """Return the mean m (k, U) and covariance S (k, U, U) of q(u)."""
    root = of.build_root()
    mean = of.q_mean
    if of.whiten:
        Lu = torch.linalg.cholesky(compute_covariance_of_u(of))
        mean, root = Lu @ mean, Lu @ root
    return mean.mT, (root @ root.mT).expand(K, U, U)


def compute_covariance_of_u(of: SparseLayer) -> Tensor:
    K_uu = of.kernel(of.inducing)
    return K_uu + of.jitter * K_uu.diagonal().mean() * torch.eye(U, dtype=torch.float64)


FORMS = [(whiten, covariance) for whiten in (True, False) for covariance in ("shared", "separate")]


@pytest.mark.parametrize(("whiten", "covariance"), FORMS)
def test_marginals_and_kl_are_those_of_the_definition(whiten, covariance):
    of, H = make_layer(whiten, covariance), draw_normal(N, D, seed=1)
    mean, variance = of(H)
    m, S = get_posterior(of)
    W = torch_lu.solve(compute_covariance_of_u(of), of.kernel(of.inducing, H)).mT  # K_fu K_uu^-1
    tolerances.assert_close(mean, W @ m.mT)
    prior = of.kernel.diag(H) - (W * of.kernel(H, of.inducing)).sum(1)
    expected = prior[:, None] + torch.stack([(W @ S[j] * W).sum(1) for j in range(K)], 1)
    assert variance.shape == (N, 1 if covariance == "shared" else K)
    tolerances.assert_close(variance.expand(N, K), expected)
    p = torch.distributions.MultivariateNormal(
        torch.zeros(U, dtype=torch.float64), compute_covariance_of_u(of)
    )
    divergence = torch.distributions.kl_divergence(torch.distributions.MultivariateNormal(m, S), p).sum()
    tolerances.assert_close(of.kl(), divergence)


@pytest.mark.parametrize("covariance", ["shared", "separate"])
def test_whitening_changes_parameters_and_nothing_else(covariance):
    H = draw_normal(N, D, seed=1)
    (mean, variance), (other_mean, other_variance) = (make_layer(w, covariance)(H) for w in (True, False))
    tolerances.assert_close(mean, other_mean)
    tolerances.assert_close(variance, other_variance)
    tolerances.assert_close(make_layer(True, covariance).kl(), make_layer(False, covariance).kl())


@pytest.mark.parametrize("whiten", [True, False])
def test_separate_covariances_that_are_equal_are_a_shared_one(whiten):
    shared, separate, H = make_layer(whiten), make_layer(whiten, "separate"), draw_normal(N, D, seed=1)
    separate.set_posterior(shared.q_mean.detach(), shared.build_root().detach().expand(K, U, U))
    (mean, variance), (other_mean, other_variance) = shared(H), separate(H)
    tolerances.assert_close(other_mean, mean)
    tolerances.assert_close(other_variance, variance.expand(N, K))
    tolerances.assert_close(separate.kl(), shared.kl())


def compute_criterion(of: SparseLayer, H: Tensor) -> Tensor:
    prepared = of.prepare()
    mean, variance = of(H, prepared)
    return mean.sin().sum() + variance.log().sum() + of.kl(prepared)


@pytest.mark.parametrize(("whiten", "covariance"), FORMS)
def test_gradients(whiten, covariance):
    of, H = make_layer(whiten, covariance), draw_normal(N, D, seed=1).requires_grad_()
    names, values = zip(*of.named_parameters(), strict=True)

    class Criterion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = of

        def forward(self, H: Tensor) -> Tensor:
            return compute_criterion(self.layer, H)

    module = Criterion()

    def function(H: Tensor, *parameters: Tensor) -> Tensor:
        named = {f"layer.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(module, named, (H,))

    assert torch.autograd.gradcheck(function, (H, *values))


@pytest.mark.parametrize(("whiten", "covariance"), FORMS)
def test_torch_linalg_gives_the_same_values_and_gradients(whiten, covariance):
    of, H = make_layer(whiten, covariance), draw_normal(N, D, seed=1)
    value = compute_criterion(of, H)
    gradients = torch.autograd.grad(value, list(of.parameters()))
    with replace_operators_by_torch():
        theirs = compute_criterion(of, H)
        their_gradients = torch.autograd.grad(theirs, list(of.parameters()))
    assert "Linalg" in str(_list_functions(theirs))
    assert "Linalg" not in str(_list_functions(value))
    tolerances.assert_close(value, theirs)
    tolerances.assert_all_close(gradients, their_gradients, tolerances.INDUCING)


def _list_functions(value: Tensor) -> set[str]:
    """Return the names of all functions in the autograd graph of a tensor."""
    found, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(function for function, _ in node.next_functions)
    return {type(node).__name__ for node in found}


def test_leading_dimensions_and_the_mean_function():
    of = make_layer(mean=nn.Linear(D, K, dtype=torch.float64))
    H = draw_normal(4, N, D, seed=1)
    mean, variance = of(H)
    assert mean.shape == (4, N, K)
    assert variance.shape == (4, N, 1)
    alone, spread = of(H[2])
    tolerances.assert_close(mean[2], alone)
    tolerances.assert_close(variance[2], spread)
    added = mean - of.mean(H)
    of.mean = None
    tolerances.assert_close(of(H)[0], added)


@pytest.mark.parametrize("whiten", [True, False])
def test_q_starts_as_the_prior(whiten):
    of = SparseLayer(draw_normal(U, D), K, RBF(), whiten=whiten)
    mean, variance = of(draw_normal(N, D, seed=1))
    assert not mean.any()
    tolerances.assert_close(variance, torch.ones_like(variance), tolerances.OF_JITTER)
    assert abs(of.kl().item()) < 1e-9


def test_float32_layers_learn_from_gradients_of_float64():
    """100 inducing inputs close to each other: K_uu has eigenvalues down to its jitter."""
    Z, H = 0.3 * draw_normal(100, D), 0.3 * draw_normal(20, D, seed=1)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        of = SparseLayer(Z.to(dtype), K, RBF(torch.ones(D), 1.0), jitter=1e-5)
        of.set_posterior(draw_normal(100, K, seed=2), 0.5 * torch.eye(100))
        mean, variance = of(H.to(dtype))
        value = mean.square().sum() + variance.sum() + of.kl()
        return list(torch.autograd.grad(value, list(of.parameters())))

    for ours, exact in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        tolerances.assert_close(ours, exact.float(), tolerances.FLOAT32_LAYER)


def test_a_matrix_that_cannot_be_factorised_is_named():
    Z = draw_normal(1, D).expand(U, D).contiguous()
    of = SparseLayer(Z, K, RBF(), jitter=0.0)
    with pytest.raises(NotPositiveDefiniteError, match="leading minor of order 2"):
        of.prepare()
    of.jitter = 1e-6
    of.prepare()
    with torch.no_grad():
        of.raw_inducing.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="inducing inputs"):
        of.prepare()


def test_few_dimensions_of_a_linear_kernel():
    """K_uu of a linear kernel in two dimensions has rank 2, and is factorised with jitter."""
    of = SparseLayer(draw_normal(U, D), K, Linear())
    assert of(draw_normal(N, D, seed=1))[1].isfinite().all()


def test_files():
    of = make_layer(False, "separate")
    again = SparseLayer.from_config(of.config(), of.state_dict(), {})
    again.load_state_dict(of.state_dict())
    assert all(map(torch.equal, of(draw_normal(N, D)), again(draw_normal(N, D))))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"outputs": 0}, OptionError, "outputs must be a positive number"),
        ({"kernel": nn.Identity()}, OptionError, "kernel must be a Kernel"),
        ({"covariance": "full"}, OptionError, "covariance"),
        ({"mean": "zero"}, OptionError, "mean must be a module"),
        ({"jitter": -1.0}, OptionError, "jitter"),
        ({"inducing": draw_normal(2, 3, 4)}, ShapeError, "inducing"),
        ({"inducing": torch.full((2, 2), torch.inf)}, NonFiniteError, "rows 0, 1"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"inducing": draw_normal(U, D), "outputs": K, "kernel": RBF(), **change}
    with pytest.raises(error, match=message):
        SparseLayer(**arguments)
