"""Damaged files of models are refused with the reason; no damage changes a model."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_models import (
    DTYPE,
    MODELS,
    Y_ONE,
    Content,
    X,
    add_checksum,
    assert_same_state,
    convert_to_format_1,
    flip,
    load,
    network,
    read_content,
    save_all,
)
from torch import Tensor

from lapgrad import FileFormatError
from lapgrad.models import (
    GPRegression,
    Model,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return save_all(tmp_path_factory.mktemp("models"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


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
    """One bit of each byte, and all eight of the first and last bytes, which hold the format."""
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
    whole = convert_to_format_1(read_content(saved, "gp"))
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
    """Return the message with which a file of this content is refused."""
    path.write_bytes(add_checksum(content))
    with pytest.raises(FileFormatError) as raised:
        load(path)
    assert str(path) in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("entry", ["what", "format", "version", "kind", "config", "tensors", "fixed"])
def test_entries_are_there_and_have_their_types(entry: str, saved: dict[str, bytes], path: Path) -> None:
    content = read_content(saved, "gp")
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
    assert message in refused(path, {**read_content(saved, "gp"), "config": config})


@pytest.mark.parametrize("number", [0, -1, 1])
def test_formats_that_do_not_go_with_a_checksum(number: int, saved: dict[str, bytes], path: Path) -> None:
    content = {**read_content(saved, "gp"), "format": number}
    assert f"has format {number}, and has a checksum" in refused(path, content)


def test_the_second_format_has_a_checksum(saved: dict[str, bytes], path: Path) -> None:
    torch.save(read_content(saved, "gp"), path)
    with pytest.raises(FileFormatError, match="has format 2, and has no checksum"):
        load(path)


def list_places(value: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all entries of a description."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*before, key)
        yield from list_places(part, (*before, key))


def list_wrong_values(key: str | int, value: Any) -> list[Any]:
    """Values of other types than that of the entry ``key`` of a description, which is ``value``."""
    candidates = ["no such thing", [0.5], {"a": 1}, float("nan"), float("inf")]
    if not isinstance(value, float) and key not in MAY_BE_NUMBERS:
        candidates.append(0.5)
    if not isinstance(value, bool):
        candidates.append(True)
    if value is not None and key not in MAY_BE_NULL:
        candidates.append(None)
    return [other for other in candidates if type(other) is not type(value) or other != other]


MAY_BE_NUMBERS = {"level_variance", "diffuse_variance", "exponent"}
#: A part of a kernel has a name or none.
MAY_BE_MISSING = {"name"}
MAY_BE_NULL = {"level_variance", "diffuse_variance", "active_dims", "chunk"}


@pytest.mark.parametrize("name", MODELS)
def test_damaged_descriptions_are_refused(name: str, saved: dict[str, bytes], path: Path) -> None:
    content = read_content(saved, name)
    config = json.loads(content["config"])
    for number, place in enumerate(list_places(config)):
        changed = copy.deepcopy(config)
        parent = functools.reduce(operator.getitem, place[:-1], changed)
        key = place[-1]
        value = parent[key]
        # Two wrong values per entry are enough: other models have entries of the same kind, and try the rest.
        wrong = list_wrong_values(key, value)
        for other in (wrong[number % len(wrong)], wrong[(number + 3) % len(wrong)]):
            parent[key] = other
            refused(path, {**content, "config": json.dumps(changed)})
        if isinstance(key, str) and key not in MAY_BE_MISSING:
            del parent[key]
            refused(path, {**content, "config": json.dumps(changed)})
            parent[f"{key}_"] = value
            refused(path, {**content, "config": json.dumps(changed)})


def list_damaged_tensors(tensors: Mapping[str, Tensor], key: str) -> list[dict[Any, Any]]:
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
    content = read_content(saved, name)
    for number, key in enumerate(content["tensors"]):
        wrong = list_damaged_tensors(content["tensors"], key)
        if key.endswith("num_batches_tracked"):
            del wrong[0]  # torch fills it in
        if key.endswith(("raw_lengthscale", "raw_period", "base.raw_variance")):
            del wrong[-2:]  # the file is right with one per column, too
        for other in (wrong[number % len(wrong)], wrong[(number + 4) % len(wrong)], wrong[-1]):
            refused(path, {**content, "tensors": other})


def test_numbers_are_not_rounded(saved: dict[str, bytes], path: Path) -> None:
    """A double in place of a single: the model would not be the one that was saved."""
    GPRegression(X.float(), Y_ONE.float(), normalise=False).save(path)
    content = torch.load(path, weights_only=True)
    tensors = {**content["tensors"], "x_shift": content["tensors"]["x_shift"].double()}
    assert "'x_shift' has dtype torch.float64; torch.float32" in refused(
        path, {**content, "tensors": tensors}
    )


@pytest.mark.parametrize("name", MODELS)
def test_numbers_that_are_not_finite_are_refused(name: str, saved: dict[str, bytes], path: Path) -> None:
    content = read_content(saved, name)
    tensors: dict[str, Tensor] = content["tensors"]
    for number, (key, value) in enumerate(tensors.items()):
        of_user = "running_" in key
        if not value.is_floating_point() or not value.numel() or of_user:
            continue
        bad = [torch.nan, torch.inf, -torch.inf][number % 3]
        has_gaps = (name.startswith("series") or name == "gp_outputs") and key == "y"
        wrong = value.clone(memory_format=torch.contiguous_format)
        wrong.view(-1)[-1] = torch.inf if has_gaps else bad
        message = refused(path, {**content, "tensors": {**tensors, key: wrong}})
        assert any(word in message for word in ("finite", "NaN or infinity", "is infinite")), message


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("key", ["x_scale", "y_scale", "x_shift", "raw_noise_var", "kernel.raw_lengthscale"])
def test_numbers_that_are_not_finite_are_named(
    key: str, bad: float, saved: dict[str, bytes], path: Path
) -> None:
    content = read_content(saved, "gp")
    tensors = {**content["tensors"], key: torch.full_like(content["tensors"][key], bad)}
    assert f"'{key}' has a value that is not finite" in refused(path, {**content, "tensors": tensors})


def test_scales_are_positive(saved: dict[str, bytes], path: Path) -> None:
    content = read_content(saved, "gp")
    for key, value in (("x_scale", 0.0), ("y_scale", -1.0)):
        wrong = {**content["tensors"], key: torch.full_like(content["tensors"][key], value)}
        assert f"'{key}' has a value that is not positive" in refused(path, {**content, "tensors": wrong})


def test_names_of_fixed_parameters_are_known(saved: dict[str, bytes], path: Path) -> None:
    content = read_content(saved, "gp")
    assert "'raw_noise'" in refused(path, {**content, "fixed": ["raw_noise"]})
    assert "list of names" in refused(path, {**content, "fixed": [3]})


def test_a_refused_file_leaves_networks_as_they_were(saved: dict[str, bytes], path: Path) -> None:
    content = read_content(saved, "gp_deep")
    tensors = {**content["tensors"], "raw_noise_var": torch.tensor(torch.nan, dtype=DTYPE)}
    path.write_bytes(add_checksum({**content, "tensors": tensors}))
    own = network()
    before = copy.deepcopy(own.state_dict())
    with pytest.raises(FileFormatError, match="'raw_noise_var' has a value that is not finite"):
        Model.load(path, modules={"network": own})
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
