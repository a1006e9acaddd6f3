"""The base class of components of time series, and sums of components."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from lapgrad import _exceptions
from lapgrad._torch.layout import broadcast_shapes
from lapgrad.models._parameters import ParametrisedModule, Value
from lapgrad.models._state_space.curved_block import Array, CurvedBlock
from lapgrad.models._state_space.starts import SeriesFacts
from lapgrad.models._storage.entries import PART, PARTS, TEXT, Entry, check_entries


class Block(NamedTuple):
    """The matrices of a component with n states and p observations.

    Leading dimensions are (*batch, T), with T = 1 for matrices that do not vary with time; the prior has no
    T. For the letters see ``lapgrad.fused.kalman_nll``.

    Attributes:
        A: (*batch, T, n, n).
        B: (*batch, T, p, n).
        Q: (*batch, T, n, n).
        m: (*batch, n).
        P: (*batch, n, n); rows and columns of diffuse states are not used.
        state_offset: (*batch, T, n), or None: zero.
        observation_offset: (*batch, T, p), or None: zero.
        R: (*batch, T, p, p), noise that comes with the component, besides that of the model; or None.
    """

    A: Tensor
    B: Tensor
    Q: Tensor
    m: Tensor
    P: Tensor
    state_offset: Tensor | None = None
    observation_offset: Tensor | None = None
    R: Tensor | None = None


class Component(ParametrisedModule, abc.ABC):
    """Base of all components.

    Attributes:
        states: How many states it has.
        observations: How many values it explains at each time.
        diffuse: For each state, whether its prior is flat: nothing is known before the first observation.
        label: What the component is called in the names of its hyper-parameters, such as
            ``seasonal.variance``.
        curved: Names of the hyper-parameters, other than ``variance``, that ``curve`` is a function of.
        config_entries: The entries of ``config``, which ``from_config`` checks.
    """

    _kinds: ClassVar[dict[str, type[Component]]] = {}
    config_entries: ClassVar[Mapping[str, Entry]] = {}
    states: int
    observations: int = 1
    label: str = "component"
    diffuse: tuple[bool, ...]
    curved: tuple[str, ...] = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._kinds[cls.__name__] = cls

    @classmethod
    def known(cls, name: str) -> type[Component]:
        """Return the component class of that name.

        Raises:
            FileFormatError: There is none.
        """
        if name not in cls._kinds:
            raise _exceptions.FileFormatError(
                f"component: there is no component {name}; import the module that defines it first."
            )
        return cls._kinds[name]

    @abc.abstractmethod
    def block(self, times: int) -> Block:
        """Return the matrices for the times 0, ..., times - 1."""

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices for times with these gaps: (T,), from each time to the next.

        Raises:
            OptionError: The component is defined for times at regular steps only.
        """
        raise _exceptions.OptionError(
            f"{type(self).__name__}: this component needs times at regular steps, which the data do not have."
        )

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor that are no tensors, in types that JSON knows."""

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return a component of this description; the values of its parameters are filled in later."""
        check_entries(config, cls.config_entries, f"the component {cls.__name__}")
        return cls(**config)

    def curve(self, raw: Array) -> CurvedBlock | None:
        """Return the matrices at raw values (k,) of the ``curved`` hyper-parameters; None: by autograd."""
        return None

    def prepare(self, variance: float) -> None:
        """Choose the hyper-parameters that the constructor got as None, for data of this variance."""

    def find_degeneracy(self) -> str | None:
        """Return why the likelihood has no maximum near the present hyper-parameters; None: it may have."""
        return None

    def start_from(self, data: SeriesFacts) -> None:
        """Choose the hyper-parameters that the constructor got as None; by default with ``prepare``."""
        self.prepare(data.variance)

    def list_periods(self) -> list[float]:
        """Return the periods of seasons, in steps."""
        return []

    def check_index(self, who: str, index: Any) -> None:
        """Raise an OptionError if the inputs of the component have other labels than the series."""

    def __repr__(self) -> str:
        """Return the class and the values of the hyper-parameters."""
        shown = {**self.config(), **self._list_values()}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def _list_values(self) -> dict[str, str]:
        values = self.hyperparameters()
        return {
            name: f"{value.item():.4g}" if value.numel() == 1 else f"{tuple(value.shape)}"
            for name, value in values.items()
            if value.numel() and (value.numel() == 1 or value.dim() != 1 or len(value) > 8)
        } | {
            name: "[" + ", ".join(f"{number:.4g}" for number in value.tolist()) + "]"
            for name, value in values.items()
            if value.dim() == 1 and 1 < len(value) <= 8
        }

    def __add__(self, other: Component) -> Sum:
        return Sum(self, other)

    def _set_or_defer(self, names: Mapping[str, Value | None]) -> None:
        """Set hyper-parameters; those that are None are left to ``prepare``."""
        self._left_open = tuple(name for name, value in names.items() if value is None)
        for name, value in names.items():
            setattr(self, name, 1.0 if value is None else value)

    def _set_deferred(self, values: Mapping[str, float]) -> None:
        for name in self._left_open:
            setattr(self, name, values[name])
        self._left_open = ()


def describe_component(component: Component) -> dict[str, Any]:
    """Return class and arguments of a component, in types that JSON knows."""
    return {"kind": type(component).__name__, "config": component.config()}


def make_component(
    description: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
) -> Component:
    """Return the component that ``describe_component`` has described; ``tensors`` is its ``state_dict``."""
    check_entries(description, {"kind": TEXT, "config": PART}, "a component")
    kind = Component.known(description["kind"])
    return kind.from_config(description["config"], tensors, modules)


class Sum(Component):
    """Components added up: their states side by side.

    Written ``component + component``; the observation is the sum of those of the components.
    """

    def __init__(self, *parts: Component) -> None:
        super().__init__()
        flat = [inner for part in parts for inner in (part.components if isinstance(part, Sum) else [part])]
        if not flat or not all(isinstance(part, Component) for part in flat):
            raise _exceptions.OptionError("Sum: parts must be components, and at least one.")
        if len({part.observations for part in flat}) > 1:
            raise _exceptions.ShapeError("Sum: all components must explain the same number of observations.")
        self.parts = nn.ModuleList(flat)
        self.states = sum(part.states for part in flat)
        self.observations = flat[0].observations
        self.diffuse = tuple(flag for part in flat for flag in part.diffuse)

    @property
    def components(self) -> list[Component]:
        """The components that are added up."""
        return [part for part in self.parts if isinstance(part, Component)]

    def __repr__(self) -> str:
        """Return the components with a plus between them."""
        return " + ".join(map(repr, self.components))

    @property
    def labels(self) -> list[str]:
        """The names of the components: their labels, with a number from the second of a kind on."""
        return _number_labels([part.label for part in self.components])

    def block(self, times: int) -> Block:
        """Return the matrices of all parts, as blocks on the diagonal."""
        return self._join([part.block(times) for part in self.components])

    def block_between(self, gaps: Tensor) -> Block:
        """Return the matrices of all parts, as blocks on the diagonal."""
        return self._join([part.block_between(gaps) for part in self.components])

    @staticmethod
    def _join(blocks: list[Block]) -> Block:
        return Block(
            _stack_diagonally([block.A for block in blocks]),
            _concatenate([block.B for block in blocks]),
            _stack_diagonally([block.Q for block in blocks]),
            _concatenate([block.m for block in blocks], 1),
            _stack_diagonally([block.P for block in blocks]),
            _join_offsets([block.state_offset for block in blocks], [block.m for block in blocks]),
            _sum_present([block.observation_offset for block in blocks]),
            _sum_present([block.R for block in blocks]),
        )

    def find_degeneracy(self) -> str | None:
        """Return what the first part returns that is not None."""
        return next(filter(None, (part.find_degeneracy() for part in self.components)), None)

    def start_from(self, data: SeriesFacts) -> None:
        """Choose the hyper-parameters of all parts that the constructors got as None."""
        for part in self.components:
            part.start_from(data)

    def list_periods(self) -> list[float]:
        """Return the periods of all parts."""
        return [period for part in self.components for period in part.list_periods()]

    def check_index(self, who: str, index: Any) -> None:
        """Check the inputs of all parts."""
        for part in self.components:
            part.check_index(who, index)

    def config(self) -> dict[str, Any]:
        """Return the descriptions of the parts."""
        return {"parts": [describe_component(part) for part in self.components]}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]
    ) -> Self:
        """Return the sum of the described parts."""
        check_entries(config, {"parts": PARTS}, "a sum of components")
        parts = []
        for position, part in enumerate(config["parts"]):
            prefix = f"parts.{position}."
            own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            parts.append(make_component(part, own, modules))
        return cls(*parts)


def _number_labels(labels: list[str]) -> list[str]:
    counts: dict[str, int] = {}
    names = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        names.append(label if counts[label] == 1 else f"{label}_{counts[label]}")
    return names


def _broadcast_leading(tensors: list[Tensor], own: int = 2) -> list[Tensor]:
    shapes = [tensor.shape[:-own] for tensor in tensors]
    if all(shape == shapes[0] for shape in shapes):
        return tensors  # comparing sizes takes longer than everything else here
    leading = broadcast_shapes(*shapes)
    return [tensor.expand(*leading, *tensor.shape[-own:]) for tensor in tensors]


def _concatenate(tensors: list[Tensor], own: int = 2) -> Tensor:
    return torch.cat(_broadcast_leading(tensors, own), -1)


def _stack_diagonally(tensors: list[Tensor]) -> Tensor:
    if all(tensor.dim() == 2 for tensor in tensors):
        return torch.block_diag(*tensors)
    if all(tensor.shape[:-2] == (1,) for tensor in tensors):
        return torch.block_diag(*[tensor[0] for tensor in tensors])[None]
    total, before, rows = sum(tensor.shape[-1] for tensor in tensors), 0, []
    for tensor in _broadcast_leading(tensors):
        n = tensor.shape[-1]
        rows.append(torch.nn.functional.pad(tensor, (before, total - before - n)))
        before += n
    return torch.cat(rows, -2)


def _join_offsets(offsets: list[Tensor | None], like: list[Tensor]) -> Tensor | None:
    if all(offset is None for offset in offsets):
        return None
    filled = [
        mean.new_zeros(1, mean.shape[-1]) if offset is None else offset
        for offset, mean in zip(offsets, like, strict=True)
    ]
    return _concatenate(filled, 1)


def _sum_present(tensors: list[Tensor | None]) -> Tensor | None:
    found = [tensor for tensor in tensors if tensor is not None]
    return sum(found[1:], found[0]) if found else None
