"""Sparse Gaussian process on several processes: rows of a memory-mapped file, learned from in chunks."""

# %% [markdown]
# # A sparse Gaussian process on several processes
#
# The bound of a sparse Gaussian process with $U$ inducing inputs is a function of sums over the data. Each
# process passes over its own rows, and they exchange $U^2/2$ numbers, however many rows there are. The
# same program runs
#
#     python distributed_sparse_gp.py                                  # in one process
#     torchrun --nproc-per-node 2 distributed_sparse_gp.py             # in two, on one machine
#     torchrun --nproc-per-node 2 --max-restarts 3 distributed_sparse_gp.py --checkpoint fit.pt
#
# and all of them learn the same parameters.

# %%
import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt

from lapgrad.distributed import Checkpoint, init_group, shard
from lapgrad.models import SparseGPRegression

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--quick", action="store_true", help="few rows: seconds")
parser.add_argument("--rows", type=int, help="rows of made-up data [100000]")
parser.add_argument("--inducing", type=int, help="inducing inputs [100]")
parser.add_argument("--checkpoint", type=Path, help="file that a restarted program goes on from")
parser.add_argument("--output", type=Path, default=Path(), help="folder for the figures [.]")
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## The processes
#
# `init_group` finds the other processes by the environment that `torchrun` (or Slurm) has set. Without it,
# this process is the only one.

# %%
group = init_group()
n = options.rows or (2000 if options.quick else 100_000)
U = options.inducing or (20 if options.quick else 100)

# %% [markdown]
# ## The data
#
# Rows are in two files, X (n, 3) and y (n,), in float32. The first process makes them up. In a cluster they
# would be on a disk that all machines see.

# %%
folder = Path(group.share_object(tempfile.mkdtemp() if group.is_first else ""))
if group.is_first:
    generator = np.random.default_rng(0)
    X = generator.uniform(-3.0, 3.0, (n, 3)).astype(np.float32)
    y = np.sin(X[:, 0]) + 0.5 * np.cos(X[:, 1]) + 0.3 * X[:, 2]
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", (y + 0.1 * generator.standard_normal(n)).astype(np.float32))
group.wait_for_all()

# %% [markdown]
# ## The model
#
# `shard` gives each process its rows, without reading them. The model reads them in chunks, several times
# in each evaluation, and never keeps them: memory is $3U^2$ numbers and a few chunks.

# %%
X, y = shard(folder / "X.npy", folder / "y.npy", group=group)
model = SparseGPRegression(X, y, inducing=U, generator=0, group=group)
if group.is_first:
    print(f"process {group.rank} of {group.size}: {len(X)} of {n} rows")

# %% [markdown]
# ## Learning
#
# Adam can be resumed: with `--checkpoint` the parameters and the state of the optimiser are written every
# 10 steps. `torchrun --max-restarts` starts all processes again if one of them dies, and they go on from
# there to the same result.

# %%
steps, rate = (30, 0.1) if options.quick else (200, 0.05)
if options.checkpoint is None:
    result = model.fit("adam", steps=steps, lr=rate, progress=not options.quick)
else:
    checkpoint = Checkpoint(options.checkpoint, model)
    resume = checkpoint.load()
    result = model.fit("adam", steps=steps, lr=rate, resume=resume, callback=checkpoint)

# %% [markdown]
# After `fit` each process can predict by itself. Only the first one draws.

# %%
if group.is_first:
    points = torch.zeros(200, 3)
    points[:, 0] = torch.linspace(-3.0, 3.0, 200)
    mean, variance = model.predict(points)
    truth = torch.sin(points[:, 0]) + 0.5
    error = (mean - truth).square().mean().sqrt()
    print(f"bound of -log p(y) per row: {result.loss / n:.4f}; RMSE along a line: {error:.3f}")
    noise = (model.noise_var.sqrt() * model.y_scale).item()
    print(f"deviation of the noise: {noise:.3f} (0.1 was added); {result.seconds:.1f} s")
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    axes.plot(points[:, 0], truth, color="#999999", label="truth")
    axes.plot(points[:, 0], mean, color="#1f5a99", label="mean")
    deviation = variance.sqrt()
    band = (mean - 2 * deviation, mean + 2 * deviation)
    axes.fill_between(points[:, 0], *band, alpha=0.2, color="#1f5a99", label="two deviations")
    axes.set(xlabel="first input, the others 0", ylabel="f", title=f"{n} rows, {U} inducing inputs")
    axes.legend()
    figure.savefig(options.output / "distributed_sparse_gp.png", dpi=120)
    shutil.rmtree(folder)
group.close()
