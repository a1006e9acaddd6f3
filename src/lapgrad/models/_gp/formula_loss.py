"""The criterion of exact Gaussian process regression by the formula of its kernel, where a device has one."""

from __future__ import annotations

from torch import Tensor, nn

from lapgrad._torch.private import skips_dispatcher
from lapgrad.distributed.blockcyclic.grid import ProcessGrid
from lapgrad.fused._gp_nll import compute_gp_nll
from lapgrad.fused._kernel_matrix import Formula, has_formulas
from lapgrad.fused._sgp.evaluation import Evaluation
from lapgrad.fused.mvn_nll import mvn_nll
from lapgrad.models._gp.diagonal import add_to_diagonal
from lapgrad.models.kernels._blocks import map_tree
from lapgrad.models.kernels.base import Kernel, covariance, find_formula, get_scalars_like

#: From this many observations on the host launches kernels faster than the GPU runs them, so a recording
#: would save no time, only hold memory.
_LARGEST_RECORDED = 8192


class ReplayableLikelihood(nn.Module):
    """A mixin for exact Gaussian processes whose loss is a formula, and can be recorded as a CUDA graph.

    Attributes:
        evaluation: Where checks of the loss go while a graph is recorded.
        criterion: What is learned; "leave-one-out" is not recorded.
        distributed: The grid of processes over which the covariance is spread; None: one process.
    """

    X: Tensor
    kernel: Kernel
    evaluation: Evaluation
    criterion: str
    distributed: ProcessGrid | None

    @property
    def replayable(self) -> bool:
        """Whether a fit on a GPU may record the loss as a CUDA graph, and replay it.

        It may if model and kernel consist of classes of lapgrad and torch (code of users may do something
        else in each evaluation), the GPU knows the formula of the kernel, and observations are not too many.
        """
        if self.criterion == "leave-one-out" or len(self.X) > _LARGEST_RECORDED:
            return False
        if self.distributed is not None:  # processes wait for each other in each evaluation
            return False
        if not all(type(part).__module__.startswith(("lapgrad.", "torch.")) for part in self.modules()):
            return False
        return self.kernel.find_formulas(self.X, self.X[:0]) is not None


def compute_likelihood(
    evaluation: Evaluation, kernel: Kernel, inputs: Tensor, noise: Tensor, residuals: Tensor
) -> Tensor:
    """Return -Σ log N(r | 0, K + noise), (*batch), by the formula of the kernel where a device has one.

    Args:
        evaluation: Where checks of the loss go.
        kernel: Gives K at the inputs.
        inputs: (*batch, n, d).
        noise: A scalar, or (*batch, n).
        residuals: (*batch, n, k), whose columns are r.
    """
    value = None
    if inputs.dim() == 2:
        value = compute_loss_by_formula(evaluation, kernel, inputs, noise, residuals)
    if value is None:
        A = covariance(kernel, inputs, noise, lower_only=True)
        value = mvn_nll(A, residuals, overwrite=True)
    return value


def compute_loss_by_formula(
    evaluation: Evaluation, kernel: Kernel, inputs: Tensor, noise: Tensor, residuals: Tensor
) -> Tensor | None:
    """Return -Σ log N(r | 0, K + noise) over the columns r of the residuals; None: no device kernel can.

    Args:
        evaluation: Passed on to ``compute_gp_nll``.
        kernel: Gives K at the inputs.
        inputs: (n, d).
        noise: A scalar, or (n,).
        residuals: (n, k).
    """
    if not residuals.numel() or not has_formulas(inputs):
        return None
    scalars, F = get_scalars_like(kernel, inputs), kernel.features(inputs)
    formula = find_formula(kernel, inputs, scalars, F)
    if formula is None or not skips_dispatcher((noise, residuals)):
        return None
    known = formula

    def compute_composite(given: Formula, noise: Tensor, residuals: Tensor) -> Tensor:
        new = {id(old): tensor for old, tensor in zip(known.tensors, given.tensors, strict=True)}
        own, features = (map_tree(lambda tensor: new.get(id(tensor), tensor), tree) for tree in (scalars, F))
        K = kernel.matrix(own, features, None)
        return mvn_nll(add_to_diagonal(K, noise), residuals, overwrite=True)

    return compute_gp_nll(evaluation, formula, noise, residuals, compute_composite)
