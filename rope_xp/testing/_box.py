"""A black box: a function of any array library, called and read with numpy arrays."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._core.dtypes import FLOATS
from rope_xp._core.errors import BROKEN, RopeError
from rope_xp._core.typing import Array, Device
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

Function = Callable[..., Any]
Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]

_FAILURES = (*BROKEN, ArithmeticError, AssertionError, LookupError)
LIBRARIES = ("numpy", "torch", "jax", "cupy")
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class CallRefused(Exception):  # noqa: N818  # no error yet: another way to call may work
    """A function did not take its arguments."""


class CallError(RopeError):
    """A function that takes none of the calls that were tried."""

    __module__ = "rope_xp"

    summary: str
    """The call and the first error, without advice."""


@dataclass(frozen=True)
class BlackBox:
    """A function, and how to call it."""

    function: Function
    tables: Function | None
    """From positions to what follows the arrays; None where positions do."""
    names: str
    """Of the arrays that it takes: q, qk or qkv."""
    axes: str
    head_dim: int
    heads: int
    backend: Backend
    device: Device
    dtype: str
    components: int = 1
    position_axes: str = "s"
    """Axes of positions: c for components, b for the batch, 1 for a batch of one, s for tokens."""

    def rotate(self, vectors: Floats, positions: ArrayLike) -> list[Floats]:
        """Return vectors, (n, heads, head_dim), rotated at each position by each array's rotation.

        Each vector stands at all tokens of a batch entry of its own. Raises CallRefused.
        """
        batch, heads, head_dim = vectors.shape
        shape = (batch, heads, np.shape(positions)[-1], head_dim)
        x = np.broadcast_to(vectors[:, :, None, :], shape)
        return self.call([self.put(x) for _ in self.names], positions)[1]

    def accepts(self, positions: ArrayLike) -> bool:
        """Return whether the function takes these positions."""
        try:
            self.rotate(np.zeros((1, self.heads, self.head_dim)), positions)
        except CallRefused:
            return False
        return True

    def call(
        self, arguments: list[Array], positions: ArrayLike
    ) -> tuple[tuple[Array, ...], list[Floats]]:
        """Return the function's results, and their values; raise CallRefused if that fails.

        Positions are (tokens,), (components, tokens) or (components, batch, tokens).
        """
        batch = arguments[0].shape[self.axes.index("b")]
        placed = self._put_positions(np.asarray(positions), batch)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                rest = (placed,) if self.tables is None else _to_tuple(self.tables(placed))
                result = self.function(*arguments, *rest)
                results = _to_tuple(result) if len(self.names) > 1 else (result,)
                pairs = zip(results, arguments, strict=False)  # it may return more than arrays
                return results, [self._read_result(y, x) for y, x in pairs]
            except _FAILURES as error:
                text = " ".join(str(error).split())
                raise CallRefused(f"{type(error).__name__}: {text}") from error

    def _read_result(self, y: Any, x: Array) -> Floats:
        if find.find_backend(y) is not self.backend:
            raise TypeError(f"it returns {type(y).__name__} for {self.backend.name}")
        if tuple(y.shape) != tuple(x.shape):
            raise ValueError(f"it returns an array of {tuple(y.shape)} for one of {tuple(x.shape)}")
        return self.read(y)

    def put(self, x: Floats) -> Array:
        """Return an array (batch, heads, tokens, head_dim) in the function's library and axes."""
        # A copy, as some functions write in place.
        ordered = np.array(np.moveaxis(x, (0, 1, 2, 3), self._axis_order), np.float32, order="C")
        array = self.backend.asarray(ordered, self.device)
        if self.dtype == "float32":
            return array
        dtype = getattr(self.backend.xp, self.dtype, None) or np.dtype(self.dtype)
        return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)

    def read(self, x: Array) -> Floats:
        """Return the values of such an array, (batch, heads, tokens, head_dim)."""
        return np.asarray(np.moveaxis(to_host(x), self._axis_order, (0, 1, 2, 3)), np.float64)

    def _put_positions(self, positions: NDArray[Any], batch: int) -> Array:
        if positions.ndim < 3:
            positions = positions[..., None, :]
        p = np.broadcast_to(positions, (self.components, batch, positions.shape[-1]))
        if "b" not in self.position_axes:
            p = p[:, :1] if "1" in self.position_axes else p[:, 0]
        if "c" not in self.position_axes:
            p = p[0]
        if self.position_axes == "sc":
            p = p.T
        dtype = np.int32 if self.backend.name == "jax" else np.int64  # jax has no int64 by default
        return self.backend.asarray(np.ascontiguousarray(p, dtype), self.device)

    @property
    def _axis_order(self) -> list[int]:
        return [self.axes.index(axis) for axis in "bhsd"]


def to_host(x: Array) -> NDArray[Any]:
    """Return an array of any library as one of numpy, in float64 where it is of 16 bits."""
    if hasattr(x, "detach"):  # torch, whose bfloat16 numpy cannot read
        x = x.detach().cpu()
        return np.asarray(x.double() if x.is_floating_point() else x)
    return np.asarray(x.get() if hasattr(x, "get") else x, np.float64)


def find_buffer(x: Array) -> int:
    """Return a number that all views of one buffer share."""
    if hasattr(x, "untyped_storage"):
        return int(x.untyped_storage().data_ptr())
    while getattr(x, "base", None) is not None:
        x = x.base
    return id(x)


def _to_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


# --- how to call ---------------------------------------------------------------------------------


def open_box(
    function: Function,
    head_dim: int,
    axes: str,
    tables: Function | None,
    like: Array | None,
    heads: int,
    components: int | None,
) -> BlackBox:
    """Return a function with the first way of calling that it takes; raise CallError for none."""
    names = "qkv"[: count_arrays(function, tables is not None)]
    units = np.zeros((head_dim * heads, heads, head_dim))
    errors: dict[str, str] = {}
    for backend, device, dtype in _find_libraries(like):
        box = BlackBox(function, tables, names, axes, head_dim, heads, backend, device, dtype)
        for count in (1, 2, 3) if components is None else (components,):
            for position_axes in ("s", "bs", "1s") if count == 1 else ("cbs", "c1s", "cs", "sc"):
                candidate = replace(box, components=count, position_axes=position_axes)
                try:
                    candidate.rotate(units, np.arange(5))  # no number of heads
                except CallRefused as refused:
                    errors.setdefault(backend.name, str(refused))
                else:
                    return candidate
    # Errors of libraries that the function does not use are of the array type alone.
    used = [library for library in errors if library in _list_imports(function)]
    shape = ", ".join(str(head_dim) if axis == "d" else axis for axis in axes)
    name = getattr(function, "__name__", type(function).__name__)
    arrays = ", ".join(names) if len(names) > 1 else "x"
    first = errors[used[-1] if used else next(iter(errors))]
    summary = f"could not call {name} with {arrays} of shape ({shape}); first error: {first}"
    fits = "head_dim, axes, heads, components or tables that fit"
    error = CallError(f"{summary}. Give {fits}, or an array of its library as like")
    error.summary = summary
    raise error


def _find_libraries(like: Array | None) -> Iterator[tuple[Backend, Device, str]]:
    if like is not None:
        backend = find.require_backend(like, "like")
        dtype = backend.dtype_name(like)
        if dtype not in FLOATS:
            raise RopeError(f"like must be of {', '.join(FLOATS)}; got {dtype}")
        yield backend, backend.device(like), dtype
        return
    # numpy first: the others take its arrays, but return their own, and so are told from it.
    for row in sorted(find.libraries, key=lambda row: row.name != "numpy"):
        if row.name not in LIBRARIES or row.name not in sys.modules:
            continue
        backend = row.load()
        try:
            backend.asarray(np.zeros(1, np.float32), None)
        except RuntimeError:  # cupy's, where there is no GPU
            continue
        yield backend, None, "float32"


def _list_imports(function: Function) -> set[str]:
    """Return the packages that the globals of a function's module name."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    names = (getattr(value, "__name__", "") for value in vars(module or object).values())
    return {name.partition(".")[0] for name in names if isinstance(name, str)}


def count_arrays(function: Function, has_tables: bool) -> int:
    """Return how many arrays a function takes before positions, or before cos and sin.

    Examples
    --------
    >>> count_arrays(lambda q, k, positions: (q, k), False)
    2
    >>> count_arrays(lambda x, cos, sin, axis=1: x, True)
    1
    """
    # A torch module itself takes any arguments; its method forward has the signature.
    called = getattr(function, "forward", function)
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # compiled code may have no signature
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters if parameter.kind in kinds]
    for i, parameter in enumerate(positional):
        if parameter.name.startswith(("pos", "cos", "freqs")) and i:
            return min(i, 3)
    required = sum(p.default is inspect.Parameter.empty for p in positional)
    return min(max(required - (2 if has_tables else 1), 1), 3) if required else 2
