"""A black box: a function of any array library, called and read with numpy arrays."""

import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._core import numbers
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.errors import BROKEN, RopeError
from rope_xp._core.typing import Array, Device
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend

Function = Callable[..., Any]
Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]

LIBRARIES = ("numpy", "torch", "jax", "cupy")
_FAILURES = (*BROKEN, ArithmeticError, AssertionError, LookupError)
_EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_POSITION_FORMATS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "s": lambda p: p[0, 0],
    "bs": lambda p: p[0],
    "1s": lambda p: p[0, :1],
    "cbs": lambda p: p,
    "c1s": lambda p: p[:, :1],
    "cs": lambda p: p[:, 0],
    "sc": lambda p: p[:, 0].T,
}
"""From positions (components, batch, tokens) to those that a function takes: c is components, b the
batch, 1 a batch of one, s tokens."""


class CallRefused(Exception):  # noqa: N818  # no error yet: another way to call may work
    """A function did not take its arguments."""


class CallError(RopeError):
    """A function rejected all calls that were tried."""

    __module__ = "rope_xp"

    def __init__(self, summary: str) -> None:
        fits = "a fitting head_dim, axes, heads, components or tables"
        super().__init__(f"{summary}. Pass {fits}, or like= an array of its library")
        self.summary = summary


@dataclass(frozen=True)
class BlackBox:
    """A function, and how to call it."""

    function: Function
    tables: Function | None  # from positions to what follows the arrays; None where positions do
    names: str  # of the arrays that it takes: q, qk or qkv
    axes: str
    head_dim: int
    heads: int
    backend: Backend
    device: Device
    dtype: str
    components: int = 1
    position_format: str = "s"

    @property
    def eps(self) -> float:
        """Half a unit in the last place of 1."""
        return _EPS[self.dtype]

    def rotate(self, vectors: Floats, positions: ArrayLike) -> list[Floats]:
        """Return vectors, (n, heads, head_dim), rotated at each position, n batch entries."""
        tokens = np.shape(positions)[-1]
        x = np.broadcast_to(vectors[:, :, None], (*vectors.shape[:2], tokens, self.head_dim))
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
        """Return the function's results, and their values; raise CallRefused if that fails."""
        p = np.asarray(positions)  # (tokens,), (components, tokens) or (components, batch, tokens)
        p = p if p.ndim > 2 else p[..., None, :]
        batch = arguments[0].shape[self.axes.index("b")]
        p = np.broadcast_to(p, (self.components, batch, p.shape[-1]))
        dtype = np.int32 if self.backend.name == "jax" else np.int64  # jax has no int64 by default
        host = np.ascontiguousarray(_POSITION_FORMATS[self.position_format](p), dtype)
        device_positions = self.backend.asarray(host, self.device)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                last = (device_positions,)
                if self.tables is not None:
                    last = _to_tuple(self.tables(device_positions))
                result = self.function(*arguments, *last)
                results = _to_tuple(result) if len(self.names) > 1 else (result,)
                for y, x in zip(results, arguments, strict=False):  # it may return more
                    if find.find_backend(y) is not self.backend:
                        raise TypeError(f"it returns {type(y).__name__} for {self.backend.name}")
                    if tuple(y.shape) != tuple(x.shape):
                        shapes = f"{tuple(y.shape)} for one of {tuple(x.shape)}"
                        raise ValueError(f"it returns an array of {shapes}")
                return results, [self.read(y) for y in results[: len(arguments)]]
            except _FAILURES as error:
                text = " ".join(str(error).split())
                raise CallRefused(f"{type(error).__name__}: {text}") from error

    def put(self, x: Floats) -> Array:
        """Return an array (batch, heads, tokens, head_dim) in the function's library and axes."""
        # A copy, as some functions write in place.
        host = np.array(np.einsum(f"bhsd->{self.axes}", x), np.float32, order="C")
        array = self.backend.asarray(host, self.device)
        if self.dtype == "float32":
            return array
        dtype = getattr(self.backend.xp, self.dtype, None) or np.dtype(self.dtype)
        return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)

    def read(self, x: Array) -> Floats:
        """Return the values of such an array, (batch, heads, tokens, head_dim)."""
        if hasattr(x, "detach"):  # torch, whose bfloat16 numpy cannot read
            x = x.detach().cpu().double()
        host = np.asarray(x.get() if hasattr(x, "get") else x, np.float64)
        return np.asarray(np.einsum(f"{self.axes}->bhsd", host))


def _to_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


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
    if not callable(function):
        raise TypeError(f"function must be callable; got {type(function).__name__}")
    counts = (1, 2, 3) if components is None else (components,)
    for name, n in {"head_dim": head_dim, "heads": heads, "components": counts[0]}.items():
        numbers.check_positive_int(name, n)
    if not isinstance(axes, str) or sorted(axes) != sorted("bhsd"):
        raise RopeError(
            f"axes must name b, h, s and d, each once, such as 'bhsd' or 'bshd'; got {axes!r}"
        )
    names = "qkv"[: _count_arrays(function, tables is not None)]
    units = np.zeros((head_dim * heads, heads, head_dim))
    errors: dict[str, str] = {}
    for backend, device, dtype in _find_libraries(like):
        box = BlackBox(function, tables, names, axes, head_dim, heads, backend, device, dtype)
        for count, form in itertools.product(counts, _POSITION_FORMATS):
            candidate = replace(box, components=count, position_format=form)
            try:
                if ("c" in form) == (count > 1):
                    candidate.rotate(units, np.arange(5))  # no number of heads
                    return candidate
            except CallRefused as rejected:
                errors.setdefault(backend.name, str(rejected))
    # Errors of libraries that the function's module does not import are of the array type alone.
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    imports = [str(getattr(x, "__name__", "")) for x in vars(module or object).values()]
    roots = {name.partition(".")[0] for name in imports}
    first = [library for library in errors if library in roots][-1:] or [*errors]
    shape = ", ".join(str(head_dim) if axis == "d" else axis for axis in axes)
    name = getattr(function, "__name__", type(function).__name__)
    arrays = ", ".join(names) if len(names) > 1 else "x"
    raise CallError(
        f"could not call {name} with {arrays} of shape ({shape}); first error: {errors[first[0]]}"
    )


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


def _count_arrays(function: Function, has_tables: bool) -> int:
    """Return how many arrays a function takes before positions, or before cos and sin."""
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
