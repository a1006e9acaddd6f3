"""Every private name of PyTorch that lapgrad touches, in one place, with the public substitute.

Two things need them. The *fast path* of an operator (``_torch/define.py``) asks in a few hundred nanoseconds
whether a call is a plain eager one that may skip the dispatcher. The *Autograd kernel* of an operator applies
a ``Function`` for exactly one level of autograd and redispatches below it: that is what makes one definition
work under torch.func, torch.compile, torch.export and forward mode alike.

``AVAILABLE`` is false when a name has gone missing in a new PyTorch. Operators are then built from public
names only (``define_public.py``): slower in eager mode, and without ``torch.compile`` over ``torch.func``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import _C, Tensor
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling

try:
    from torch._functorch.utils import enable_single_level_autograd_function as _single_level
    from torch.autograd.function import _SingleLevelFunction
    from torch.utils._device import DeviceContext

    _functorch_active = _C._are_functorch_transforms_active
    _dispatch_modes = _C._len_torch_dispatch_stack
    _function_modes = _C._len_torch_function_stack
    _function_mode = _C._get_function_stack_at
    _older_vmap_active = functools.partial(
        _C._dispatch_tls_is_dispatch_key_included, _C._dispatch_key_parse("VmapMode")
    )
    _is_tracing = _C._is_tracing
    _is_wrapper_or_sparse = _C._dispatch_isTensorSubclassLike
    _below_autograd_keys = _C._after_autograd_keyset
    _BelowAutograd = _C._AutoDispatchBelowAutograd
    _unpack_dual = torch._VF._unpack_dual
    _forward_ad_enabled = _C._is_fwd_grad_enabled
    _set_forward_ad_enabled = forward_ad._set_fwd_grad_enabled
    _compiled_autograd_key = Function._compiled_autograd_key
    _ = forward_ad._current_level, Tensor._is_zerotensor, Tensor._is_view, Tensor._base
    AVAILABLE = True
except (ImportError, AttributeError) as missing:
    AVAILABLE = False
    warnings.warn(
        f"lapgrad does not know this PyTorch ({torch.__version__}: {missing}); operators run through public "
        f"interfaces only, which is slower in eager mode. Please look for a newer lapgrad.",
        RuntimeWarning,
        stacklevel=2,
    )


def has_internal_overlap(tensor: Tensor) -> bool:
    """Whether two elements of ``tensor`` surely share one place in memory."""
    if hasattr(torch, "_debug_has_internal_overlap"):
        return torch._debug_has_internal_overlap(tensor) == 1
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


_raw_stream = getattr(_C, "_cuda_getCurrentRawStream", None)
_device_number = getattr(_C, "_cuda_getDevice", None)
_float32_precision = getattr(_C, "_get_fp32_precision_getter", None)
_backward_number = getattr(_C, "_current_graph_task_id", None)


def get_cuda_stream(device: int) -> int:
    """Return the address of torch's current stream on a device, in 0.1 us; the public function takes 7."""
    if _raw_stream is not None:
        return int(_raw_stream(device))
    return int(torch.cuda.current_stream(device).cuda_stream)


def get_cuda_device() -> int:
    """Return the number of the current CUDA device; the public function asks first whether CUDA is in use."""
    return int(_device_number()) if _device_number is not None else torch.cuda.current_device()


def is_in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread. False if this PyTorch cannot tell."""
    return _backward_number is not None and _backward_number() != -1


def get_float32_precision(backend: str) -> str:
    """torch's setting for products of float32; the private function takes 0.2 us, the public one 1."""
    if _float32_precision is not None:
        return str(_float32_precision(backend, "matmul"))
    return str(getattr(torch.backends, backend).matmul.fp32_precision)


def find_precision_getter() -> Any:
    """The function that ``get_float32_precision`` asks, for the core; None if this PyTorch has none."""
    return _float32_precision


def forget_capture(device: int, pool: Any, generator: Tensor) -> None:
    """End the part of torch's allocator and default generator in a CUDA graph whose recording has failed.

    Without this, torch would go on to believe that a graph is being recorded.

    Args:
        device: Where it was recorded.
        pool: The memory pool it was to have.
        generator: The state of the device's default generator before.
    """
    ended, released = (getattr(_C, f"_cuda_{name}", None) for name in ("endAllocateToPool", "releasePool"))
    if ended is not None and released is not None:
        with contextlib.suppress(RuntimeError):  # the recording was ended properly
            ended(device, pool)
            released(device, pool)
    fresh = torch.Generator(torch.device("cuda", device))
    fresh.set_state(generator)
    torch.cuda.default_generators[device].graphsafe_set_state(fresh.graphsafe_get_state())


def find_names_for_shortcuts() -> dict[str, Any] | None:
    """Functions of torch by which the core reads tensors (csrc/bind/tensor.h); None if one is missing.

    The table of C functions that describe tensors is public (DLPack 1.3); the functions that recognise an
    ordinary eager call are not.
    """
    table = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if table is None or not AVAILABLE:
        return None
    return {
        "table": table,
        "tensor_type": Tensor,
        "parameter_type": torch.nn.Parameter,
        "are_transforms_active": _functorch_active,
        "count_dispatch_modes": _dispatch_modes,
        "count_function_modes": _function_modes,
        "is_older_vmap_active": _older_vmap_active,
        "is_tracing": _is_tracing,
        "is_wrapper_or_sparse": _is_wrapper_or_sparse,
        "forward_ad_names": vars(forward_ad),
        "is_grad_enabled": torch.is_grad_enabled,
        "empty_like": torch.empty_like,
        "whole_number": torch.empty((), dtype=torch.int32, device="cpu"),
        "functions": _find_functions_of_torch(),
        "readers": _find_readers(),
    }


#: C functions of torch: those of its ahead-of-time compiler's interface by name, others by their C++ names.
_FUNCTIONS_OF_TORCH = {
    "empty_strided": "aoti_torch_empty_strided",
    "get_data": "aoti_torch_get_data_ptr",
    "delete_tensor": "aoti_torch_delete_tensor_object",
    "wrap": "_Z16THPVariable_WrapRKN2at10TensorBaseE",
    "count_dispatch_modes": "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "count_function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "is_recording": "_ZN3c108GradMode10is_enabledEv",
    "is_key_included": "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
}
#: Dispatch keys that are there while a transform of torch.func, the older vmap, or torch.jit.trace is active.
_KEYS_OF_TRANSFORMS = {
    "front_key": "FuncTorchDynamicLayerFrontMode",
    "back_key": "FuncTorchDynamicLayerBackMode",
    "vmap_key": "VmapMode",
    "trace_key": "Tracer",
}


def _find_functions_of_torch() -> dict[str, int]:
    """Addresses of C functions, and numbers of keys, for csrc/bind/tensor.cpp; {} if any is not found."""
    found = {name: find_function(symbol) for name, symbol in _FUNCTIONS_OF_TORCH.items()}
    try:
        # torch's stubs do not say that a key is a number.
        parse: Callable[[str], Any] = _C._dispatch_key_parse
        found.update({name: int(parse(key)) for name, key in _KEYS_OF_TRANSFORMS.items()})
    except (AttributeError, RuntimeError, TypeError):
        return {}
    addresses = {name: value for name, value in found.items() if value is not None}
    return addresses if len(addresses) == len(found) else {}


@functools.cache
def _open_library() -> ctypes.CDLL:
    """torch's Python module, which has loaded all libraries of torch."""
    return ctypes.CDLL(_C.__file__)


def find_function(symbol: str) -> int | None:
    """Return the address of a function of torch's libraries by its name there; None if it is not found."""
    try:
        return ctypes.cast(getattr(_open_library(), symbol), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


#: What csrc/bind/torch_calls.cpp uses of torch, by the name in a library.
_FUNCTIONS_FOR_CALLS = {
    "wrap": _FUNCTIONS_OF_TORCH["wrap"],
    "delete_tensor": _FUNCTIONS_OF_TORCH["delete_tensor"],
    "begin_exclusion": "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE",
    "end_exclusion": "_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev",
    "translate": "_ZN5torch29translate_exception_to_pythonERKNSt15__exception_ptr13exception_ptrE",
}

#: The keys under which torch records gradients and tracks views: its kernels run without them.
_KEYS_OF_AUTOGRAD = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")


#: Releases of torch whose kernels may be called by address: those that the tests of ``accelerate`` have run
#: on. The name of a C++ function holds the types of its parameters, but not that of its result.
_RELEASES_FOR_CALLS = ("2.13",)


def may_call_by_address() -> bool:
    """Whether calls of torch's kernels by address were tested with this release of torch."""
    return ".".join(torch.__version__.split(".")[:2]) in _RELEASES_FOR_CALLS


def find_names_for_calls() -> dict[str, Any] | None:
    """What the core needs to call kernels of torch (csrc/bind/torch_calls.h); None if torch lacks it.

    None also for releases of torch on which such calls were not tested.
    """
    if not may_call_by_address():
        return None
    tensor = torch.empty((), device="cpu")
    found: dict[str, Any] = {name: find_function(symbol) for name, symbol in _FUNCTIONS_FOR_CALLS.items()}
    keys: list[Any] = [getattr(_C.DispatchKey, name, None) for name in _KEYS_OF_AUTOGRAD]
    if None in (*found.values(), *keys) or not hasattr(_C.DispatchKeySet, "raw_repr"):
        return None
    layout = _describe_layout(tensor)
    excluded = functools.reduce(lambda all_keys, key: all_keys | _C.DispatchKeySet(key).raw_repr(), keys, 0)
    return found | {"excluded": excluded} | layout if layout else None


#: What csrc/bind/tensor.cpp asks of the data of a tensor, by the name in a library.
_READERS = {
    "requires_gradient": "_ZNK3c1010TensorImpl13requires_gradEv",
    "is_negated": "_ZN2at6native6is_negERKNS_6TensorE",
}


def _find_readers() -> dict[str, Any]:
    """Functions that read a tensor's data, and tensors to test them on; {} if torch lacks one.

    torch's Python methods for the same take a twentieth of a microsecond each.
    """
    found: dict[str, Any] = {name: find_function(symbol) for name, symbol in _READERS.items()}
    if not may_call_by_address() or None in found.values() or not hasattr(torch, "_neg_view"):
        return {}
    tensor = torch.zeros((), device="cpu")
    layout = _describe_layout(tensor)
    others = {
        "tracked": torch.zeros((), device="cpu", requires_grad=True),
        "negated": torch._neg_view(tensor),
    }
    return found | layout | others if layout else {}


def _describe_layout(tensor: Tensor) -> dict[str, Any]:
    """What tells the core where a Python object of a tensor has the address of its data; {} if unknown."""
    data = getattr(tensor, "_cdata", None)
    if data is None:
        return {}
    return {"tensor": tensor, "data_of_tensor": data, "size_of_tensor": Tensor.__basicsize__}


def register_fake(library: torch.library.Library, name: str, fake: Callable[..., Any]) -> None:
    """Register the shapes of an operator's results, as ``torch.library.register_fake`` does.

    That function looks for the caller's module among all that are loaded: 15 ms of an import of lapgrad.
    """
    qualified = f"{library.ns}::{name}"
    try:
        holder = torch._library.simple_registry.singleton.find(qualified).fake_impl
        library._registration_handles.append(holder.register(fake, __name__, library))
    except (AttributeError, TypeError):
        torch.library.register_fake(qualified, fake, lib=library)


class BackendKeys(NamedTuple):
    """The dispatch keys of one kind of device, as overrides of torch's own operators meet them.

    Attributes:
        autograd: Name of the key that records gradients.
        backend: Name of the key that computes.
        plain: The keys, as an integer, that a call with ordinary tensors outside of transforms and modes has
            at the Autograd key.
        keyset: The backend key alone: what a kernel of torch is called with.
        plain_keyset: ``plain`` as a set of keys.
    """

    autograd: str
    backend: str
    plain: int
    keyset: Any
    plain_keyset: Any


def get_backend_keys(device: str) -> BackendKeys:
    """Return the dispatch keys of ``device``, "cpu" or "cuda"."""
    backend, autograd = (getattr(_C.DispatchKey, prefix + device.upper()) for prefix in ("", "Autograd"))
    keyset = _C.DispatchKeySet(backend)
    plain = keyset | _C.DispatchKeySet(autograd)
    return BackendKeys(f"Autograd{device.upper()}", device.upper(), plain.raw_repr(), keyset, plain)


def find_keys_of_composite(operator: str, device: str) -> Any:
    """Keys with which torch's Autograd kernel of ``operator`` does not go on to the kernel of ``device``.

    torch has a kernel for backends that bring none of their own, for most operators with an overload for
    ``out=``: it allocates the results and calls that overload. It is found under the key of such a backend.
    With these keys a call bypasses an override at the key of ``device``. None where there is no such kernel.
    """
    composite = "CompositeExplicitAutogradNonFunctional"
    name = f"aten::{operator}"
    has_kernel = getattr(_C, "_dispatch_has_kernel_for_dispatch_key", None)
    if device != "cpu" or has_kernel is None or not hasattr(_C.DispatchKey, UNUSED_BACKEND):
        return None
    if not has_kernel(name, composite) or has_kernel(name, UNUSED_BACKEND):
        return None
    return get_keys_of_unused_backend()


#: The key of a backend that no program uses.
UNUSED_BACKEND = "VE"


def get_keys_of_unused_backend() -> Any:
    """Return the keys of an ordinary CPU tensor, and that of ``UNUSED_BACKEND``, whose kernels come first."""
    keys = _C.DispatchKeySet(_C.DispatchKey.CPU) | _C.DispatchKeySet(_C.DispatchKey.AutogradCPU)
    return keys | _C.DispatchKeySet(getattr(_C.DispatchKey, UNUSED_BACKEND))


def has_kernel_of_unused_backend(operator: str) -> bool:
    """Whether ``operator`` has a kernel, of its own or composite, under ``UNUSED_BACKEND``."""
    has_kernel = getattr(_C, "_dispatch_has_computed_kernel_for_dispatch_key", None)
    return has_kernel is None or bool(has_kernel(f"aten::{operator}", UNUSED_BACKEND))


def is_plain_call(keys: Any, plain: int) -> bool:
    """Whether the keys of a call are ``plain`` ones (see ``BackendKeys``), and forward mode is not in use."""
    return bool(keys.raw_repr() == plain and forward_ad._current_level < 0)


def check_status(info: Tensor, operator: str, is_matrix: bool) -> None:
    """Raise torch's own LinAlgError for the first item whose ``info`` is not zero; waits for a GPU."""
    torch.ops.aten._linalg_check_errors.default(info, operator, is_matrix=is_matrix)


def is_view(tensor: Tensor) -> bool:
    """Whether autograd knows ``tensor`` as a view of another one."""
    return tensor._is_view()


def is_leaf_or_view_of_one(tensor: Tensor) -> bool:
    """Whether a change of ``tensor`` would be a change of a leaf of the autograd graph."""
    if tensor.is_leaf:
        return True
    base = tensor._base
    return base is not None and base.is_leaf and base.requires_grad


def reshape_fresh(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshape a tensor without other references; autograd does not treat the result as a view.

    A view made under ``no_grad`` could later not be modified in place with gradients on.
    """
    return torch.ops.aten._unsafe_view.default(tensor, shape)


if AVAILABLE:
    _plain_types = frozenset((Tensor, torch.nn.Parameter))

    def _has_relevant_function_mode() -> bool:
        """Whether a mode may intercept operators. That of a default device only concerns new tensors."""
        return not all(type(_function_mode(i)) is DeviceContext for i in range(_function_modes()))

    def skips_dispatcher(tensors: Iterable[Tensor | None]) -> bool:
        """Whether a call on ``tensors`` is plain eager: no tracing, transform, mode, subclass or tangent.

        Wrappers of torch.func (also those whose transform is over), tensors with a negative bit and zero
        tensors all have type ``Tensor``: they need checks of their own.
        """
        if (
            is_compiling()
            or _is_tracing()
            or _functorch_active()
            or _dispatch_modes()
            or (_function_modes() and _has_relevant_function_mode())
            or forward_ad._current_level >= 0
        ):
            return False
        for tensor in tensors:
            if tensor is not None and (
                type(tensor) not in _plain_types
                or not (tensor.is_cpu or tensor.is_cuda)
                or _is_wrapper_or_sparse(tensor)
                or tensor.is_neg()
                or tensor._is_zerotensor()
            ):
                return False
        return True

    def has_tangent(arguments: Iterable[Any]) -> bool:
        """Whether a tensor carries a forward-mode tangent.

        ``forward_ad._current_level`` does not know dual levels entered inside a compiled graph, so each
        tensor is checked.
        """
        return any(isinstance(a, Tensor) and _unpack_dual(a, level=0)[1] is not None for a in arguments)

    def make_single_level_function(name: str, **methods: Callable[..., Any]) -> Callable[..., Any]:
        """``apply`` of a ``Function`` that acts on one level of autograd, under any torch.func transforms."""
        namespace: dict[str, Any] = {key: staticmethod(method) for key, method in methods.items()}
        namespace["_compiled_autograd_key"] = staticmethod(_compiled_autograd_key)
        function: Any = type(name, (_SingleLevelFunction,), namespace)
        if hasattr(function, "_backward_cls"):
            # The engine calls ``apply`` of this class, which looks for ``backward`` and calls it. Of the
            # gradient of one small matrix the detour takes four per cent.
            function._backward_cls.apply = namespace["backward"].__func__
        return function.apply

    def make_autograd_kernel(
        dispatched: Any, apply: Callable[..., Any], instead: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """Return the kernel of ``dispatched`` for the Autograd key.

        It runs ``apply(below, *arguments)``, where ``below`` redispatches under autograd with the gradient
        modes of the caller: the levels of torch.func further down need them.

        Args:
            dispatched: The registered operator.
            apply: ``apply`` of a single level function.
            instead: Replaces the operator when an argument carries a tangent.
        """

        def kernel(keys: Any, *arguments: Any) -> Any:
            if instead is not None and has_tangent(arguments):
                return instead(*arguments)
            gradients, tangents = torch.is_grad_enabled(), _forward_ad_enabled()

            def below(*arguments: Any) -> Any:
                with torch.set_grad_enabled(gradients), _set_forward_ad_enabled(tangents), _BelowAutograd():
                    return dispatched.redispatch(keys & _below_autograd_keys, *arguments)

            with _single_level() if _functorch_active() else contextlib.nullcontext():
                return apply(below, *arguments)

        return kernel

    def run_in_forward_mode(
        jvp: Callable[..., Any],
        saved: tuple[Tensor | None, ...],
        flags: Sequence[Any],
        tangents: Sequence[Any],
    ) -> Any:
        """``jvp(saved, flags, *tangents)`` inside the jvp of a single level function.

        PyTorch switches forward mode off there. Under torch.func the tangents of outer levels live in
        wrappers below this one and would silently be lost: so forward mode is switched on again, and this
        level's tangents are removed from the operands.
        """
        if not _functorch_active():
            return jvp(saved, flags, *tangents)
        with _set_forward_ad_enabled(True):
            primals = [None if t is None else forward_ad.unpack_dual(t, level=0).primal for t in saved]
            return jvp(primals, flags, *tangents)

else:

    def skips_dispatcher(tensors: Iterable[Tensor | None]) -> bool:
        """False: without the private names nothing is known about a call."""
        return False


def list_registered_operators(namespace: str) -> list[Any]:
    """All operators of a namespace that are registered with PyTorch so far, in the order of their names."""
    names = sorted(name for name in _C._dispatch_get_all_op_names() if name.startswith(f"{namespace}::"))
    return [getattr(getattr(torch.ops, namespace), name.partition("::")[2]).default for name in names]


def set_sharding_rule(operator: Any, rule: Callable[..., Any], flags: int) -> None:
    """Set how ``DTensor`` runs an operator: see ``torch.distributed.tensor.experimental.register_sharding``.

    Args:
        operator: As registered.
        rule: Returns the placements that it can run with, given its arguments.
        flags: Position of its first argument that is not a tensor. DTensor looks up calls that it has seen
            before by arguments from there on, and by default leaves out flags that are not integers, though
            the shape of a result may depend on them.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(operator)(rule)
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    known[operator] = type(known[operator])(flags, None, needs_pytree=True)
