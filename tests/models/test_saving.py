"""Files of models: sound ones come back as they were, other files are refused, and none runs code."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_models import (
    MODELS,
    Y_ONE,
    X,
    add_checksum,
    assert_same_state,
    convert_to_format_1,
    load,
    make_networks,
    network,
    read_content,
    save_all,
    save_by_torch,
)

from lapgrad import DeviceError, FileFormatError, NonFiniteError, OptionError
from lapgrad.models import GPRegression, Model
from lapgrad.models._model import StoredModel
from lapgrad.models._storage import archive as _archive
from lapgrad.models.kernels import RBF, Deep


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return save_all(tmp_path_factory.mktemp("models"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


# Sound files.


def test_every_class_is_here(saved: dict[str, bytes]) -> None:
    classes = {name for name, kind in StoredModel._kinds.items() if kind.__module__.startswith("lapgrad.")}
    abstract = {"Model", "LayeredRegression", "LayeredModel", "WithSecondStart"}
    assert {read_content(saved, name)["kind"] for name in MODELS} == classes - abstract


@pytest.mark.parametrize("name", MODELS)
def test_sound_files_of_both_formats_are_read(name: str, saved: dict[str, bytes], path: Path) -> None:
    path.write_bytes(saved[name])
    model = load(path, make_networks())
    assert_same_state(model, MODELS[name]())
    path.write_bytes(convert_to_format_1(read_content(saved, name)))
    assert_same_state(load(path, make_networks()), model)


def test_files_are_zip_files_with_the_checksum_as_a_comment(saved: dict[str, bytes]) -> None:
    with zipfile.ZipFile(io.BytesIO(saved["gp"])) as file:
        assert file.testzip() is None
        assert file.comment.startswith(b"lapgrad sha256 ")
    assert read_content(saved, "gp")["format"] == 2


def test_buffers_of_networks_of_users_may_be_infinite(path: Path) -> None:
    masked = network()
    masked.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    GPRegression(X, Y_ONE, Deep(RBF(), masked), normalise=False).save(path)
    again = network()
    again.register_buffer("mask", torch.zeros(2))
    GPRegression.load(path, modules={"network": again})
    assert torch.equal(again.get_buffer("mask"), torch.tensor([0.0, -torch.inf]))


# Other files, and other faults.


class Payload:
    """An object as a malicious file would hold it: unpickling it creates a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


MALICIOUS: Mapping[str, Callable[[Payload], bytes]] = {
    "pickled": pickle.dumps,
    "saved by torch": save_by_torch,
    "saved by torch in its legacy format": lambda payload: save_by_torch(
        payload, _use_new_zipfile_serialization=False
    ),
    "with a checksum": lambda payload: add_checksum({"what": "lapgrad model", "format": 2, "kind": payload}),
    "among tensors": lambda payload: add_checksum(
        {
            "what": "lapgrad model",
            "format": 2,
            "version": "0.1.0",
            "kind": "GPRegression",
            "config": "{}",
            "tensors": {"X": payload},
            "fixed": [],
        }
    ),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_no_code_runs(name: str, path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made by the payload"
    path.write_bytes(MALICIOUS[name](Payload(folder)))
    with pytest.raises(FileFormatError, match="not a file of a lapgrad model"):
        load(path)
    assert not folder.exists()
    pickle.loads(pickle.dumps(Payload(folder)))
    assert folder.exists(), "the payload would have been seen"


def zip_of(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as entries:
        for name in names:
            entries.writestr(name, b"\x80\x02N.")
    return file.getvalue()


OTHER_FILES = {
    "empty": b"",
    "text": b"nothing",
    "start of a zip": b"PK\x03\x04",
    "end of a zip": b"PK\x05\x06" + bytes(18),
    "a checksum alone": b"lapgrad sha256 " + b"0" * 64,
    "the word before a checksum": b"lapgrad sha256 ",
    "Greek": "Θ = 1\n".encode() * 100,
    "JSON": json.dumps({"what": "lapgrad model"}).encode(),
    "an empty zip": zip_of(),
    "a zip of text": zip_of("a.txt"),
    "a zip like torch's": zip_of("archive/data.pkl", "archive/version"),
    "zeros": bytes(1000),
    "noise": random.Random(0).randbytes(5000),
}


# The tests get names of their own: names made of the content would contain the time at which a zip file was
# written, and change with every run.
@pytest.mark.parametrize("content", OTHER_FILES.values(), ids=OTHER_FILES)
def test_other_files_are_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"model\.pt is (not a file of a lapgrad model|damaged)"):
        load(path)


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(3), "text", {}, {"what": torch.zeros(3)}])
def test_other_files_of_torch_are_refused(content: object, path: Path) -> None:
    torch.save(content, path)
    with pytest.raises(FileFormatError, match="not a file of a lapgrad model"):
        load(path)


def test_files_that_cannot_be_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        load(path)
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        load(path)

    def forbidden(*arguments: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_archive, "open", forbidden, raising=False)
    with pytest.raises(PermissionError):
        load(path)


def test_devices_that_are_not_here(
    saved: dict[str, bytes], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(saved["gp"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="pass device='cpu'"):
        Model.load(path, device="cuda")


def test_networks_are_asked_for(saved: dict[str, bytes], path: Path) -> None:
    path.write_bytes(saved["gp_deep"])
    with pytest.raises(OptionError, match="'network'"):
        Model.load(path)
    with pytest.raises(OptionError, match="must be a module, got int"):
        Model.load(path, modules={"network": 3})  # type: ignore[dict-item]


# Writing.


def test_what_cannot_be_read_back_is_not_written(path: Path) -> None:
    model = GPRegression(X, Y_ONE, normalise=False)
    model.save(path)
    before = path.read_bytes()
    with torch.no_grad():
        model.get_parameter("raw_noise_var").fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"GPRegression\.save: 'raw_noise_var'"):
        model.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("function", ["torch.save", "os.fsync", "os.replace"])
def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    function: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GPRegression(X, Y_ONE, normalise=False)
    model.save(path)
    before = path.read_bytes()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    model.noise_var = 0.5
    with monkeypatch.context() as patched:
        patched.setattr(function, full)
        with pytest.raises(OSError, match="No space"):
            model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    model.save(path)
    assert path.read_bytes() != before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
