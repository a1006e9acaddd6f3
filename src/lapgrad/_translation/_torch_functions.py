"""Addresses of torch's kernels, which are called without torch's Python interface to them.

A kernel is a C++ function of torch, and its name in the shared library holds the types of its parameters. A
kernel that another release of torch does not have, or has with other parameters, is not found, and is called
through ``torch.library.get_kernel`` as before.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from lapgrad._torch import private as _torch_private

#: Name and default of a parameter after the tensors: a truth value, or a string; None without a default.
Parameter = tuple[str, bool | str | None]

_UPPER: Parameter = ("upper", False)
_CHECK: Parameter = ("check_errors", False)


class Form(NamedTuple):
    """How an operator is called, and the names of its functions in torch's library.

    Attributes:
        tensors: How many operands.
        parameters: What comes after them.
        results: How many tensors are returned.
        compute: The function that computes on a CPU.
        record: The function that goes on to the kernel of a given set of keys.
    """

    tensors: int
    parameters: tuple[Parameter, ...]
    results: int
    compute: str
    record: str = ""


_STRING = "St17basic_string_viewIcSt11char_traitsIcEE"
_REDISPATCH = "10redispatchEN3c1014DispatchKeySetERKNS_6TensorE"

FORMS = {
    "linalg_cholesky_ex": Form(
        1,
        (_UPPER, _CHECK),
        2,
        "_ZN2at3cpu18linalg_cholesky_exERKNS_6TensorEbb",
        f"_ZN2at4_ops18linalg_cholesky_ex{_REDISPATCH}bb",
    ),
    "cholesky": Form(
        1,
        (_UPPER,),
        1,
        "_ZN2at6native8choleskyERKNS_6TensorEb",
        f"_ZN2at4_ops8cholesky{_REDISPATCH}b",
    ),
    "linalg_solve_triangular": Form(
        2,
        (("upper", None), ("left", True), ("unitriangular", False)),
        1,
        "_ZN2at6native23linalg_solve_triangularERKNS_6TensorES3_bbb",
        f"_ZN2at4_ops23linalg_solve_triangular{_REDISPATCH}S6_bbb",
    ),
    "_cholesky_solve_helper": Form(
        2, (("upper", None),), 1, "_ZN2at6native26_cholesky_solve_helper_cpuERKNS_6TensorES3_b"
    ),
    "cholesky_inverse": Form(1, (_UPPER,), 1, "_ZN2at6native16cholesky_inverseERKNS_6TensorEb"),
    "_linalg_eigh": Form(
        1,
        (("UPLO", "L"), ("compute_v", True)),
        2,
        f"_ZN2at3cpu12_linalg_eighERKNS_6TensorE{_STRING}b",
        f"_ZN2at4_ops12_linalg_eigh{_REDISPATCH}{_STRING}b",
    ),
    "linalg_qr": Form(
        1,
        (("mode", "reduced"),),
        2,
        f"_ZN2at3cpu9linalg_qrERKNS_6TensorE{_STRING}",
        f"_ZN2at4_ops9linalg_qr{_REDISPATCH}{_STRING}",
    ),
    "linalg_inv_ex": Form(1, (_CHECK,), 2, "_ZN2at3cpu13linalg_inv_exERKNS_6TensorEb"),
    "_linalg_det": Form(1, (), 3, "_ZN2at3cpu11_linalg_detERKNS_6TensorE"),
    "_linalg_slogdet": Form(1, (), 4, "_ZN2at3cpu15_linalg_slogdetERKNS_6TensorE"),
    "_linalg_solve_ex": Form(
        2, (("left", True), _CHECK), 4, "_ZN2at3cpu16_linalg_solve_exERKNS_6TensorES3_bb"
    ),
    "linalg_lu_factor_ex": Form(
        1, (("pivot", True), _CHECK), 3, "_ZN2at3cpu19linalg_lu_factor_exERKNS_6TensorEbb"
    ),
    "linalg_lu": Form(1, (("pivot", True),), 3, "_ZN2at3cpu9linalg_luERKNS_6TensorEb"),
}


def describe_function(operator: str, records: bool) -> dict[str, Any] | None:
    """What csrc/bind/torch_calls.h needs to call a kernel of a CPU; None where it is not found.

    Args:
        operator: Its name in torch's dispatcher.
        records: The function that takes a set of keys and records gradients, in place of the kernel.
    """
    form = FORMS.get(operator)
    symbol = "" if form is None else form.record if records else form.compute
    if form is None or not symbol or not _bind_calls():
        return None
    address = _torch_private.find_function(symbol)
    if address is None:
        return None
    return {
        "address": address,
        "tensors": form.tensors,
        "parameters": list(form.parameters),
        "results": form.results,
    }


def make_call(operator: str) -> Any:
    """Return a function that calls torch's kernel of a CPU, or None where the kernel is not found.

    The function takes whether other threads of Python should run meanwhile, and then the arguments of the
    operator, with ordinary tensors. It returns None for arguments that it does not serve.
    """
    described = describe_function(operator, records=False)
    if described is None:
        return None
    from lapgrad._kernels import native

    return native.make_torch_call(described)


@functools.cache
def find_bypass(operator: str, device: str) -> Any:
    """Keys with which torch's Autograd kernel of ``operator`` does not meet an override at the key of a CPU.

    None where there are none: the Autograd kernel then goes on to the override.
    """
    keys = _torch_private.find_keys_of_composite(operator, device)
    if keys is not None or operator != "linalg_solve_triangular" or device != "cpu":
        return keys
    return _torch_private.get_keys_of_unused_backend() if _register_solve_triangular() else None


def _register_solve_triangular() -> bool:
    """Give ``linalg_solve_triangular``, which has no composite kernel, one under an unused key."""
    from lapgrad._kernels import native

    if _torch_private.has_kernel_of_unused_backend("linalg_solve_triangular") or not _bind_calls():
        return False
    symbols = {
        "compute": FORMS["linalg_solve_triangular"].compute,
        "open_library": "aoti_torch_library_init_impl",
        "add_kernel": "aoti_torch_library_impl",
    }
    found = {name: _torch_private.find_function(symbol) for name, symbol in symbols.items()}
    if None in found.values():
        return False
    return native.register_solve_triangular(found | {"key": _torch_private.UNUSED_BACKEND})


@functools.cache
def _bind_calls() -> bool:
    """Prepare the core for calls; False if this torch lacks something that they need."""
    from lapgrad._kernels import native

    needs = _torch_private.find_names_for_calls()
    return needs is not None and native.bind_torch_calls(needs)
