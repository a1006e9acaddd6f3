"""A layer of functions: sparse Gaussian processes that share a kernel and inducing inputs.

With U inducing inputs Z, k outputs f_j = mean_j + g_j, g_j ~ GP(0, kernel), and u_j = g_j(Z),

    q(g_j, u_j) = p(g_j | u_j) q(u_j),   q(u_j) = N(m_j, S_j)

K_uu = Lu Luᵀ turns inducing variables into whitened ones, u_j = Lu v_j with p(v_j) = N(0, I). Everything is
computed with q(v_j) = N(m_j, R_j R_jᵀ) and A = Lu⁻¹ K_uf:

    E f_j      = mean_j + Aᵀ m_j
    Var f_j    = k(x, x) - |a|² + |R_jᵀ a|²,   a a column of A
    KL(q || p) = ½ Σ_j (|R_j|² + |m_j|² - U) - Σ_j Σ_i log (R_j)_ii

Without whitening the parameters are those of q(u_j) = N(m_j, S_j), S_j = Ls_j Ls_jᵀ, and m_j, R_j above are
Lu⁻¹ m_j, Lu⁻¹ Ls_j: one more triangular solve, the same formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from lapgrad import _errors, _exceptions
from lapgrad.models import _checks
from lapgrad.models._gp.jitter import add_jitter
from lapgrad.models._parameters import ParametrisedModule, unbounded
from lapgrad.models._products import multiply
from lapgrad.models._storage.entries import FLAG, INTEGER, NUMBER, PART, TEXT, check_entries
from lapgrad.models.kernels.base import Kernel, check_kernel, kernel_from_config, part_of_state
from lapgrad.ops.potrf import potrf_ex
from lapgrad.ops.sumlogdiag import sumlogdiag
from lapgrad.ops.syrk import syrk
from lapgrad.ops.trmm import trmm
from lapgrad.ops.trsm import trsm

COVARIANCES = ("shared", "separate")

#: The dtype of K_uu, its factor and solves with it. K_uu of a smooth kernel has eigenvalues as small as the
#: jitter, which are below the rounding errors of float32.
ARITHMETIC = torch.float64


#: The entries of the description of a layer in a file.
_ENTRIES = {"outputs": INTEGER, "kernel": PART, "whiten": FLAG, "covariance": TEXT, "jitter": NUMBER}


class LayerFactors(NamedTuple):
    """The part of a step that does not depend on the inputs, shared by ``forward`` and ``kl``.

    Attributes:
        factor: (U, U), Lu, in float64.
        mean: (U, k), means of the whitened inducing variables.
        root: (U, U) or (k, U, U), lower triangular: R of their covariances R Rᵀ.
    """

    factor: Tensor
    mean: Tensor
    root: Tensor


class SparseLayer(ParametrisedModule):
    """k functions with Gaussian process priors that share a kernel, and a Gaussian q(u) for each.

    K_uu, its Cholesky factor and the solves with it are float64, whatever the dtype of the layer, so that
    float32 layers are learned as reliably. Products with means and covariances are in the layer's dtype. For
    n inputs, n U² of the 2 n U k + 2 n U² flops are in double precision.

    With CUDA tensors nothing waits for the device. A factorisation that fails writes its status to a tensor,
    which ``check`` reads, and returns the identity without a gradient. The triangular solves do not wait
    inside of ``without_waiting()``, which must include ``backward``. With CPU tensors a failure is raised at
    once.

    Args:
        inducing: (U, d), the initial inducing inputs; learned. The layer takes its dtype and device.
        outputs: k, the number of functions.
        kernel: Covariance of the functions. It becomes part of the layer.
        whiten: Parametrise the distribution of Lu⁻¹ u in place of that of u.
        covariance: "shared": one S for all outputs, or "separate": one per output.
        mean: A module that maps (..., n, d) to (..., n, k) (or to something that broadcasts to it); None:
            zero.
        jitter: Added to the diagonal of K_uu, in units of its mean.

    Attributes:
        inducing: (U, d).
        q_mean: (U, k), the means of q.
        q_log_deviations: (U,) or (k, U), logarithms of the diagonal of the factor of S.
        q_below: (U, U) or (k, U, U), the part of that factor below the diagonal; other entries are not used.

    Raises:
        DTypeError, ShapeError, NonFiniteError: ``inducing`` is not (U, d), float32 or float64, and finite.
        OptionError: Another argument is not one of those above.

    Example:
        >>> from lapgrad.models._deep.sparse_layer import SparseLayer
        >>> from lapgrad.models.kernels import RBF
        >>> layer = SparseLayer(torch.linspace(-1, 1, 5)[:, None], 3, RBF())
        >>> mean, variance = layer(torch.zeros(4, 7, 1))
        >>> tuple(mean.shape), tuple(variance.shape)
        ((4, 7, 3), (4, 7, 1))
        >>> layer.kl().item()  # q(u) starts as the prior
        0.0
    """

    inducing = unbounded()
    status: Tensor

    def __init__(
        self,
        inducing: Tensor,
        outputs: int,
        kernel: Kernel,
        *,
        whiten: bool = True,
        covariance: str = "shared",
        mean: nn.Module | None = None,
        jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        inducing = _checks.check_inputs("SparseLayer", inducing, "inducing")
        _check_options(outputs, kernel, covariance, mean, jitter)
        self.outputs, self.whiten, self.covariance, self.jitter = outputs, whiten, covariance, float(jitter)
        self.kernel, self.mean = kernel, mean
        self.inducing = inducing
        U = len(inducing)
        batch = (outputs,) if covariance == "separate" else ()
        self.q_mean = nn.Parameter(torch.zeros(U, outputs))
        self.q_log_deviations = nn.Parameter(torch.zeros(*batch, U))
        self.q_below = nn.Parameter(torch.zeros(*batch, U, U))
        self.register_buffer("status", torch.zeros((), dtype=torch.int32), persistent=False)
        self.to(dtype=inducing.dtype, device=inducing.device)
        if not whiten:  # q(u) starts as the prior, with and without whitening
            with torch.no_grad():
                self.set_posterior(root=self._factorise())

    @torch.no_grad()
    def set_posterior(self, mean: Tensor | None = None, root: Tensor | None = None) -> None:
        """Set q of the inducing variables, or of the whitened ones if the layer whitens.

        Args:
            mean: (U, k), or a shape that broadcasts to it; None: unchanged.
            root: (U, U), or (k, U, U) for separate covariances, lower triangular with a positive diagonal: S
                = root rootᵀ; None: unchanged.
        """
        if mean is not None:
            self.q_mean.copy_(mean)
        if root is not None:
            self.q_log_deviations.copy_(root.diagonal(dim1=-2, dim2=-1).log())
            self.q_below.copy_(root.tril(-1))

    def list_q_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return ``q_mean``, ``q_log_deviations`` and ``q_below``."""
        return self.q_mean, self.q_log_deviations, self.q_below

    def prepare(self) -> LayerFactors:
        """Return the factor of K_uu and q of the whitened inducing variables, for the other methods."""
        Lu, mean, root = self._factorise(), self.q_mean, self.build_root()
        if self.whiten:
            return LayerFactors(Lu, mean, root)
        U, k = mean.shape
        flat = root if root.dim() == 2 else root.transpose(0, 1).reshape(U, k * U)
        both = trsm(Lu, torch.cat([mean, flat], 1).to(ARITHMETIC)).to(mean.dtype)
        mean, flat = both.split([k, flat.shape[1]], 1)
        return LayerFactors(Lu, mean, flat if root.dim() == 2 else flat.view(U, k, U).transpose(0, 1))

    def forward(self, H: Tensor, prepared: LayerFactors | None = None) -> tuple[Tensor, Tensor]:
        """Return means and variances of q(f) at inputs.

        Args:
            H: (..., n, d).
            prepared: The result of ``prepare`` for the present parameters; None: computed here.

        Returns:
            mean (..., n, k), and variance (..., n, k), or (..., n, 1) when all outputs share it.
        """
        Lu, m, R = self.prepare() if prepared is None else prepared
        points = H.reshape(-1, H.shape[-1])
        A = trsm(Lu, self.kernel(self.inducing, points).to(ARITHMETIC))
        unexplained = self.kernel.diag(points) - A.square().sum(0)
        A = A.to(H.dtype)
        mean = multiply(A.mT, m)
        spread = trmm(R, A, transpose=True).square().sum(-2)
        # This variance is a difference of two nearly equal numbers: rounding can make it negative.
        variance = unexplained.clamp_min(0.0).to(H.dtype) + spread
        variance = variance[:, None] if variance.dim() == 1 else variance.mT
        mean, variance = (part.reshape(*H.shape[:-1], part.shape[-1]) for part in (mean, variance))
        return mean if self.mean is None else mean + self.mean(H), variance

    def predict_jointly(self, H: Tensor, prepared: LayerFactors | None = None) -> tuple[Tensor, Tensor]:
        """Return means of q(f) at inputs, and covariances of all pairs of inputs.

        Args:
            H: (*batch, n, d).
            prepared: The result of ``prepare`` for the present parameters; None: computed here.

        Returns:
            mean (*batch, n, k), and covariance: (*batch, n, n) when all outputs share it, else (*batch, k, n,
            n).
        """
        Lu, m, R = self.prepare() if prepared is None else prepared
        points = H.reshape(-1, H.shape[-1])
        A = trsm(Lu, self.kernel(self.inducing, points).to(ARITHMETIC))
        A = A.view(len(Lu), *H.shape[:-1]).movedim(0, -2)
        unexplained = (self.kernel(H) - syrk(A, transpose=True)).to(H.dtype)
        A = A.to(H.dtype)
        mean = multiply(A.mT, m)
        if R.dim() > 2:
            A, unexplained = A.unsqueeze(-3), unexplained.unsqueeze(-3)
        covariance = unexplained + syrk(trmm(R, A, transpose=True), transpose=True)
        return mean if self.mean is None else mean + self.mean(H), covariance

    def kl(self, prepared: LayerFactors | None = None) -> Tensor:
        """Return KL(q(u) || p(u)), summed over the outputs: a scalar.

        Args:
            prepared: The result of ``prepare`` for the present parameters; None: computed here if needed.
        """
        U, k = self.q_mean.shape
        if self.whiten:
            squares = (2.0 * self.q_log_deviations).exp().sum() + self.q_below.tril(-1).square().sum()
            logarithms, squared_mean = self.q_log_deviations.sum(), self.q_mean.square().sum()
        else:
            _, mean, root = self.prepare() if prepared is None else prepared
            squares = root.tril().square().sum()
            logarithms, squared_mean = sumlogdiag(root).sum(), mean.square().sum()
        of_covariances = 0.5 * squares - logarithms
        if self.covariance == "shared":
            of_covariances = k * of_covariances
        return of_covariances + 0.5 * (squared_mean - U * k)

    def check(self) -> None:
        """Raise if a factorisation of K_uu has failed since the last check. Waits for the device.

        Raises:
            NotPositiveDefiniteError: K_uu was not positive definite.
            NonFiniteError: K_uu had a NaN or an infinity.
        """
        code = int(self.status)
        if not code:
            return
        self.status.zero_()
        if code < 0:
            raise _exceptions.NonFiniteError(
                "SparseLayer: the kernel matrix of the inducing inputs contains NaN or infinity: a "
                "hyper-parameter or an inducing input has become infinite.",
                (),
                -code,
            )
        raise _exceptions.NotPositiveDefiniteError(
            f"SparseLayer: the kernel matrix of the inducing inputs, with jitter {self.jitter:.0e}, is not "
            f"positive definite: its leading minor of order {code} is not positive. Try a larger jitter.",
            (),
            code,
        )

    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor without tensors and ``mean``, in types that JSON knows."""
        return {
            "outputs": self.outputs,
            "kernel": self.kernel.config(),
            "whiten": self.whiten,
            "covariance": self.covariance,
            "jitter": self.jitter,
        }

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        modules: Mapping[str, nn.Module],
        mean: nn.Module | None = None,
    ) -> Self:
        """Return a layer of this description, with the shapes of ``tensors``, its ``state_dict``."""
        check_entries(config, _ENTRIES, "a layer")
        kernel = kernel_from_config(config["kernel"], part_of_state(tensors, "kernel."), modules)
        options = {name: config[name] for name in ("whiten", "covariance", "jitter")}
        return cls(tensors["raw_inducing"], config["outputs"], kernel, mean=mean, **options)

    def extra_repr(self) -> str:
        """Sizes and options."""
        U, d = self.inducing.shape
        q = f"{'whitened' if self.whiten else 'unwhitened'}, {self.covariance} covariance"
        return f"inputs={d}, outputs={self.outputs}, inducing={U}, {q}"

    def build_root(self) -> Tensor:
        """Return the factor of S, (U, U) or (k, U, U): lower triangular, with a positive diagonal."""
        return self.q_below.tril(-1) + torch.diag_embed(self.q_log_deviations.exp())

    def _factorise(self) -> Tensor:
        K = self.kernel(self.inducing.to(ARITHMETIC))
        Lu, info = potrf_ex(add_jitter(K, self.jitter))
        with torch.no_grad():
            self.status.copy_(torch.where(info != 0, info, self.status))
        if Lu.is_cpu:
            self.check()
        return Lu


def _check_options(
    outputs: int, kernel: Kernel, covariance: str, mean: nn.Module | None, jitter: float
) -> None:
    if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1:
        raise _exceptions.OptionError(f"SparseLayer: outputs must be a positive number, got {outputs!r}.")
    check_kernel("SparseLayer", kernel)
    if covariance not in COVARIANCES:
        raise _errors.unknown_option("SparseLayer", "covariance", covariance, COVARIANCES)
    if mean is not None and not isinstance(mean, nn.Module):
        raise _exceptions.OptionError(
            f"SparseLayer: mean must be a module or None, got {type(mean).__name__}."
        )
    if not 0.0 <= jitter < float("inf"):
        raise _exceptions.OptionError(f"SparseLayer: jitter must not be negative, got {jitter}.")
