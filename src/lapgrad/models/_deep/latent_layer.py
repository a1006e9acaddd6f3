"""One layer of an unsupervised deep Gaussian process: functions from h to y, and a network from y to h.

    y = f(h) + noise,   f ~ q(f) of a sparse Gaussian process,   q(h | y) of a recognition network

Here h are the inputs of the layer and y its outputs: the data, or the inputs of the layer below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from lapgrad.distributed.group import Group
from lapgrad.models._deep.recognition import Recognition
from lapgrad.models._deep.sparse_layer import ARITHMETIC, LayerFactors, SparseLayer
from lapgrad.models._gp import inducing_inputs as _inducing_inputs
from lapgrad.models._parameters import ParametrisedModule, above
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import INTEGERS, PART, check_entries
from lapgrad.models.kernels.base import Kernel, part_of_state
from lapgrad.models.kernels.stationary import RBF
from lapgrad.ops.potrf import potrf_ex
from lapgrad.ops.potri import potri
from lapgrad.ops.syevd import syevd
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trmm import trmm
from lapgrad.ops.trsm import trsm

_LOG_2_PI = math.log(2.0 * math.pi)
#: Initial lengthscales in units of √w, for w inputs of variance 1: about the distance of two points.
_LENGTHSCALE = 1.5
#: Initial variance of the noise and its lower limit, both relative to the variance of the outputs.
_NOISE, _NOISE_FLOOR = 0.1, 1e-6


class DeepLayer(ParametrisedModule):
    """Sparse Gaussian processes with noise, and the recognition network for their inputs.

    Args:
        functions: h -> E y: w inputs, D outputs.
        recognition: The network from y to q(h | y).
        noise_var: Variance of the noise of all outputs.
        noise_floor: Lower limit of the variance.

    Attributes:
        functions: The sparse Gaussian processes.
        recognition: The network.
        noise_var: Learned.
    """

    noise_floor: Tensor
    noise_var = above("noise_floor")

    def __init__(
        self, functions: SparseLayer, recognition: Recognition, noise_var: Tensor, noise_floor: Tensor
    ) -> None:
        super().__init__()
        self.functions, self.recognition = functions, recognition
        self.register_buffer("noise_floor", noise_floor)
        self.noise_var = noise_var
        self.to(functions.inducing)

    def compute_expected_log_density(self, Y: Tensor, H: Tensor, prepared: LayerFactors) -> Tensor:
        """Return E log N(y | f(h), noise) over q(f): (...) for Y (..., D) and H (..., w).

        In closed form it is log N(y | E f, noise) - Var f / (2 noise), summed over the outputs.
        """
        mean, variance = self.functions(H, prepared)
        D, noise = mean.shape[-1], self.noise_var
        spread = variance.sum(-1) if variance.shape[-1] == D else D * variance[..., 0]
        squares = (Y - mean).square().sum(-1)
        return -0.5 * ((squares + spread) / noise + D * (noise.log() + _LOG_2_PI))

    def compute_log_density(self, Y: Tensor, H: Tensor, prepared: LayerFactors) -> Tensor:
        """Return the predictive log N(y | E f, Var f + noise): (...) for Y (..., D) and H (..., w)."""
        mean, variance = self.functions(H, prepared)
        D, total = mean.shape[-1], variance + self.noise_var
        if total.shape[-1] == D:
            return -0.5 * ((Y - mean).square() / total + total.log() + _LOG_2_PI).sum(-1)
        squares = (Y - mean).square().sum(-1)
        total = total[..., 0]
        return -0.5 * (squares / total + D * (total.log() + _LOG_2_PI))

    def config(self) -> dict[str, Any]:
        """Return the description of the functions, and the widths of the network."""
        network = [part for part in self.recognition.network if isinstance(part, nn.Linear)]
        return {"functions": self.functions.config(), "hidden": [part.out_features for part in network[:-1]]}

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        modules: Mapping[str, nn.Module],
        mean: nn.Module | None,
    ) -> Self:
        """Return a layer of this description, with the shapes of ``tensors``, its ``state_dict``."""
        check_entries(config, {"functions": PART, "hidden": INTEGERS}, "a layer")
        own = part_of_state(tensors, "functions.")
        functions = SparseLayer.from_config(config["functions"], own, modules, mean)
        inputs = own["raw_inducing"].shape[1]
        # These get the right dtypes and shapes here; those in the file are compared with them later.
        like = own["raw_inducing"]
        shift, scale = tensors["recognition.shift"].to(like), like.new_ones(())
        recognition = Recognition(len(shift), inputs, config["hidden"], shift, scale)
        floor = tensors["noise_floor"].to(like)
        return cls(functions, recognition, floor + 1.0, floor)


class ConstantMean(nn.Module):
    """A mean function that is constant: one learned number per output."""

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.constant = nn.Parameter(constant.detach().clone())

    def forward(self, H: Tensor) -> Tensor:
        """Return the constants (D,), for any H."""
        return self.constant


def make_initial_layer(
    Y: Tensor,
    width: int,
    *,
    total: int,
    of_data: bool,
    inducing: int,
    kernel: Kernel | None,
    hidden: Sequence[int],
    noise_var: float | None,
    options: Mapping[str, Any],
    generator: torch.Generator | None,
) -> DeepLayer:
    """Return a layer whose recognition network is a projection, and whose q(u) is optimal for it.

    Args:
        Y: (n, D), outputs: data, or the recognised inputs of the layer below.
        width: w, how many inputs.
        total: Rows of all data, of which Y has n.
        of_data: Whether this is the lowest layer. It projects to principal components, and has a constant
            mean. In the others Y consists of such components, and the first w of them are taken.
        inducing: Largest number of inducing inputs.
        kernel: None: RBF with a lengthscale per input.
        hidden: Widths of the network.
        noise_var: Variance of the noise; None: the variance of Y that the functions do not explain.
        options: Further options of ``SparseLayer``.
        generator: Source of random numbers.
    """
    D = Y.shape[1]
    shift = Y.mean(0)
    variance = (Y - shift).square().mean()
    variance = torch.where(variance > 0.0, variance, 1.0)
    recognition = Recognition(D, width, hidden, shift, variance.sqrt(), generator)
    projection = (
        _compute_principal_projection(Y, width)
        if of_data
        else torch.eye(width, D, dtype=Y.dtype, device=Y.device)
    )
    missing = min(width, D) if not of_data else len(projection)
    with torch.no_grad():
        recognition.linear.weight[:missing].copy_(projection[:missing] * variance.sqrt())
        H = recognition(Y)[0]
        Z = _inducing_inputs.choose_rows(H, inducing, "kmeans++", generator)
        if kernel is None:
            kernel = RBF(_LENGTHSCALE * width**0.5 * torch.ones(width), variance)
        functions = SparseLayer(Z, D, kernel, mean=ConstantMean(shift) if of_data else None, **options)
        noise = variance * _NOISE if noise_var is None else variance.new_tensor(noise_var)
        residuals = Y - shift if of_data else Y
        fit_functions(functions, H, residuals, noise, total / len(Y))
        if noise_var is None:
            mean, spread = functions(H)
            noise = (Y - mean).square().mean() + spread.mean()
            fit_functions(functions, H, residuals, noise, total / len(Y))
    floor = torch.minimum(_NOISE_FLOOR * variance, 0.01 * noise)
    return DeepLayer(functions, recognition, noise, floor)


@torch.no_grad()
def fit_functions(
    functions: SparseLayer,
    H: Tensor,
    Y: Tensor,
    noise_var: Tensor,
    weight: float | Tensor,
    rate: float | Tensor = 1.0,
    group: Group | None = None,
) -> None:
    """Move q(u) to the optimal one for known inputs H (n, w), and outputs Y (n, D) without their mean.

    With A = Lu⁻¹ K_uf and each point counted ``weight`` times, the best q(v) has the covariance Λ⁻¹ and the
    means Λ⁻¹ η,

        Λ = I + A Aᵀ weight / noise,   η = A Y weight / noise

    A minibatch gives unbiased estimates of Λ and η. The step (1 - rate) (Λ, η) + rate (Λ, η of the minibatch)
    follows the natural gradient of the bound. With a ``group``, each process has some of the points.
    """
    group = group or Group()
    inducing = len(functions.inducing)
    with group.expect_sum(inducing * (inducing + Y.shape[-1]), Y.device) as pending:
        (Lu, q_mean, q_root), v = functions.prepare(), noise_var.to(ARITHMETIC) / weight
        A = trsm(Lu, functions.kernel(functions.inducing, H).to(ARITHMETIC))
        products, sums = syrk(A), multiply(A.to(Y.dtype), Y).to(ARITHMETIC)
        pending.start([products, sums])
        pending.wait()
    precision, shift = products / v, sums / v
    precision.diagonal().add_(1.0)
    if isinstance(rate, Tensor) or rate < 1.0:  # a tensor is not read: it may be on a GPU
        before = potri(q_root.to(ARITHMETIC))
        precision = torch.lerp(before, precision, rate)
        shift = torch.lerp(before @ q_mean.to(ARITHMETIC), shift, rate)
    Lp, _ = potrf_ex(precision)
    mean = trsm(Lp, trsm(Lp, shift), transpose=True)
    root, _ = potrf_ex(potri(Lp))
    if not functions.whiten:
        mean, root = trmm(Lu, mean), trmm(Lu, root)
    functions.set_posterior(mean, root)


def _compute_principal_projection(Y: Tensor, count: int) -> Tensor:
    """Return projections (count or fewer, D) to principal components, scaled to variance 1.

    Components that do not vary are left out.
    """
    centred = (Y - Y.mean(0)).to(ARITHMETIC)
    U, eigenvalues = syevd(syrk(centred, transpose=True) / len(Y))
    U, eigenvalues = U.flip(0)[:count], eigenvalues.flip(0)[:count]
    varies = eigenvalues > 1e-10 * eigenvalues.amax().clamp_min(torch.finfo(ARITHMETIC).tiny)
    return (U[varies] / eigenvalues[varies, None].sqrt()).to(Y.dtype)
