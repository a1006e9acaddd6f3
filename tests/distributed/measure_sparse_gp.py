"""How much faster an evaluation of a sparse Gaussian process is on several processes; no test.

    torchrun --nproc-per-node 2 tests/distributed/measure_sparse_gp.py --rows 1000000

Rank 0 evaluates ``sgp_nll`` with its gradient on all rows, while the others wait; then all of them do so on
their rows. The last figure is what the messages of an evaluation take by themselves.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from lapgrad.distributed import Group, init_group, shard
from lapgrad.fused import sgp_nll
from lapgrad.fused._sgp.reduction import count_numbers
from lapgrad.models.kernels import RBF

#: A lengthscale in units of the deviation of the inputs at which rounding errors stay below 1e-11.
LENGTHSCALE = 1.5


def evaluate(group: Group | None, Z: Tensor, X: Tensor, Y: Tensor) -> tuple[float, list[Tensor]]:
    """Return the seconds that value and gradient take, and both."""
    kernel = RBF(lengthscale=[LENGTHSCALE] * X.shape[1]).double()
    Z, noise = Z.clone().requires_grad_(), torch.tensor(0.1, dtype=X.dtype, requires_grad=True)
    begin = time.perf_counter()
    value = sgp_nll(kernel, Z, X, Y, noise, group=group)
    gradients = torch.autograd.grad(value, [Z, noise, *kernel.parameters()])
    return time.perf_counter() - begin, [value.detach(), *gradients]


def measure_messages(group: Group, inducing: int, gradient: int) -> float:
    """Return the seconds that the two sums of an evaluation take if all ranks are ready."""
    sums = torch.zeros(count_numbers(inducing, 1)), torch.zeros(gradient)
    group.wait_for_all()
    begin = time.perf_counter()
    for _ in range(10):
        for numbers in sums:
            group.sum_tensors([numbers])
    return (time.perf_counter() - begin) / 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--inducing", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    group, source = init_group(), torch.Generator().manual_seed(0)
    X = torch.randn(options.rows, options.columns, dtype=torch.float64, generator=source)
    Y = torch.sin(X.sum(1, keepdim=True))
    Z, own = X[: options.inducing], shard(X, Y, group=group)
    evaluate(None, Z, X[:20_000], Y[:20_000])
    if group.is_first:
        alone, expected = evaluate(None, Z, X, Y)
    group.wait_for_all()
    together, found = evaluate(group, Z, *own)
    messages = measure_messages(group, options.inducing, Z.numel() + options.columns + 3)
    if group.is_first:
        pairs = zip(found, expected, strict=True)
        worst = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
        print(f"{options.rows} rows, {options.inducing} inducing inputs: {alone:.2f} s in one process")
        print(
            f"{together:.2f} s in {group.size}: {alone / together:.2f} times faster; differences {worst:.0e}"
        )
        print(f"messages {1e3 * messages:.1f} ms, {100 * messages / together:.2f} % of an evaluation")
    group.close()


if __name__ == "__main__":
    main()
