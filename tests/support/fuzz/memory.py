"""Arrays as they may lie in memory."""

import importlib
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from support.targets import numpy_dtype

PAD = 4096  # bytes around an array, in which nothing may change, and for others to overlap it


@dataclass(frozen=True)
class View:
    """How an array lies in memory, and from which seed its numbers are."""

    dtype: str
    order: tuple[int, ...]  # its axes, the slowest first
    steps: tuple[int, ...]  # of each axis: 1, 2, backwards, or 0 for one element that is all
    swapped: bool = False  # whether in the other byte order
    shift: int = 0  # bytes from an address that is aligned to everything
    seed: int = 0


def as_torch(x):
    torch = importlib.import_module("torch")
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def measure(shape, view):
    """Return the strides of a view, how many bytes it takes, and in which its first element is."""
    strides, size = [0] * len(shape), numpy_dtype(view.dtype).itemsize
    for axis in reversed(view.order):
        strides[axis] = size * view.steps[axis]
        size *= max(1, shape[axis] * abs(view.steps[axis]))
    first = sum(-s * (n - 1) for s, n in zip(strides, shape, strict=True) if s < 0 < n)
    return tuple(strides), size, first


def lay(shape, view, numbers=None):
    """Return memory, as bytes, and an array in it of these numbers, or of random ones."""
    dtype = numpy_dtype(view.dtype)
    strides, size, first = measure(shape, view)
    memory = np.zeros(size + 2 * PAD + view.shift, np.uint8)
    made = dtype.newbyteorder() if view.swapped else dtype
    x = np.ndarray(shape, made, memory, PAD + view.shift + first, strides)
    if numbers is None:
        random = np.random.default_rng(view.seed)
        numbers = random.standard_normal(shape) * 2.0 ** random.integers(-12, 5)
    # Where an element is shared, its first number.
    once = tuple(slice(0, 1) if s == 0 else slice(None) for s in view.steps)
    x[(..., *once)] = numbers[(..., *once)].astype(dtype)
    return memory, x


def moved(memory, x, by, backwards):
    """Return a view of the same memory: ``by`` elements further on, an axis of it backwards."""
    start = x.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    strides = list(x.strides)
    if backwards is not None and x.shape[backwards]:
        start += strides[backwards] * (x.shape[backwards] - 1)
        strides[backwards] *= -1
    return np.ndarray(x.shape, x.dtype, memory, start + by * x.itemsize, tuple(strides))


def addresses(x):
    offsets = np.tensordot(x.strides, np.indices(x.shape), 1) if x.ndim else 0
    return x.__array_interface__["data"][0] + offsets


def same_elements(x, y):
    return x.shape == y.shape and np.array_equal(addresses(x), addresses(y))


def apart(targets, arrays):
    """Return whether results can be written: to memory that is not read but in its own place."""
    if any(np.unique(addresses(target)).size < target.size for target in targets):
        return False
    own = [*zip(targets, arrays, strict=True)]
    others = [pair for pair in own if not same_elements(*pair)]
    if len(own) == 2:
        others += [targets, (targets[0], arrays[1]), (targets[1], arrays[0])]
    return not any(starmap(np.shares_memory, others))
