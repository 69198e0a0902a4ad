"""Calls on tensors as users write them: by the native entry, or like earlier ones on a GPU."""

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from . import entry


def rotate_by_rope(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_rope`."""
    if is_dynamo_compiling():
        return None
    results = entry.native_rotate_by_rope(*call)
    if results is not None:
        return results
    if _is_on_gpu(call[1]):
        from . import gpu_calls

        return gpu_calls.rotate_by_rope(*call)
    if call[6] is None and torch.is_grad_enabled():
        from . import recorded

        return recorded.rotate_by_rope(*call)
    return None


def rotate_by_tables(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.rotate_by_tables`."""
    if is_dynamo_compiling():
        return None
    results = entry.native_rotate_by_tables(*call)
    if results is not None:
        return results
    if _is_on_gpu(call[4]):
        from . import gpu_calls

        return gpu_calls.rotate_by_tables(*call)
    if call[9] is None and torch.is_grad_enabled():
        from . import recorded

        return recorded.rotate_by_tables(*call)
    return None


def look_up_angles(*call: Any) -> Any:
    """See :meth:`rope_xp.backend.Backend.look_up_angles`."""
    return None if is_dynamo_compiling() else entry.native_look_up_angles(*call)


def _is_on_gpu(x: torch.Tensor) -> bool:
    from . import gpu  # for what a CPU does not need

    return x.device.type in gpu.DEVICES
