"""Private names of torch, resolved once. Where a version lacks one, calls take the slow path.

torch has no public way to ask any of this: its own autograd and compiler ask by these names.
"""

import contextlib
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.autograd.forward_ad

for _name in ("torch.utils._device", "torch.utils._python_dispatch"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _find(name: str) -> Any:
    """Return what a dotted name behind ``torch`` stands for, None if there is nothing."""
    value: Any = torch
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


_transforms_active: Callable[[], bool] | None = _find("_C._are_functorch_transforms_active")
_transforms: Callable[[], list[Any]] | None = _find("_C._functorch.get_interpreter_stack")
_transform_types: Any = _find("_C._functorch.TransformType")
_dispatch_modes: Callable[[], int] | None = _find("_C._len_torch_dispatch_stack")
_function_modes: Callable[[], int] | None = _find("_C._len_torch_function_stack")
_function_mode_at: Callable[[int], object] | None = _find("_C._get_function_stack_at")
_tracing_state: Callable[[], object] | None = _find("_C._get_tracing_state")
_is_profiled: Callable[[], bool] | None = _find("_C._autograd._profiler_enabled")
_default_device: Any = _find("utils._device.DeviceContext")
_forward_ad: Any = torch.autograd.forward_ad
_without_transforms: Any = _find("_C._DisableFuncTorch")
_without_modes: Any = _find("utils._python_dispatch._disable_current_modes")
_fake_tensor: Any = _find("_subclasses.FakeTensor")
_has_storage: Callable[[torch.Tensor], bool] | None = _find("_C._has_storage")
current_stream: Callable[[int], int] | None = _find("_C._cuda_getCurrentRawStream")
"""None in builds for CPUs."""


def are_transforms_active() -> bool:
    """Return whether a transform of torch.func is active, or may be."""
    return _transforms_active is None or _transforms_active()


def is_forward_mode() -> bool:
    """Return whether derivatives in forward mode are followed, or may be."""
    level: int = getattr(_forward_ad, "_current_level", 0)
    return level >= 0


def are_transforms_reverse() -> bool:
    """Return whether all active transforms are gradients in reverse mode, and vmap."""
    if _transforms is None or _transform_types is None:
        return False
    kinds = {level.key() for level in _transforms()}
    return kinds <= {_transform_types.Grad, _transform_types.Vmap}


def has_storage(x: torch.Tensor) -> bool:
    """Return whether a tensor surely has memory; those of batched gradients only look plain."""
    return _has_storage is not None and _has_storage(x)


def is_fake(x: torch.Tensor) -> bool:
    """Return whether a tensor has a shape and a device, and no memory."""
    return _fake_tensor is not None and isinstance(x, _fake_tensor)


def has_dispatch_modes() -> bool:
    """Return whether a dispatch mode is active, or may be."""
    return _dispatch_modes is None or _dispatch_modes() > 0


def is_observed() -> bool:
    """Return whether a mode, transform or profiler sees or changes what is done to tensors.

    A default device does not: nothing here makes a tensor without naming its device.
    """
    if (
        _function_modes is None
        or _function_mode_at is None
        or _tracing_state is None
        or _is_profiled is None
    ):
        return True
    modes = _function_modes()
    return bool(
        (modes and any(type(_function_mode_at(i)) is not _default_device for i in range(modes)))
        or are_transforms_active()
        or is_forward_mode()
        or has_dispatch_modes()
        or _tracing_state() is not None
        or _is_profiled()
    )


def is_exporting() -> bool:
    """Return whether torch.export traces the call.

    torch.compiler.is_exporting() of torch 2.11 is True in all that torch.compile traces:
    https://github.com/pytorch/pytorch/issues/176347
    """
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def mark_static(x: Any) -> None:
    """Do what torch._dynamo.mark_static does, which does something else while it traces."""
    vars(x).update(_dynamo_static_indices=set(range(x.ndim)), _has_dynamo_dim_marking=True)


def mark_constant(function: FunctionT) -> FunctionT:
    """Do what torch.compiler.assume_constant_result does, which imports all of Dynamo for it."""
    vars(function)["_dynamo_marked_constant"] = True
    return function


def unobserved() -> AbstractContextManager[object]:
    """Return a context without transforms and modes, in which plain tensors are made."""
    stack = contextlib.ExitStack()
    for context in (_without_transforms, _without_modes):
        if context is not None:
            stack.enter_context(context())
    return stack
