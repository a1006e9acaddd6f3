"""Summaries of models: their hyper-parameters as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lapgrad.models._parameters import ParametrisedModule, get_all_bounds, get_priors

_NUMBERS_SHOWN = 6
"""Numbers of one hyper-parameter that a table shows; of longer ones it shows the shape."""


class Summary(str):
    """Text of several lines that an interpreter shows as it is."""

    def __repr__(self) -> str:
        return str(self)


def summarise(model: ParametrisedModule, title: str, facts: dict[str, str]) -> Summary:
    """Return a title, facts, and a table of all hyper-parameters: value, learned or fixed, bounds, prior."""
    rows = [("hyper-parameter", "value", "", "bounds", "prior")]
    for path, module, descriptor in model.iterate_hyperparameters():
        bounds, prior = get_all_bounds(module).get(descriptor.name), get_priors(module).get(descriptor.name)
        rows.append(
            (
                path,
                _format_value(getattr(module, descriptor.name).detach()),
                "learned" if module.get_parameter(descriptor.raw_name).requires_grad else "fixed",
                "" if bounds is None else f"({bounds.low:.4g}, {bounds.high:.4g})",
                "" if prior is None else str(prior),
            )
        )
    width = max((len(name) for name in facts), default=0)
    lines = [title, "=" * len(title), *(f"{name:<{width}}  {value}" for name, value in facts.items()), ""]
    return Summary("\n".join([*lines, *_format_table(rows)]))


def _format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _format_value(value: Tensor) -> str:
    if value.numel() > _NUMBERS_SHOWN:
        return f"{' x '.join(map(str, value.shape))} numbers"
    numbers = [f"{number:.4g}" for number in value.flatten().tolist()]
    return numbers[0] if not value.dim() else f"[{', '.join(numbers)}]"
