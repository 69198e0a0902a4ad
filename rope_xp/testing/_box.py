"""A black box: a function of somebody's library, asked with numpy arrays and answered by them."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._contract.dtypes import FLOATS
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array, Device
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

Function = Callable[..., Any]
Floats = NDArray[np.float64]

FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError),
    *(RuntimeError, TypeError, ValueError),
)
"""What a function may raise that cannot take what it is given."""
LIBRARIES = ("numpy", "torch", "jax", "cupy")
FEW = 4
TOKENS = 5  # differs from the heads, so that a function which confuses them fails
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class CallError(RopeError):
    """A function takes arrays in none of the ways that were tried; ``first`` says why not."""

    def __init__(self, message: str, first: str) -> None:
        super().__init__(f"{message}; first error: {first}")
        self.first = first


class Refused(Exception):  # noqa: N818  # no error yet: the next way of asking may do
    """A function did not take what it was given."""


@dataclass(frozen=True)
class Box:
    """A function, and how it is to be asked."""

    function: Function
    tables: Function | None
    """From positions to what follows the arrays; None where positions do."""
    arrays: int
    axes: str
    head_dim: int
    heads: int
    backend: Backend
    device: Device
    dtype: str
    components: int = 1
    order: str = "s"
    """The axes of positions, c for their components."""

    def turned(self, vectors: Floats, positions: Any) -> list[Floats]:
        """Return vectors as they are turned at each position, one result for each array.

        Parameters
        ----------
        vectors : numpy.ndarray, (n, heads, head_dim)
            Each stands at all tokens of a sequence of its own.
        positions : (tokens,) or (components, tokens)
            Where there are several components, one line is for all of them.

        Returns
        -------
        list of numpy.ndarray, (n, heads, tokens, head_dim)

        Raises
        ------
        Refused
            If the function raises, or returns something else.
        """
        at = np.asarray(positions)
        shape = (len(vectors), self.heads, at.shape[-1], self.head_dim)
        x = np.broadcast_to(vectors[:, :, None, :], shape)
        x = np.moveaxis(x, (0, 1, 2, 3), [self.axes.index(a) for a in "bhsd"])
        # Each has an array of its own, as some functions write in place.
        given = [self._put(np.array(x, np.float32, order="C")) for _ in range(self.arrays)]
        asked = self._positions(at, len(vectors))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                follows = (asked,) if self.tables is None else _several(self.tables(asked))
                result = self.function(*given, *follows)
                results = _several(result) if self.arrays > 1 else (result,)
                return [self._fetch(each, x.shape) for each in results[: self.arrays]]
            except FAILURES as error:
                said = " ".join(str(error).split())
                raise Refused(f"{type(error).__name__}: {said}") from error

    def takes(self, vectors: Floats, positions: Any) -> bool:
        """Return whether the function answers for these positions."""
        try:
            self.turned(vectors, positions)
        except Refused:
            return False
        return True

    def _put(self, x: np.ndarray) -> Array:
        made = self.backend.asarray(x, self.device)
        if self.dtype == "float32":
            return made
        xp = self.backend.xp
        dtype = getattr(xp, self.dtype, None) or np.dtype(self.dtype)
        return made.to(dtype) if hasattr(made, "to") else made.astype(dtype)

    def _positions(self, at: np.ndarray, batch: int) -> Array:
        if "c" in self.order and at.ndim == 1:
            at = np.broadcast_to(at, (self.components, len(at)))
        if "b" in self.order or "1" in self.order:
            rows = batch if "b" in self.order else 1
            at = np.broadcast_to(at[..., None, :], (*at.shape[:-1], rows, at.shape[-1]))
        if self.order == "sc":
            at = at.T
        dtype = (
            np.int32 if self.backend.name == "jax" else np.int64
        )  # which has no int64 by default
        return self.backend.asarray(np.ascontiguousarray(at, dtype), self.device)

    def _fetch(self, x: Any, shape: tuple[int, ...]) -> Floats:
        if find.find(x) is not self.backend:
            raise TypeError(f"it returns {type(x).__name__} for {self.backend.name}")
        if tuple(x.shape) != shape:
            raise ValueError(f"it returns an array of {tuple(x.shape)} for one of {shape}")
        back = np.moveaxis(host(x), [self.axes.index(a) for a in "bhsd"], (0, 1, 2, 3))
        return np.asarray(back, np.float64)


def host(x: Any) -> np.ndarray:
    """Return an array of any library as one of numpy, in float64 where it is of 16 bits."""
    if hasattr(x, "detach"):  # torch, of which numpy takes no bfloat16
        x = x.detach().cpu()
        return np.asarray(x.double() if x.is_floating_point() else x)
    return np.asarray(x.get() if hasattr(x, "get") else x, np.float64)


def _several(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


# --- how to ask ----------------------------------------------------------------------------------


def opened(
    function: Function,
    head_dim: int,
    axes: str,
    tables: Function | None,
    like: Array | None,
    heads: int,
    components: int | None,
) -> Box:
    """Return a function with the first way of asking that it takes.

    Raises
    ------
    RopeError
        If it takes none; with what it raised.
    """
    arrays = count_arrays(function, tables is not None)
    vectors = np.zeros((head_dim * heads, heads, head_dim))
    first = "no library of arrays is loaded"
    for backend, device, dtype in _libraries(like):
        box = Box(function, tables, arrays, axes, head_dim, heads, backend, device, dtype)
        for i, way in enumerate(_ways(box, components)):
            try:
                way.turned(vectors, np.arange(TOKENS))
            except Refused as refused:
                # Of the library that was loaded last: numpy is there whoever asks.
                first = f"{refused} ({backend.name})" if i == 0 else first
            else:
                return way
    message = (
        f"could not call function with arrays of axes {axes!r}, head_dim = {head_dim} and {heads} "
        "heads. Give head_dim, axes, heads, components, tables, or an array of its library as like"
    )
    raise CallError(message, first)


def _ways(box: Box, components: int | None) -> Iterator[Box]:
    if components in (None, 1):
        for order in ("s", "1s", "bs"):
            yield replace(box, order=order)
    for count in (2, 3) if components is None else (components,):
        for order in ("c1s", "cbs", "cs", "sc") if count > 1 else ():
            yield replace(box, components=count, order=order)


def _libraries(like: Array | None) -> Iterator[tuple[Backend, Device, str]]:
    if like is not None:
        backend = find.backend_of(like, "like")
        dtype = backend.dtype_name(like)
        if dtype not in FLOATS:
            raise RopeError(f"like must be of {', '.join(FLOATS)}; got {dtype}")
        yield backend, backend.device(like), dtype
        return
    # numpy first: the others take its arrays and return their own, which tells them apart.
    for name in LIBRARIES:
        row = next(row for row in find.libraries if row.name == name)
        if name not in sys.modules:
            continue
        backend = row.load()
        try:
            backend.asarray(np.zeros(1, np.float32), None)
        except RuntimeError:  # cupy's, where there is no GPU
            continue
        yield backend, None, "float32"


def count_arrays(function: Function, has_tables: bool) -> int:
    """Return how many arrays a function takes before positions, or before cos and sin.

    Examples
    --------
    >>> count_arrays(lambda q, k, positions: (q, k), False)
    2
    >>> count_arrays(lambda x, cos, sin, axis=1: x, True)
    1
    """
    asked: Any = function
    if hasattr(function, "named_parameters") and hasattr(function, "forward"):
        asked = function.forward  # a module of torch is called with anything
    try:
        parameters = inspect.signature(asked).parameters.values()
    except (TypeError, ValueError):  # of a compiled one nobody knows
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [p for p in parameters if p.kind in kinds]
    for i, parameter in enumerate(places):
        if parameter.name.startswith(("pos", "cos", "freqs")) and i:
            return min(i, 3)
    needed = sum(p.default is inspect.Parameter.empty for p in places)
    return min(max(needed - (2 if has_tables else 1), 1), 3) if needed else 2
