"""torch's operator on CPUs: from tensors to kernels on their own memory."""

import numpy as np
import torch

from rope_xp._contract.caches import kept
from rope_xp._contract.call import Given, Lookup
from rope_xp._contract.library import Digits
from rope_xp_backends.cpu import launch, threads
from rope_xp_backends.cpu.compiled import KERNELS

from .arguments import How, Tensors
from .library import NAMES


def rotate(out: Tensors, arrays: Tensors, how: How) -> None:
    """Rotate arrays into out, or raise Unavailable before anything is written."""
    turn = how.turn
    (key,) = launch.keys(turn, [NAMES[arrays[0].dtype]])
    kernel = KERNELS.get(key)
    x, y = [_numpy(x) for x in arrays], [_numpy(y) for y in out]
    limit = min(threads.limit(), torch.get_num_threads())
    launch.rotate(kernel, x, y, _source(how), turn, limit)


def _source(how: How) -> Lookup | Given:
    source = how.source(0)  # tokens are counted by the kernel
    if isinstance(source, Given):
        return Given(_numpy(source.cos), _numpy(source.sin))
    source.tables = _tables(*source.digits)
    if source.whole is not None:
        source.whole = _numpy(source.whole.to(torch.int64))
    return source


# As many as in the cache of tables.py that they come from. To make them anew takes 6 us.
@kept(64)
def _tables(low: torch.Tensor, middle: torch.Tensor, high: torch.Tensor) -> Digits:
    return Digits(_numpy(low), _numpy(middle), _numpy(high), None, None)


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
