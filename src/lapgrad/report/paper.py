"""Figures of M. Seeger et al., Auto-Differentiating Linear Algebra (arXiv:1710.08717), beside ours.

Those of its Table 1 are in `lapgrad.experiments.paper`.
"""

from __future__ import annotations

TABLE2 = {
    "5": {"SV-DGP": 313.07, "VAE-DGP": 301.67},
    "10-50": {"SV-DGP": 705.03, "VAE-DGP": 674.86},
    "5-20-50": {"SV-DGP": 724.83, "VAE-DGP": 723.65},
}
"""Log likelihood of test points of MNIST by architecture; SV-DGP is the paper's model."""

FIGURE2 = {
    "MXNet, GPU": ((50, 0.015), (3200, 1.49)),
    "MXNet, CPU": ((50, 0.035), (3200, 4.63)),
    "GPy": ((50, 1.070), (3200, 13.67)),
}
"""Seconds of criterion and gradient of a sparse Gaussian process on power, by its inducing inputs."""
