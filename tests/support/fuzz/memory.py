"""Arrays as they may lie in memory, and which of their elements are the same."""

import importlib
from dataclasses import dataclass

import numpy as np

from support.targets import numpy_dtype

PAD = 4096  # bytes around an array, in which nothing may change, and for others to overlap it


@dataclass(frozen=True)
class View:
    """How an array lies in memory."""

    dtype: str
    order: tuple[int, ...]  # its axes, the slowest first
    steps: tuple[int, ...]  # of each axis: 1, 2, backwards, or 0 for one element that is all
    swapped: bool = False  # whether in the other byte order
    shift: int = 0  # bytes from an address that is aligned to everything
    seed: int = 0

    def plain(self):
        """Return the like for a library that knows no negative strides and no other bytes."""
        steps, size = tuple(map(abs, self.steps)), numpy_dtype(self.dtype).itemsize
        return View(self.dtype, self.order, steps, shift=self.shift * size, seed=self.seed)


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
    found = np.full(x.shape, x.__array_interface__["data"][0], np.int64)
    for axis, (n, stride) in enumerate(zip(x.shape, x.strides, strict=True)):
        found += (np.arange(n) * stride).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return found


def touched(x):
    return (addresses(x)[..., None] + np.arange(x.itemsize)).ravel()


def shares_with_itself(x):
    own = touched(x)
    return np.unique(own).size < own.size


def same_elements(x, y):
    return x.shape == y.shape and np.array_equal(addresses(x), addresses(y))
