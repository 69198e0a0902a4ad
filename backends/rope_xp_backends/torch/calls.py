"""Calls on tensors as users write them: by the native entry, or like earlier ones on a GPU."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from . import entry, library
from .library import PLAIN

_PLAIN_FUNCTION = getattr(torch.Tensor.__torch_function__, "__func__", None)
_PLAIN_DISPATCH: Any = getattr(torch.Tensor, "__torch_dispatch__", None)


def rotate_by_rope(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_rope`."""
    if is_dynamo_compiling():
        return None
    results = entry.native_rotate_by_rope(*call)
    return _rotate_otherwise(rotate_by_rope, call, 1) if results is None else results


def rotate_by_tables(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_tables`."""
    if is_dynamo_compiling():
        return None
    results = entry.native_rotate_by_tables(*call)
    return _rotate_otherwise(rotate_by_tables, call, 4) if results is None else results


def _rotate_otherwise(function: Callable[..., Any], call: tuple[Any, ...], place: int) -> Any:
    """Run what the native module leaves of a function above. ``call`` has q and k at ``place``."""
    arrays = call[place : place + 2]
    if not has_torch_function(arrays):
        if arrays[0].device.type in library.DEVICES:
            return _load_gpu_calls()[function.__name__](*call)
        if call[place + 5] is None and torch.is_grad_enabled():
            from . import recorded

            results = getattr(recorded, function.__name__)(*call)
            if results is not None:
                return results
    # As for functions of torch.nn.functional, modes that override functions, and classes derived
    # from tensors, see one function in place of each operation within.
    if not all(x is None or _is_transparent(type(x)) for x in arrays):
        return None
    if has_torch_function(arrays):
        return handle_torch_function(function, arrays, *call)
    if all(x is None or type(x) in PLAIN for x in arrays):
        return None
    plain = [x if type(x) in PLAIN or x is None else x.as_subclass(torch.Tensor) for x in arrays]
    return function(*call[:place], *plain, *call[place + 2 :])


@cache
def _load_gpu_calls() -> dict[str, Callable[..., Any]]:
    from . import gpu_calls  # which a CPU does not need

    return {f.__name__: f for f in (gpu_calls.rotate_by_rope, gpu_calls.rotate_by_tables)}


def _is_transparent(cls: type) -> bool:
    """Return whether results of a class are those of its numbers."""
    function = getattr(getattr(cls, "__torch_function__", None), "__func__", None)
    dispatch = getattr(cls, "__torch_dispatch__", None)
    return cls in PLAIN or (function is _PLAIN_FUNCTION and dispatch is _PLAIN_DISPATCH)


def look_up_angles(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.look_up_angles`."""
    return None if is_dynamo_compiling() else entry.native_look_up_angles(*call)


def accumulate_angles(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.accumulate_angles`."""
    if is_dynamo_compiling():
        return None
    results = entry.native_accumulate_angles(*call)
    if results is None and torch.is_grad_enabled():
        from . import learned

        results = learned.accumulate_angles(*call)
    return results


def rotate_by_product(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_product`."""
    if is_dynamo_compiling():
        return None
    q, k, positions, frequencies, layout, axes, out = call
    table = entry.native_multiply_angles(positions, frequencies, q, axes)
    slice_, rest = (layout, 0, 0, 0), (axes, out, None, None, None, 0)
    if table is not None:
        results = entry.native_rotate_by_tables(*slice_, q, k, table, None, *rest)
        if results is not None or not torch.is_grad_enabled():
            return results
        return rotate_by_tables(*slice_, q, k, *torch.chunk(table, 2, -1), *rest)
    if out is not None or not torch.is_grad_enabled():
        return None
    from . import learned

    return learned.rotate_by_product(*call[:-1])
