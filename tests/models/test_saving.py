"""Files of models: sound ones come back as they were, damaged ones are refused, and none runs code."""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import json
import operator
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lapgrad import DeviceError, FileFormatError, NonFiniteError, OptionError
from lapgrad.models import (
    BayesianLinearRegression,
    DeepGP,
    DeepGPRegression,
    GPRegression,
    LinearGaussianSSM,
    Model,
    MultiTaskBLR,
    PolynomialFeatures,
    RandomFourierFeatures,
    SparseGPRegression,
    _archive,
)
from lapgrad.models._model import StoredModel
from lapgrad.models.components import (
    AR,
    Block,
    Emitted,
    LinearDynamics,
    LocalLevel,
    LocalLinearTrend,
    Regression,
    Seasonal,
)
from lapgrad.models.kernels import RBF, Deep, Periodic, Polynomial

Content = dict[str, Any]
DTYPE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(DTYPE).eval()


class Level(nn.Module):
    """A network for ``Emitted``: a level whose noise it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros((), dtype=DTYPE))

    def forward(self, inputs: Tensor) -> Block:
        one = inputs.new_ones(1, 1, 1)
        return Block(one, one, one * self.log_variance.exp(), inputs.new_zeros(1), inputs.new_ones(1, 1))


def series() -> Tensor:
    y = normal(24).cumsum(0)
    y[5] = torch.nan
    return y


X, Y_ONE, Y_TWO = normal(6, 2), normal(6, seed=1), normal(6, 2, seed=2)

#: Of every class, and of every kind of part that a description can have.
MODELS: Mapping[str, Callable[[], StoredModel]] = {
    "blr": lambda: BayesianLinearRegression(X, Y_TWO, PolynomialFeatures(2), ard=True, normalise=True),
    "blr_fourier": lambda: BayesianLinearRegression(X, Y_ONE, RandomFourierFeatures(2, 3, generator=0)),
    "blr_network": lambda: BayesianLinearRegression(X, Y_ONE, network()),
    "multi_task": lambda: MultiTaskBLR([(X[:4], Y_ONE[:4]), (X[4:], Y_ONE[4:])]),
    "gp": lambda: GPRegression(X, Y_ONE, normalise=True),
    "gp_parts": lambda: GPRegression(
        X, Y_TWO, RBF([0.8, 1.2]) * Periodic(2.0) + Polynomial(3, active_dims=[1]), mean="zero"
    ),
    "gp_deep": lambda: GPRegression(X, Y_ONE, Deep(RBF(), network())),
    "sparse_gp": lambda: SparseGPRegression(X, Y_ONE, inducing=3, normalise=True, generator=0),
    "deep_gp_regression": lambda: DeepGPRegression(X, Y_ONE, widths=[2], inducing=3, generator=0),
    "deep_gp": lambda: DeepGP(normal(8, 3), [2], inducing=3, hidden=[4], generator=0),
    "series": lambda: LinearGaussianSSM(
        series(), LocalLinearTrend(damped=True) + Seasonal(4) + AR(2) + Regression(normal(30, 1), 0.1)
    ),
    "series_learned": lambda: LinearGaussianSSM([series(), series()[:9]], LinearDynamics(2, generator=0)),
    "series_emitted": lambda: LinearGaussianSSM(
        series(), Emitted(Level(), normal(30, 1), states=1) + LocalLevel(), diffuse_variance=10.0
    ),
}


def new_networks() -> dict[str, nn.Module]:
    """All networks that one of the files asks for."""
    return {"features": network(), "network": network(), "module": Level()}


NETWORKS = new_networks()


def load(path: Path, networks: Mapping[str, nn.Module] = NETWORKS) -> StoredModel:
    return StoredModel.load(path, modules=networks)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a file of each model."""
    folder, files = tmp_path_factory.mktemp("models"), {}
    for name, build in MODELS.items():
        build().save(folder / name)
        files[name] = (folder / name).read_bytes()
    return files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def content_of(saved: Mapping[str, bytes], name: str) -> Content:
    content: Content = torch.load(io.BytesIO(saved[name]), weights_only=True)
    return content


def saved_by_torch(content: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def of_format_1(content: Content) -> bytes:
    """What the first format was: the same entries in a file without a checksum."""
    return saved_by_torch({**content, "format": 1})


def with_checksum(content: Content) -> bytes:
    """A file of the second format, made by hand: a zip file with the checksum in its comment."""
    mark = b"lapgrad sha256 "
    before = saved_by_torch(content)[:-2] + (len(mark) + 64).to_bytes(2, "little") + mark
    return before + hashlib.sha256(before).hexdigest().encode()


def assert_same_state(one: StoredModel, other: StoredModel) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(second[name])), name
    assert json.dumps(one.config()) == json.dumps(other.config())


def flip(file: bytes, bit: int) -> bytes:
    changed = bytearray(file)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# Sound files.


def test_every_class_is_here(saved: dict[str, bytes]) -> None:
    classes = {name for name, kind in StoredModel._kinds.items() if kind.__module__.startswith("lapgrad.")}
    abstract = {"Model", "Layered"}
    assert {content_of(saved, name)["kind"] for name in MODELS} == classes - abstract


@pytest.mark.parametrize("name", MODELS)
def test_sound_files_of_both_formats_are_read(name: str, saved: dict[str, bytes], path: Path) -> None:
    path.write_bytes(saved[name])
    model = load(path, new_networks())
    assert_same_state(model, MODELS[name]())
    path.write_bytes(of_format_1(content_of(saved, name)))
    assert_same_state(load(path, new_networks()), model)


def test_files_are_zip_files_with_the_checksum_as_a_comment(saved: dict[str, bytes]) -> None:
    with zipfile.ZipFile(io.BytesIO(saved["gp"])) as file:
        assert file.testzip() is None
        assert file.comment.startswith(b"lapgrad sha256 ")
    assert content_of(saved, "gp")["format"] == 2


def test_buffers_of_networks_of_users_may_be_infinite(path: Path) -> None:
    masked = network()
    masked.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    GPRegression(X, Y_ONE, Deep(RBF(), masked)).save(path)
    again = network()
    again.register_buffer("mask", torch.zeros(2))
    GPRegression.load(path, modules={"network": again})
    assert torch.equal(again.get_buffer("mask"), torch.tensor([0.0, -torch.inf]))


# Damaged files.


@pytest.mark.parametrize("name", MODELS)
def test_truncated_files_are_refused(name: str, saved: dict[str, bytes], path: Path) -> None:
    whole = saved[name]
    tail = range(len(whole) - 85, len(whole))
    lengths = {0, 1, 3, 4, 21, 22, 23, *range(0, len(whole), len(whole) // 20), *tail}
    path.write_bytes(whole)
    for length in sorted(lengths, reverse=True):
        os.truncate(path, length)
        with pytest.raises(FileFormatError, match=r"is empty|truncated|does not start like one"):
            load(path)


def test_files_cut_at_any_byte_are_refused(saved: dict[str, bytes], path: Path) -> None:
    path.write_bytes(saved["gp"])
    with path.open("r+b") as file:
        for length in reversed(range(len(saved["gp"]))):
            file.truncate(length)
            with pytest.raises(FileFormatError):
                load(path)


def test_a_flipped_bit_in_any_byte_is_noticed(saved: dict[str, bytes], path: Path) -> None:
    """Of the last bytes and the first, which say how to read the file, all eight."""
    whole = saved["gp"]
    edges = [*range(8 * 64), *range(8 * (len(whole) - 128), 8 * len(whole))]
    bits = {*edges, *(8 * byte + byte % 8 for byte in range(len(whole)))}
    path.write_bytes(whole)
    with path.open("r+b", buffering=0) as file:
        for bit in sorted(bits):
            byte, value = bit // 8, whole[bit // 8]
            os.pwrite(file.fileno(), bytes([value ^ (1 << bit % 8)]), byte)
            with pytest.raises(FileFormatError):
                load(path)
            os.pwrite(file.fileno(), bytes([value]), byte)
    load(path)


@pytest.mark.parametrize("name", MODELS)
def test_flipped_bits_give_the_reason(name: str, saved: dict[str, bytes], path: Path) -> None:
    whole, draw = saved[name], random.Random(0)
    for _ in range(40):
        path.write_bytes(flip(whole, draw.randrange(8 * (len(whole) - 128))))
        with pytest.raises(FileFormatError, match="the checksum does not match"):
            load(path)


def test_other_bytes_at_the_end_are_noticed(saved: dict[str, bytes], path: Path) -> None:
    for more in (b"\0", b"\n", bytes(100), saved["gp"]):
        path.write_bytes(saved["gp"] + more)
        with pytest.raises(FileFormatError, match="damaged"):
            load(path)


def test_damaged_files_of_the_first_format_are_refused_or_the_same(
    saved: dict[str, bytes], path: Path
) -> None:
    """Some bits of a zip file mean nothing, such as dates. No flipped bit changes the model."""
    whole = of_format_1(content_of(saved, "gp"))
    path.write_bytes(whole)
    sound, refused = load(path), 0
    bits = range(0, 8 * len(whole), 151)
    for bit in bits:
        path.write_bytes(flip(whole, bit))
        try:
            assert_same_state(load(path), sound)
        except FileFormatError:
            refused += 1
    assert refused > len(bits) // 3
    for length in range(0, len(whole), 197):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            load(path)


# Files with a checksum that is right, and wrong content.


def refused(path: Path, content: Content) -> str:
    """The message with which a file of this content is refused."""
    path.write_bytes(with_checksum(content))
    with pytest.raises(FileFormatError) as raised:
        load(path)
    assert str(path) in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("entry", ["what", "format", "version", "kind", "config", "tensors", "fixed"])
def test_entries_are_there_and_have_their_types(entry: str, saved: dict[str, bytes], path: Path) -> None:
    content = content_of(saved, "gp")
    lacking = {name: value for name, value in content.items() if name != entry}
    assert repr(entry) in refused(path, lacking)
    assert repr(entry) in refused(path, {**lacking, entry.upper(): content[entry]})
    for wrong in (None, 1.5, True, b"bytes", [1], {1: 2}, torch.zeros(2)):
        assert "not fit" not in refused(path, {**content, entry: wrong})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ("3", "not a JSON object"),
        ("{}", "missing entry 'mean'"),
    ],
)
def test_descriptions_are_objects(config: str, message: str, saved: dict[str, bytes], path: Path) -> None:
    assert message in refused(path, {**content_of(saved, "gp"), "config": config})


@pytest.mark.parametrize("number", [0, -1, 1])
def test_formats_that_do_not_go_with_a_checksum(number: int, saved: dict[str, bytes], path: Path) -> None:
    content = {**content_of(saved, "gp"), "format": number}
    assert f"has format {number}, and has a checksum" in refused(path, content)


def test_the_second_format_has_a_checksum(saved: dict[str, bytes], path: Path) -> None:
    torch.save(content_of(saved, "gp"), path)
    with pytest.raises(FileFormatError, match="has format 2, and has no checksum"):
        load(path)


def places(value: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all entries of a description."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*before, key)
        yield from places(part, (*before, key))


def wrong_values(key: str | int, value: Any) -> list[Any]:
    """Values of other types than that of the entry ``key`` of a description, which is ``value``."""
    candidates = ["no such thing", [0.5], {"a": 1}, float("nan"), float("inf")]
    if not isinstance(value, float) and key not in MAY_BE_NUMBERS:
        candidates.append(0.5)
    if not isinstance(value, bool):
        candidates.append(True)
    if value is not None and key not in MAY_BE_NULL:
        candidates.append(None)
    return [other for other in candidates if type(other) is not type(value) or other != other]


MAY_BE_NUMBERS = {"level_variance", "diffuse_variance"}
MAY_BE_NULL = {"level_variance", "diffuse_variance", "active_dims", "chunk"}


@pytest.mark.parametrize("name", MODELS)
def test_damaged_descriptions_are_refused(name: str, saved: dict[str, bytes], path: Path) -> None:
    content = content_of(saved, name)
    config = json.loads(content["config"])
    for number, place in enumerate(places(config)):
        changed = copy.deepcopy(config)
        parent = functools.reduce(operator.getitem, place[:-1], changed)
        key = place[-1]
        value = parent[key]
        # Two of the values for each entry: entries of one kind are in many of the models.
        wrong = wrong_values(key, value)
        for other in (wrong[number % len(wrong)], wrong[(number + 3) % len(wrong)]):
            parent[key] = other
            refused(path, {**content, "config": json.dumps(changed)})
        if isinstance(key, str):
            del parent[key]
            refused(path, {**content, "config": json.dumps(changed)})
            parent[f"{key}_"] = value
            refused(path, {**content, "config": json.dumps(changed)})


def damaged(tensors: Mapping[str, Tensor], key: str) -> list[dict[Any, Any]]:
    """Tensors of a file with one of them removed, renamed, or of another kind."""
    value = tensors[key]
    lacking = {other: tensor for other, tensor in tensors.items() if other != key}
    return [
        lacking,
        {**lacking, f"{key}_": value},
        {**tensors, f"{key}_": value},
        {**lacking, 3: value},
        {**lacking, key: value.to(torch.bool)},
        {**lacking, key: value.to(torch.complex128)},
        {**lacking, key: value.tolist()},
        {**lacking, key: value.to_sparse()},
        {**lacking, key: torch.stack([value, value])},
        {**lacking, key: value[None]},
    ]


@pytest.mark.parametrize("name", MODELS)
def test_damaged_tensors_are_refused(name: str, saved: dict[str, bytes], path: Path) -> None:
    content = content_of(saved, name)
    for number, key in enumerate(content["tensors"]):
        wrong = damaged(content["tensors"], key)
        if key.endswith("num_batches_tracked"):
            del wrong[0]  # torch fills it in
        if key.endswith(("raw_lengthscale", "raw_period")):
            del wrong[-2:]  # the file is right with one per column, too
        for other in (wrong[number % len(wrong)], wrong[(number + 4) % len(wrong)], wrong[-1]):
            refused(path, {**content, "tensors": other})


def test_numbers_are_not_rounded(saved: dict[str, bytes], path: Path) -> None:
    """A double in place of a single: the model would not be the one that was saved."""
    GPRegression(X.float(), Y_ONE.float()).save(path)
    content = torch.load(path, weights_only=True)
    tensors = {**content["tensors"], "x_shift": content["tensors"]["x_shift"].double()}
    assert "'x_shift' has dtype torch.float64; torch.float32" in refused(
        path, {**content, "tensors": tensors}
    )


@pytest.mark.parametrize("name", MODELS)
def test_numbers_that_are_not_finite_are_refused(name: str, saved: dict[str, bytes], path: Path) -> None:
    content = content_of(saved, name)
    tensors: dict[str, Tensor] = content["tensors"]
    for number, (key, value) in enumerate(tensors.items()):
        of_user = "running_" in key
        if not value.is_floating_point() or not value.numel() or of_user:
            continue
        bad = [torch.nan, torch.inf, -torch.inf][number % 3]
        has_gaps = name.startswith("series") and key == "y"
        wrong = value.clone()
        wrong.view(-1)[-1] = torch.inf if has_gaps else bad
        message = refused(path, {**content, "tensors": {**tensors, key: wrong}})
        assert any(word in message for word in ("finite", "NaN or infinity", "is infinite")), message


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("key", ["x_scale", "y_scale", "x_shift", "raw_noise_var", "kernel.raw_lengthscale"])
def test_numbers_that_are_not_finite_are_named(
    key: str, bad: float, saved: dict[str, bytes], path: Path
) -> None:
    content = content_of(saved, "gp")
    tensors = {**content["tensors"], key: torch.full_like(content["tensors"][key], bad)}
    assert f"'{key}' has a value that is not finite" in refused(path, {**content, "tensors": tensors})


def test_scales_are_positive(saved: dict[str, bytes], path: Path) -> None:
    content = content_of(saved, "gp")
    for key, value in (("x_scale", 0.0), ("y_scale", -1.0)):
        wrong = {**content["tensors"], key: torch.full_like(content["tensors"][key], value)}
        assert f"'{key}' has a value that is not positive" in refused(path, {**content, "tensors": wrong})


def test_names_of_fixed_parameters_are_known(saved: dict[str, bytes], path: Path) -> None:
    content = content_of(saved, "gp")
    assert "'raw_noise'" in refused(path, {**content, "fixed": ["raw_noise"]})
    assert "list of names" in refused(path, {**content, "fixed": [3]})


def test_a_refused_file_leaves_networks_as_they_were(saved: dict[str, bytes], path: Path) -> None:
    content = content_of(saved, "gp_deep")
    tensors = {**content["tensors"], "raw_noise_var": torch.tensor(torch.nan, dtype=DTYPE)}
    path.write_bytes(with_checksum({**content, "tensors": tensors}))
    own = network()
    before = copy.deepcopy(own.state_dict())
    with pytest.raises(FileFormatError, match="'raw_noise_var' has a value that is not finite"):
        Model.load(path, modules={"network": own})
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())


# Other files, and other faults.


class Payload:
    """What a malicious file would hold: unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


MALICIOUS: Mapping[str, Callable[[Payload], bytes]] = {
    "pickled": pickle.dumps,
    "saved by torch": saved_by_torch,
    "saved by torch in its legacy format": lambda payload: saved_by_torch(
        payload, _use_new_zipfile_serialization=False
    ),
    "with a checksum": lambda payload: with_checksum({"what": "lapgrad model", "format": 2, "kind": payload}),
    "among tensors": lambda payload: with_checksum(
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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nothing",
        b"PK\x03\x04",
        b"PK\x05\x06" + bytes(18),
        b"lapgrad sha256 " + b"0" * 64,
        b"lapgrad sha256 ",
        "Θ = 1\n".encode() * 100,
        json.dumps({"what": "lapgrad model"}).encode(),
        zip_of(),
        zip_of("a.txt"),
        zip_of("archive/data.pkl", "archive/version"),
        bytes(1000),
        random.Random(0).randbytes(5000),
    ],
    ids=str,
)
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
    model = GPRegression(X, Y_ONE)
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
    model = GPRegression(X, Y_ONE)
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
