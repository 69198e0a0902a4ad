"""Calls on tensors as users write them: by the native entry, or like earlier ones on a GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function

from . import entry


def rotate_by_rope(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_rope`."""
    if is_dynamo_compiling():
        return None
    results = entry.native_rotate_by_rope(*call)
    if results is not None:
        return results
    if has_torch_function(call[1:3]):
        return _override(rotate_by_rope, call, 1)
    if _is_on_gpu(call[1]):
        from . import gpu_calls

        return gpu_calls.rotate_by_rope(*call)
    if call[6] is None and torch.is_grad_enabled():
        from . import recorded

        results = recorded.rotate_by_rope(*call)
    return _override(rotate_by_rope, call, 1) if results is None else results


def rotate_by_tables(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_tables`."""
    if is_dynamo_compiling():
        return None
    results = entry.native_rotate_by_tables(*call)
    if results is not None:
        return results
    if has_torch_function(call[4:6]):
        return _override(rotate_by_tables, call, 4)
    if _is_on_gpu(call[4]):
        from . import gpu_calls

        return gpu_calls.rotate_by_tables(*call)
    if call[9] is None and torch.is_grad_enabled():
        from . import recorded

        results = recorded.rotate_by_tables(*call)
    return _override(rotate_by_tables, call, 4) if results is None else results


def _override(function: Callable[..., Any], call: tuple[Any, ...], place: int) -> Any:
    from . import overrides

    return overrides.run(function, call, place)


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


def _is_on_gpu(x: torch.Tensor) -> bool:
    from . import gpu  # for what a CPU does not need

    return x.device.type in gpu.DEVICES
