"""Private and experimental names of torch, resolved once: torch has no public ones for these.

Where a version lacks a name, another value stands for it, by which calls take the slow path.
"""

import pkgutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeVar

import torch
import torch.autograd.forward_ad

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _resolve(name: str, otherwise: Any = None) -> Any:
    """Return the value of a name in a module, or another where this torch lacks it."""
    try:
        return pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return otherwise


def _suspect(*_: Any) -> bool:
    return True


are_transforms_active: Callable[[], bool] = _resolve(
    "torch:_C._are_functorch_transforms_active", _suspect
)
"""Whether a transform of torch.func is active, or may be."""
count_dispatch_modes: Callable[[], int] = _resolve("torch:_C._len_torch_dispatch_stack", _suspect)
is_functional: Callable[[torch.Tensor], bool] = _resolve("torch:_is_functional_tensor", _suspect)
"""Whether writes to a tensor are recorded, which only looks plain, or may be."""
has_storage: Callable[[torch.Tensor], bool] = _resolve("torch:_C._has_storage", lambda _: False)
"""Whether a tensor surely has memory; those of batched gradients only look plain."""
FakeTensor: Any = _resolve("torch:_subclasses.FakeTensor", torch.Tensor)
"""The class of tensors without memory; any tensor may be one where it is unknown."""
dlpack_exchange: Any = _resolve("torch:Tensor.__dlpack_c_exchange_api__")
"""A capsule of functions that read tensors, by DLPack."""
_count_function_modes: Callable[[], int] = _resolve("torch:_C._len_torch_function_stack", _suspect)
_function_mode_at: Callable[[int], object] = _resolve("torch:_C._get_function_stack_at", _suspect)
_default_device: Any = _resolve("torch.utils._device:DeviceContext")
_is_tracing: Callable[[], bool] = _resolve("torch:_C._is_tracing", _suspect)
_is_profiled: Callable[[], bool] = _resolve("torch:_C._autograd._profiler_enabled", _suspect)
_transforms: Callable[[], Any] = _resolve(
    "torch:_C._functorch.get_interpreter_stack", lambda: [None]
)
_transform_type: Callable[[Any], Any] = _resolve("torch:_C._functorch.CInterpreter.key", _suspect)
_reverse = [_resolve(f"torch:_C._functorch.TransformType.{name}") for name in ("Grad", "Vmap")]
_without_transforms: Any = _resolve("torch:_C._DisableFuncTorch", nullcontext)
_without_modes: Any = _resolve("torch.utils._python_dispatch:_disable_current_modes", nullcontext)
_raw_stream: Callable[[int], int] | None = _resolve("torch:_C._cuda_getCurrentRawStream")
"""None in builds for CPUs."""
# Dynamo traces these since torch 2.8, as it has that tag.
_traced = hasattr(torch.Tag, "needs_exact_strides")


def _increment_each(xs: Iterable[torch.Tensor]) -> None:
    for x in xs:
        torch.autograd.graph.increment_version(x)


increment_versions: Callable[[Iterable[torch.Tensor]], None] = _increment_each
"""Bump version counters after an in-place write, so that autograd notices it."""
if "Iterable" in str(torch.autograd.graph.increment_version.__annotations__.get("tensor")):
    increment_versions = _resolve(
        "torch:_C._increment_version", torch.autograd.graph.increment_version
    )


def is_forward_mode() -> bool:
    """Return whether derivatives in forward mode are followed, or may be."""
    level: int = getattr(torch.autograd.forward_ad, "_current_level", 0)
    return level >= 0


def are_transforms_reverse() -> bool:
    """Return whether all active transforms are gradients in reverse mode, and vmap."""
    return all(level and _transform_type(level) in _reverse for level in _transforms() or ())


def is_recorded() -> bool:
    """Return whether a dispatch mode or a trace sees operations, or may do so."""
    return count_dispatch_modes() > 0 or _is_tracing()


def is_observed() -> bool:
    """Return whether a mode, transform or profiler sees or changes operations on tensors.

    A default device does not: nothing here makes a tensor without naming its device.
    """
    modes = _count_function_modes()
    return bool(
        modes is True  # unknown
        or any(type(_function_mode_at(i)) is not _default_device for i in range(modes))
        or are_transforms_active()
        or count_dispatch_modes()
        or _is_tracing()
        or _is_profiled()
        or getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0
    )


OBSERVERS = (
    _count_function_modes,
    are_transforms_active,
    count_dispatch_modes,
    _is_tracing,
    _is_profiled,
    is_observed,
)
"""What the native entry asks in place of :func:`is_observed`, and that where modes are active."""


def is_exporting() -> bool:
    """Return whether torch.export traces the call, or may do so.

    torch.compiler.is_exporting() of torch 2.11 is True in all that torch.compile traces:
    https://github.com/pytorch/pytorch/issues/176347
    """
    return bool(getattr(torch.compiler, "_is_exporting_flag", torch.compiler.is_compiling()))


def is_known_true(condition: Any) -> bool:
    """Return whether a condition holds for all values of a compiler's symbols."""
    if not _traced:
        return False
    # Its module takes a second, and is there where a compiler traces.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def guard_scalar(number: Any) -> Any:
    """Return the number that a compiler's symbol stands for."""
    if not _traced:
        return number
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(number)


def mark_static(x: Any) -> None:
    """Do what torch._dynamo.mark_static does, which does something else while it traces."""
    vars(x).update(_dynamo_static_indices=set(range(x.ndim)), _has_dynamo_dim_marking=True)


def mark_constant(function: FunctionT) -> FunctionT:
    """Do what torch.compiler.assume_constant_result does, which imports all of Dynamo for it."""
    vars(function)["_dynamo_marked_constant"] = True
    return function


def can_make_plain_tensors() -> bool:
    """Return whether :func:`unobserved` leaves all transforms and modes."""
    leaves_all = nullcontext not in (_without_transforms, _without_modes)
    return leaves_all or not (are_transforms_active() or count_dispatch_modes())


def unobserved() -> AbstractContextManager[object]:
    """Return a context without transforms and modes, in which plain tensors are made."""
    stack = ExitStack()
    stack.enter_context(_without_transforms())
    stack.enter_context(_without_modes())
    return stack


# --- streams of CUDA -----------------------------------------------------------------------------


def is_capturing(device: torch.device) -> bool:
    """Return whether launches on a device go into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def current_stream(device: torch.device) -> int:
    """Return the handle of the current stream, 0 where there are none."""
    if device.type != "cuda":
        return 0
    if _raw_stream is None:
        return torch.cuda.current_stream(device).cuda_stream
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(_raw_stream(index))
