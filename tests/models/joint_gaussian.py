"""All states and all observations of a series as one normal vector: the oracle for filters and smoothers."""

from __future__ import annotations

from typing import Any

import torch
from device import DEVICE
from torch import Tensor

from lapgrad._torch import lu as torch_lu


def at(X: Tensor, t: int) -> Tensor:
    """Return X at time t; X is one matrix, or one per time."""
    return X if X.dim() == 2 else X[t if X.shape[0] > 1 else 0]


def offset_at(x: Tensor | float | None, t: int, size: int) -> Tensor:
    if not isinstance(x, Tensor):
        return torch.full((size,), float(x or 0.0), dtype=torch.float64, device=DEVICE)
    return x if x.dim() == 1 else x[t if x.shape[0] > 1 else 0]


class JointGaussian:
    """One series y (T, p); matrices (n, n) or (T, n, n). Everything in float64, nothing recursive in y."""

    def __init__(
        self,
        y: Tensor,
        A: Tensor,
        B: Tensor,
        Q: Tensor,
        R: Tensor,
        m: Tensor,
        P: Tensor,
        state_offset: Any = None,
        observation_offset: Any = None,
    ) -> None:
        times, p = y.shape
        n = m.shape[-1]
        # h = mean + D e with e the first state and all innovations of states, stacked.
        means, rows = [m], [torch.eye(n, dtype=y.dtype, device=DEVICE)]
        for t in range(times - 1):
            means.append(at(A, t) @ means[-1] + offset_at(state_offset, t, n))
            rows.append(torch.cat((at(A, t) @ rows[-1], torch.eye(n, dtype=y.dtype, device=DEVICE)), -1))
        D = torch.stack([torch.nn.functional.pad(row, (0, n * times - row.shape[1])) for row in rows])
        D = D.reshape(times * n, times * n)
        noise = torch.block_diag(P, *[at(Q, t) for t in range(times - 1)])
        self.state_mean, self.state_covariance = torch.stack(means).reshape(-1), D @ noise @ D.mT
        H = torch.block_diag(*[at(B, t) for t in range(times)])
        self.H = H
        b = torch.cat([offset_at(observation_offset, t, p) for t in range(times)])
        self.mean = H @ self.state_mean + b
        self.covariance = H @ self.state_covariance @ H.mT + torch.block_diag(
            *[at(R, t) for t in range(times)]
        )
        self.y, self.n, self.p, self.times = y.reshape(-1), n, p, times

    def log_likelihood(self, until: int | None = None) -> Tensor:
        """Return the log density of the observations before ``until`` that are not missing."""
        seen = self._select_observed(self.times if until is None else until)
        if not len(seen):
            return torch.zeros((), dtype=torch.float64, device=DEVICE)
        covariance = self.covariance[seen][:, seen]
        return torch.distributions.MultivariateNormal(self.mean[seen], covariance).log_prob(self.y[seen])

    def condition(self) -> float:
        """Return the condition number of the covariance of the observed values; 1 if there are none."""
        seen = self._select_observed(self.times)
        return float(torch.linalg.cond(self.covariance.detach()[seen][:, seen])) if len(seen) else 1.0

    def states(self, until: int) -> tuple[Tensor, Tensor]:
        """Return mean (T, n) and covariance (T n, T n) of all states given observations before ``until``."""
        seen = self._select_observed(until)
        mean, covariance = self.state_mean, self.state_covariance
        if len(seen):
            cross = (self.H @ self.state_covariance)[seen]
            gain = torch_lu.solve(self.covariance[seen][:, seen], cross).mT
            mean = mean + gain @ (self.y - self.mean)[seen]
            covariance = covariance - gain @ cross
        return mean.reshape(self.times, self.n), covariance

    def block(self, covariance: Tensor, t: int, s: int | None = None) -> Tensor:
        """Return Cov(h[t], h[s])."""
        s = t if s is None else s
        return covariance[t * self.n : (t + 1) * self.n, s * self.n : (s + 1) * self.n]

    def _select_observed(self, until: int) -> Tensor:
        seen = ~self.y.isnan()
        seen[until * self.p :] = False
        return seen.nonzero()[:, 0]
