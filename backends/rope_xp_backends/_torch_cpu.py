"""torch's operator on CPUs: from tensors to kernels on their own memory."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from rope_xp import _axes

from . import _cpu, _threads
from ._cpu import Operand, Rotation, Source

if TYPE_CHECKING:
    from ._torch_op import How, Tensors

NAMES = {getattr(torch, name): name for name in ("float16", "bfloat16", "float32", "float64")}


def rotate(out: Tensors, arrays: Tensors, how: How) -> None:
    """Rotate arrays into out, or raise Unavailable before anything is written."""
    positions, table, table_2, table_3, _, axes, layout, offset, inverse = how
    rotation = Rotation(_axes.parse(axes, arrays[0].ndim, "x"), layout, offset, inverse)
    operands = tuple(
        Operand(NAMES[x.dtype], _numpy(x), _numpy(y)) for x, y in zip(arrays, out, strict=True)
    )
    if table_3 is None:
        source = Source(None, (_numpy(table), _numpy(table_2)))
    else:
        at = None if positions is None else _numpy(positions.to(torch.int64))
        source = Source(at, _digit_tables(table, table_2, table_3))
    _cpu.rotate(operands, (source,), rotation, min(_threads.limit(), torch.get_num_threads()))


# As many as in the cache of torch.py that they come from. To make them anew takes 6 us.
@lru_cache(maxsize=64)
def _digit_tables(*tables: torch.Tensor) -> tuple[np.ndarray, ...]:
    return tuple(map(_numpy, tables))


_TYPES = {2: "u2", 4: "f4", 8: "f8"}


class _Memory:
    """What numpy takes for an array: the memory of a tensor, as bits where an element has 16.

    Tensor.numpy() would forbid torch to resize the tensor ever after.
    """

    def __init__(self, x: torch.Tensor) -> None:
        self.owner, size = x, x.itemsize  # numpy keeps this object, and it the tensor
        kind = "i8" if x.dtype is torch.int64 else _TYPES[size]
        self.__array_interface__ = {
            "version": 3,
            "data": (x.data_ptr(), False),
            "shape": tuple(x.shape),
            "strides": tuple([n * size for n in x.stride()]),
            "typestr": f"={kind}",
        }


def _numpy(x: torch.Tensor) -> np.ndarray:
    return np.asarray(_Memory(x))
