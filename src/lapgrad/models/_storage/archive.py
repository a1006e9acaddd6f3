"""Files of tensors, numbers and text that contain no code, and in which every damage is noticed.

An archive is the zip file that ``torch.save`` writes, and ends with a comment, which zip files may have::

    lapgrad sha256 <64 hexadecimal digits>

The digits are the SHA-256 checksum of all bytes of the file before them. Any changed or missing byte is
noticed, also where ``torch.load`` does not read, and nothing is unpacked before the checksum has been
compared. ``torch.load(path, weights_only=True)`` reads archives as well.

Earlier versions wrote the zip file without the comment. Such a file is checked by the CRC-32 checksums that
zip files have for each of their entries; ``torch.load`` does not compare them.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, NamedTuple

import torch
from torch.serialization import default_restore_location

from lapgrad import _exceptions

_MARK = b"lapgrad sha256 "
_DIGITS = 64
_SEAL_SIZE = len(_MARK) + _DIGITS
_ZIP_START = b"PK\x03\x04"
#: The last record of a zip file without a comment: 22 bytes, the last two of them the length of the comment.
_ZIP_END, _ZIP_END_SIZE = b"PK\x05\x06", 22


class _MissingDeviceError(Exception):
    """This machine does not have the device that a tensor is to go to."""


class Archive(NamedTuple):
    """The content of a file.

    Attributes:
        content: The dictionary that was written.
        sealed: Whether the file ends with a checksum; files of earlier versions do not.
    """

    content: dict[str, Any]
    sealed: bool


def write_archive(path: str | PathLike[str], content: Mapping[str, Any]) -> None:
    """Write ``content`` into a file; one that is there is replaced, and only when the new one is complete.

    Args:
        path: The file.
        content: Tensors, numbers, text, and lists, tuples and dictionaries of them.

    Raises:
        OSError: The file cannot be written. An existing file is unchanged.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(path.parent))
    # A name of its own, because several processes may write the same file.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(partial, "x+b") as file:
            torch.save(dict(content), file)
            _seal(file)
            # The name must not point to the new file before its content is on the disk.
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_archive(path: str | PathLike[str], what: str, device: torch.device | str | None = None) -> Archive:
    """Read a file that ``write_archive`` has written. No code that is in it runs.

    Args:
        path: The file.
        what: What the file should be, for messages: "a file of a lapgrad model".
        device: Where the tensors go; None: to the device they were saved from.

    Raises:
        FileFormatError: The file is damaged, or is something else.
        DeviceError: The tensors were on a device that this machine does not have.
        OSError: The file cannot be opened or read.
    """
    place = None if device is None else torch.device(device)
    with open(path, "rb") as file:
        sealed = _has_seal(file)
        if sealed:
            _check_seal(file, path)
            _check_start(file, path, what)
            return Archive(_unpack(file, path, what, place), sealed)
        # The whole file is read first, so that an error of the disk is not reported as a damaged file.
        file.seek(0)
        whole = io.BytesIO(file.read())
    _check_start(whole, path, what)
    _check_entries(whole, path)
    return Archive(_unpack(whole, path, what, place), sealed)


def _seal(file: io.BufferedRandom) -> None:
    """Append the comment with the checksum to a zip file that has no comment."""
    file.seek(-2, os.SEEK_END)
    file.write(_SEAL_SIZE.to_bytes(2, "little") + _MARK)
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0, os.SEEK_END)
    file.write(digest.encode())


def _has_seal(file: BinaryIO) -> bool:
    size = file.seek(0, os.SEEK_END)
    if size < _SEAL_SIZE:
        return False
    file.seek(-_SEAL_SIZE, os.SEEK_END)
    return file.read(len(_MARK)) == _MARK


def _check_seal(file: BinaryIO, path: str | PathLike[str]) -> None:
    """Raise if the checksum differs from that of the bytes before it."""
    left = file.seek(-_DIGITS, os.SEEK_END)
    stored = file.read()
    file.seek(0)
    digest = hashlib.sha256()
    while left and (piece := file.read(min(left, 2**20))):
        digest.update(piece)
        left -= len(piece)
    if digest.hexdigest().encode() != stored:
        raise _exceptions.FileFormatError(
            f"{path} is damaged: the checksum does not match, so the content is not what was saved."
        )


def _check_start(file: BinaryIO, path: str | PathLike[str], what: str) -> None:
    file.seek(0)
    start = file.read(len(_ZIP_START))
    if not start:
        raise _exceptions.FileFormatError(f"{path} is not {what}: it is empty.")
    if start != _ZIP_START:
        raise _exceptions.FileFormatError(
            f"{path} is not {what}: it does not start like one, with {_ZIP_START!r}."
        )


def _check_entries(file: io.BytesIO, path: str | PathLike[str]) -> None:
    """Raise if a zip file without a comment is not complete, or an entry does not have its CRC-32."""
    end = file.getbuffer()[-_ZIP_END_SIZE:].tobytes()
    if not end.startswith(_ZIP_END) or not end.endswith(b"\0\0"):
        raise _exceptions.FileFormatError(
            f"{path} is damaged: it is truncated, or its last bytes were changed: the checksum at the end is "
            f"missing."
        )
    try:
        with zipfile.ZipFile(file) as entries:
            bad = entries.testzip()
    except Exception as error:  # zlib.error, struct.error and others, depending on the bytes that are wrong
        raise _exceptions.FileFormatError(
            f"{path} is damaged: its list of entries is broken: {error}"
        ) from error
    if bad is not None:
        raise _exceptions.FileFormatError(
            f"{path} is damaged: the checksum of the entry {bad!r} does not match."
        )


def _unpack(
    file: BinaryIO, path: str | PathLike[str], what: str, device: torch.device | None
) -> dict[str, Any]:
    def place_storage(storage: Any, location: str) -> Any:
        try:
            return default_restore_location(storage, location if device is None else str(device))
        except RuntimeError as error:
            raise _MissingDeviceError from error

    file.seek(0)
    try:
        content = torch.load(file, map_location=place_storage, weights_only=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except UnpicklingError as error:
        raise _exceptions.FileFormatError(
            f"{path} is not {what}: it holds something else than tensors, numbers and text, which is not "
            f"read because it could run code."
        ) from error
    except _MissingDeviceError as error:
        raise _exceptions.DeviceError(
            f"{path}: the tensors cannot go to the device that was asked for, or that they were saved "
            f"from, because it is not here: pass device='cpu'."
        ) from error
    except Exception as error:
        raise _exceptions.FileFormatError(f"{path} is not {what}: it cannot be unpacked: {error}") from error
    if not isinstance(content, dict):
        raise _exceptions.FileFormatError(f"{path} is not {what}: it holds a {type(content).__name__}.")
    return content
