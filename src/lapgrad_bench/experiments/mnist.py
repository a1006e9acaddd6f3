"""MNIST: images of handwritten digits, from the files they are published in. Nothing is downloaded.

The files are found under the names they were published with (train-images-idx3-ubyte.gz), or under names that
say what they are (mnist_train_images.idx3.gz); unpacked ones, too.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lapgrad import _errors, _exceptions

PIXELS = 28 * 28
_HEADER, _MAGIC = 16, b"\x00\x00\x08\x03"
_SOURCE = (
    "MNIST (LeCun, Cortes and Burges), http://yann.lecun.com/exdb/mnist, mirrored at "
    "https://ossci-datasets.s3.amazonaws.com/mnist"
)
Part = Literal["train", "test"]
_NAMES: dict[Part, tuple[str, str]] = {
    "train": ("train-images-idx3-ubyte.gz", "mnist_train_images.idx3.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "mnist_test_images.idx3.gz"),
}

PREPROCESSINGS = ("unit", "standardised", "dequantised")


def load_images(part: Part, folder: str | os.PathLike[str] | None = None) -> Tensor:
    """Return all images of a part, (n, 784), uint8, 0 for paper and 255 for ink.

    Args:
        part: "train" (60,000 images) or "test" (10,000).
        folder: Where the files are; None: what LAPGRAD_DATA says, else the present folder.

    Raises:
        FileNotFoundError: The file is not there; the message says where it can be had.
        FileFormatError: It is there, and is something else.
    """
    path = _find_file(part, Path(folder or os.environ.get("LAPGRAD_DATA") or "."))
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _make_format_error(path, f"it cannot be unpacked ({error})") from error
    if content[:4] != _MAGIC or len(content) < _HEADER:
        raise _make_format_error(path, "it does not begin like a file of images (idx3, unsigned bytes)")
    count, rows, columns = (int.from_bytes(content[at : at + 4], "big") for at in (4, 8, 12))
    if (rows, columns) != (28, 28):
        raise _make_format_error(path, f"its images are {rows} x {columns}, 28 x 28 are wanted")
    if len(content) != _HEADER + count * PIXELS or not count:
        raise _make_format_error(
            path, f"it has {len(content)} bytes, {count} images take {_HEADER + count * PIXELS}: cut short?"
        )
    return torch.frombuffer(bytearray(content[_HEADER:]), dtype=torch.uint8).view(count, PIXELS)


@dataclass(frozen=True)
class Scaling:
    """The map y = (x - shift) / scale from pixels x in [0, 1] to the data of a model.

    Attributes:
        kind: One of ``PREPROCESSINGS``.
        shift: Subtracted from all pixels. scale: Divides all pixels.
    """

    kind: str
    shift: float
    scale: float

    @classmethod
    def of(cls, kind: str, train: Tensor) -> Scaling:
        """Return the map for training images (n, 784) of bytes.

        Args:
            kind: "unit": byte / 255. "standardised": then less the mean and divided by the standard deviation
                of all pixels of all images, two numbers. "dequantised": (byte + u) / 256, with u uniform
                between 0 and 1.
            train: The images.
        """
        if kind not in PREPROCESSINGS:
            raise _errors.unknown_option("mnist.Scaling", "kind", kind, PREPROCESSINGS)
        if kind != "standardised":
            return cls(kind, 0.0, 1.0)
        unit = train.to(torch.float64) / 255.0
        return cls(kind, float(unit.mean()), float(unit.std(correction=0)))

    def apply(self, images: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
        """Return images (n, 784) of bytes as data of a model; ``seed`` is that of the uniform noise u."""
        values = images.to(dtype)
        if self.kind == "dequantised":
            source = torch.Generator().manual_seed(seed)
            return (values + torch.rand(values.shape, dtype=dtype, generator=source)) / 256.0
        return (values / 255.0 - self.shift) / self.scale

    def undo(self, values: Tensor) -> Tensor:
        """Return data of a model as pixels, clamped to [0, 1]."""
        return (values * self.scale + self.shift).clamp(0.0, 1.0)

    @property
    def nats(self) -> float:
        """What is added to log p(y) to make it log p(x), the density of an image of pixels in [0, 1].

        Example:
            >>> Scaling("standardised", 0.13, 0.31).nats
            918.2...
        """
        return -PIXELS * math.log(self.scale)


def _find_file(part: Part, folder: Path) -> Path:
    names = [name for packed in _NAMES[part] for name in (packed, packed.removesuffix(".gz"))]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"{folder} has no file {' or '.join(_NAMES[part])}. Pass the folder that holds it (--data-dir), or "
        f"set LAPGRAD_DATA. The data are {_SOURCE}."
    )


def _make_format_error(path: Path, what: str) -> _exceptions.FileFormatError:
    return _exceptions.FileFormatError(f"{path}: {what}. The data are {_SOURCE}.")
