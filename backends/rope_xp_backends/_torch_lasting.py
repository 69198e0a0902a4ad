"""Tensors that outlive the call that makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

Tables: TypeAlias = tuple[tuple[torch.Tensor, ...], ...]


@contextmanager
def lasting() -> Iterator[None]:
    """Have plain tensors made, whatever the call is part of.

    Under functorch or a dispatch mode torch would make wrappers that are dead afterwards, and under
    inference_mode tensors that no backward pass may save.
    """
    with (
        torch._C._DisableFuncTorch(),  # noqa: SLF001  # torch has no public name for either
        _disable_current_modes(),
        torch.inference_mode(False),
    ):
        yield


Merged: TypeAlias = tuple[tuple[torch.Tensor, ...], torch.Tensor]


def merged(tables: Tables) -> Merged:
    """Return one set of digit tables for positions of several components, and what they read.

    In the tables of a component the frequencies of others are zero. Here each column is that of its
    own component, whose number is in the second result, (r/2,).
    """
    # A CUDA graph computes them in its own memory at each replay, where none is made to last.
    if tables[0][0].is_cuda and torch.cuda.is_current_stream_capturing():
        return _merge(tables)
    return _kept(tables)


# As many as in the cache of torch.py, whose tables these are made of.
@lru_cache(maxsize=64)
def _kept(tables: Tables) -> Merged:
    made = _merge(tables)
    device = made[1].device
    if device.type == "cuda":  # any stream may read them next, and none waits for this one
        torch.cuda.current_stream(device).synchronize()
    return made


def _merge(tables: Tables) -> Merged:
    with lasting():
        used = torch.stack([frequencies for *_, frequencies in tables]) != 0
        components = used.to(torch.int32).argmax(0).to(torch.int32)
        columns = torch.cat([components, components])
        low, middle, high = (table.clone() for table in tables[0][:3])
        scale = low[0, : len(components)].repeat(2)  # the cosine of 0, times the factor on both
        for c, (other_low, other_middle, other_high, _) in enumerate(tables[1:], 1):
            low = torch.where(columns == c, other_low * scale, low)
            middle = torch.where(columns == c, other_middle, middle)
            high = torch.where(columns == c, other_high, high)
        return (low, middle, high), components
