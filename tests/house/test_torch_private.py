"""The private names of PyTorch: they answer as expected, and without them operators still work."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import lapgrad
from lapgrad._torch import private as _torch_private
from lapgrad._torch.private import has_internal_overlap, has_tangent, reshape_fresh, skips_dispatcher


def test_every_name_is_there() -> None:
    assert _torch_private.AVAILABLE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_tensors_skip_the_dispatcher(dtype: torch.dtype) -> None:
    plain = torch.ones(2, 2, dtype=dtype)
    with torch.inference_mode():
        inference = torch.ones(2, 2, dtype=dtype)
        assert skips_dispatcher((plain, inference))
    leaf = plain.clone().requires_grad_()
    ordinary = [
        plain,
        plain.mT,
        plain[0],
        plain.expand(3, 2, 2),
        inference,
        leaf,
        leaf * 2,
        torch.nn.Parameter(plain),
    ]
    for tensor in ordinary:
        assert skips_dispatcher((tensor,))
    assert skips_dispatcher((plain, None))


def make_escaped_wrapper() -> Tensor:
    """Return a tensor that torch.func.grad wrapped, after grad has returned."""
    escaped = []
    func.grad(lambda x: escaped.append(x) or x.sum())(torch.ones(2, 2))
    return escaped[0]


UNUSUAL = {
    "escaped wrapper": make_escaped_wrapper,
    "subclass": lambda: TwoTensor(torch.ones(2, 2), torch.ones(2, 2)),
    "negative bit": lambda: torch.ones(2, 2, dtype=torch.complex64).conj().imag,
    "zero tensor": lambda: torch._efficientzerotensor((2, 2)),
    "meta": lambda: torch.ones(2, 2, device="meta"),
    "sparse": lambda: torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_tensors_do_not(kind: str) -> None:
    assert not skips_dispatcher((torch.ones(2, 2), UNUSUAL[kind]()))


class QuietFunctionMode(TorchFunctionMode):
    def __torch_function__(self, f, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return f(*args, **(kwargs or {}))


class QuietDispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, f, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return f(*args, **(kwargs or {}))


@contextmanager
def pretend_to_compile() -> Iterator[None]:
    torch.compiler._is_compiling_flag = True
    yield
    torch.compiler._is_compiling_flag = False


@pytest.mark.parametrize(
    "context", [QuietFunctionMode, QuietDispatchMode, forward_ad.dual_level, pretend_to_compile]
)
def test_unusual_surroundings_do_not(context) -> None:  # type: ignore[no-untyped-def]
    tensor = torch.ones(2, 2)
    with context():
        assert not skips_dispatcher((tensor,))
    assert skips_dispatcher((tensor,))


@pytest.mark.parametrize("transform", [func.grad, lambda f: func.vmap(f), lambda f: func.functionalize(f)])
def test_transforms_do_not(transform) -> None:  # type: ignore[no-untyped-def]
    answers = []
    transform(lambda x: (answers.append(skips_dispatcher((torch.ones(2),))), x.sum())[1])(torch.ones(3))
    assert answers == [False]


def test_has_tangent() -> None:
    tensor = torch.ones(2)
    assert not has_tangent((tensor, 1.0, None))
    with forward_ad.dual_level():
        assert has_tangent((1, forward_ad.make_dual(tensor, tensor)))
        assert not has_tangent((tensor,))


def test_internally_overlapping() -> None:
    tensor = torch.ones(3, 4)
    assert not has_internal_overlap(tensor)
    assert not has_internal_overlap(tensor[:, ::2])
    assert has_internal_overlap(tensor[:1].expand(3, 4))


def test_reshape_fresh_is_no_view() -> None:
    tensor = torch.ones(6, requires_grad=True) * 2
    result = reshape_fresh(tensor, (2, 3))
    assert result.shape == (2, 3)
    assert not result._is_view()
    assert torch.equal(torch.autograd.grad(result.sum(), tensor)[0], torch.ones(6))


def test_private_names_are_used_nowhere_else() -> None:
    """Attributes of torch that begin with an underscore occur in one module only."""
    package = Path(lapgrad.__file__).parent
    operators = [file for file in (package / "_torch").glob("*.py") if file.stem != "private"]
    operators += (package / "_kernels").rglob("*.py")
    found = []
    for path in [*operators, *(package / "ops").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
            ):
                owner = ast.unparse(node.value)
                if not owner.startswith("_") and owner != "self":
                    found.append(f"{path.name}: {owner}.{node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
                found += [f"{path.name}: {alias.name}" for alias in node.names if alias.name.startswith("_")]
                found += [f"{path.name}: {node.module}"] if "._" in (node.module or "") else []
    assert not found


WITHOUT_PRIVATE_NAMES = """
import sys, warnings
import torch
kept = torch._C._after_autograd_keyset
del torch._C._after_autograd_keyset
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import lapgrad
torch._C._after_autograd_keyset = kept  # PyTorch itself needs it
assert any("public" in str(w.message) for w in caught), caught
from lapgrad._torch import private as _torch_private
assert not _torch_private.AVAILABLE

sys.path.insert(0, sys.argv[1])
from samples import OPERATORS
from tolerances import assert_all_close
from torch import func


def compose(f):
    return lambda *args: f(*args).sin().sum()


for case in OPERATORS.values():
    for sample in (case.small(requires_grad=True), *case.samples(requires_grad=True)[1::9]):
        ours, theirs = (case.differentiable(f, sample.kwargs) for f in (case.fn, case.reference))
        assert_all_close(ours(*sample.args), theirs(*sample.args))
        first = [torch.autograd.grad(f(*sample.args).sum(), sample.args) for f in (ours, theirs)]
        assert_all_close(*first)
    sample = case.small(requires_grad=True)
    args = tuple(arg.detach() for arg in sample.args)
    ours, theirs = (case.differentiable(f, sample.kwargs) for f in (case.fn, case.reference))
    torch.autograd.gradcheck(ours, sample.args, check_forward_ad=True, fast_mode=True)
    torch.autograd.gradgradcheck(ours, sample.args, fast_mode=True)
    losses = [compose(f) for f in (ours, theirs)]
    assert_all_close(*[func.hessian(loss)(*args) for loss in losses], 5000)
    batch = case.batched((3,))
    assert_all_close(*[func.vmap(f)(*batch.args) for f in (ours, theirs)])
    assert_all_close(*[func.vmap(func.grad(loss))(*batch.args) for loss in losses])
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    assert_all_close(*[torch.autograd.grad(f(*sample.args).sum(), sample.args) for f in (compiled, theirs)])
    if case.overwrites is not None:
        operands = [arg.clone() for arg in args]
        case.fn(*operands, **sample.kwargs, overwrite=True)
        if case.leaves_result:
            assert_all_close(operands[case.overwrites], theirs(*args))
print("all operators pass")
"""


@pytest.mark.slow
def test_operators_work_without_private_names() -> None:
    """As on a future PyTorch that has renamed one of them."""
    command = [sys.executable, "-c", WITHOUT_PRIVATE_NAMES, str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all operators pass" in done.stdout
