"""Components whose matrices are all learned, or computed by a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad.models import _checks, _sampling
from lapgrad.models._parameters import unbounded
from lapgrad.models._state_space.covariance import Covariance
from lapgrad.models._storage.entries import FLAGS, INTEGER, TEXT, Entry, check_entries
from lapgrad.models.components.base import Block, Component


class LinearDynamics(Component):
    """All matrices are learned: h[t+1] ~ N(A h[t], Q), seen as B h[t], h[0] ~ N(m, P).

    Args:
        states: How many.
        observations: How many values are seen at each time.
        generator: Source of the first B, or a seed; None: torch's own.

    Attributes:
        A, B, m: Learned directly.
        Q, P: Learned by their Cholesky factors (``Covariance``).
    """

    config_entries: ClassVar[Mapping[str, Entry]] = {"states": INTEGER, "observations": INTEGER}
    label = "dynamics"
    A = unbounded()
    B = unbounded()
    m = unbounded()

    def __init__(
        self, states: int, observations: int = 1, *, generator: torch.Generator | int | None = None
    ) -> None:
        super().__init__()
        if states < 1 or observations < 1:
            raise _exceptions.OptionError(
                f"LinearDynamics: states and observations must be positive, got {states} and {observations}."
            )
        self.states, self.observations, self.diffuse = states, observations, (False,) * states
        source = _checks.make_generator("LinearDynamics", generator, torch.device("cpu"))
        self.A = 0.9 * torch.eye(states, dtype=torch.float64)
        self.B = _sampling.draw_standard_normal(source, observations, states) / states**0.5
        self.m = torch.zeros(states, dtype=torch.float64)
        self.Q = Covariance(0.1 * torch.eye(states, dtype=torch.float64))
        self.P = Covariance(torch.eye(states, dtype=torch.float64))
        self._is_scaled = False

    def block(self, times: int) -> Block:
        """Return the parameters, which do not vary with time."""
        return Block(self.A[None], self.B[None], self.Q.matrix()[None], self.m, self.P.matrix())

    def prepare(self, variance: float) -> None:
        """Scale B so that states of the order of 1 give observations of this variance."""
        if not self._is_scaled:
            self.B = variance**0.5 * self.B.detach()
            self._is_scaled = True

    def config(self) -> dict[str, Any]:
        """Return the sizes."""
        return {"states": self.states, "observations": self.observations}


class Emitted(Component):
    """A component whose matrices are computed by a network, for example an LSTM, and vary with time.

    Args:
        module: ``module(inputs[:times])`` returns a ``Block``; its parameters are learned with the model.
        inputs: (rows, k), one row per time. Forecasts use the rows after the end of the series.
        states: How many states the block has.
        observations: How many values are seen at each time.
        diffuse: For each state, whether its prior is flat; None: all states have the prior of the block.
        name: The name of the network in ``LinearGaussianSSM.load(path, modules={name: network})``.
    """

    label = "emitted"
    inputs: Tensor

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensor,
        *,
        states: int,
        observations: int = 1,
        diffuse: tuple[bool, ...] | None = None,
        name: str = "module",
    ) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("inputs", _checks.check_inputs("Emitted", inputs, "inputs").detach().clone())
        self.states, self.observations, self.name = states, observations, name
        self.diffuse = (False,) * states if diffuse is None else tuple(diffuse)

    def block(self, times: int) -> Block:
        """Return the output of the network for the first inputs."""
        if times > len(self.inputs):
            raise _exceptions.ShapeError(
                f"Emitted: inputs has {len(self.inputs)} rows, {times} are needed: as many as the series "
                f"and the forecast have steps."
            )
        block = self.module(self.inputs[:times])
        if not isinstance(block, Block):
            raise _exceptions.OptionError(
                f"Emitted: the network must return a Block, got {type(block).__name__}."
            )
        return block

    def config(self) -> dict[str, Any]:
        """Sizes and the name of the network."""
        return {
            "states": self.states,
            "observations": self.observations,
            "diffuse": list(self.diffuse),
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a component with the network that was passed to ``load``."""
        wanted = {"states": INTEGER, "observations": INTEGER, "diffuse": FLAGS, "name": TEXT}
        check_entries(config, wanted, f"the component {cls.__name__}")
        name = config["name"]
        if name not in modules:
            raise _exceptions.OptionError(
                f'load: the network "{name}" is missing: pass modules={{"{name}": ...}}.'
            )
        return cls(modules[name], tensors["inputs"], **{**config, "diffuse": tuple(config["diffuse"])})
