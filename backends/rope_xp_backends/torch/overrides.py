"""Calls under modes that override functions of torch, and on classes derived from tensors.

As for functions of torch.nn.functional, they see one function in place of each operation within.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from .library import PLAIN

_PLAIN_FUNCTION = getattr(torch.Tensor.__torch_function__, "__func__", None)
_PLAIN_DISPATCH: Any = getattr(torch.Tensor, "__torch_dispatch__", None)


def run(function: Callable[..., Any], call: tuple[Any, ...], place: int) -> Any:
    """Run an entry again as overrides see it; None to leave the call to the slow path.

    ``call`` has q and k at ``place`` and behind it.
    """
    arrays = [x for x in call[place : place + 2] if isinstance(x, torch.Tensor)]
    if not all(_is_transparent(type(x)) for x in arrays):
        return None
    if has_torch_function(arrays):
        return handle_torch_function(function, arrays, *call)
    if all(type(x) in PLAIN for x in arrays):
        return None
    q, k = (
        x.as_subclass(torch.Tensor) if type(x) not in PLAIN and x is not None else x
        for x in call[place : place + 2]
    )
    return function(*call[:place], q, k, *call[place + 2 :])


def _is_transparent(cls: type) -> bool:
    """Return whether results of a class are those of its numbers."""
    function = getattr(getattr(cls, "__torch_function__", None), "__func__", None)
    dispatch = getattr(cls, "__torch_dispatch__", None)
    return cls in PLAIN or (function is _PLAIN_FUNCTION and dispatch is _PLAIN_DISPATCH)
