"""Draws digits: samples of a deep Gaussian process, and its reconstructions of test images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lapgrad.models import DeepGP
from lapgrad_bench.experiments.mnist import Scaling

_ACROSS, _DOWN = 16, 8


def draw_digits(model: DeepGP, test: Tensor, scaling: Scaling, title: str, path: Path) -> None:
    """Write the picture.

    Args:
        model: A model of images.
        test: (n, 784), images as the model sees them, of which the first are shown.
        scaling: How they were made from pixels.
        title: Above the picture.
        path: Where it goes; the name says the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = test[:_ACROSS]
    rows = {"test images": shown, "from their latent variables": model.reconstruct(shown)}
    if len(model.widths) > 1:
        rows[f"from the {model.widths[0]} at the top"] = model.reconstruct(shown, layer=0)
    figure = Figure(figsize=(9.6, 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=[len(rows), _DOWN])
    figure.suptitle(title, fontsize=12, fontweight="bold")
    _arrange_tiles(above, torch.cat(list(rows.values())), len(rows), scaling)
    above.set_title(", ".join(rows) + " (rows)", fontsize=10, loc="left")
    samples = model.sample(_ACROSS * _DOWN, generator=0)
    _arrange_tiles(below, samples, _DOWN, scaling)
    below.set_title("samples (without the noise of pixels)", fontsize=10, loc="left")
    figure.savefig(path, dpi=150)


def _arrange_tiles(axes: Any, images: Tensor, rows: int, scaling: Scaling) -> None:
    """Return images (n, 784) as one image: side by side, with lines between them."""
    pixels = scaling.undo(images).float().cpu().view(-1, 28, 28)
    framed = torch.nn.functional.pad(pixels, (0, 2, 0, 2), value=0.15).view(rows, -1, 30, 30)
    axes.imshow(framed.transpose(1, 2).reshape(rows * 30, -1).numpy(), cmap="gray_r", vmin=0.0, vmax=1.0)
    axes.set_axis_off()
