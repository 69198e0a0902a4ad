"""A black box: a function of any array library, called and read with numpy arrays."""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rope_xp._core.errors import BROKEN, RopeError
from rope_xp._core.typing import Array, Device
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.testing._norm import Norm
from rope_xp.testing._slots import FILL, read_slots

Function = Callable[..., Any]
Floats = NDArray[np.float64]
Complex = NDArray[np.complex128]

_FAILURES = (*BROKEN, ArithmeticError, AssertionError, LookupError)
_EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
POSITION_FORMATS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
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


class BeyondLimit(CallRefused):
    """Positions are larger than the function may be called with."""


class OutOfTimeError(RopeError):
    """The time for calls is spent."""


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
    norm: Norm | None = None  # that the function applies before the rotation
    slots: bool = False  # whether it writes k to slots of a cache, its last two arguments
    max_tokens: float = math.inf  # of a call
    limit: float = math.inf  # of positions, such as the rows of a table that a kernel reads
    deadline: float = math.inf  # of time.monotonic, by which calls end
    spent: list[float] = field(default_factory=lambda: [0.0, 0.0])  # seconds, and vectors so far

    @property
    def eps(self) -> float:
        """Half a unit in the last place of 1."""
        return _EPS[self.dtype]

    @property
    def pace(self) -> float:
        """Seconds that a vector of head_dim has taken so far."""
        seconds, vectors = self.spent
        return seconds / max(vectors, 1.0)

    def count_affordable(self) -> int:
        """Return the tokens of a call that leaves most of the time."""
        vectors = 0.1 * (self.deadline - time.monotonic()) / max(self.pace, 1e-9)
        return int(min(vectors / (self.heads * len(self.names)), self.max_tokens, 1 << 30))

    def rotate(self, vectors: Floats, positions: ArrayLike) -> list[Floats]:
        """Return vectors, (n, heads, head_dim), rotated at each position, n batch entries."""
        tokens = np.shape(positions)[-1]
        entries = int(max(1, min(len(vectors), self.max_tokens // tokens)))
        parts = []
        for part in (vectors[i : i + entries] for i in range(0, len(vectors), entries)):
            # A norm is undone: the function gets what it makes multiples of these vectors.
            inputs = [self.norm.invert(part, n) if self.norm else (part, 1.0) for n in self.names]
            shape = (*part.shape[:2], tokens, self.head_dim)
            arrays = [self.put(np.broadcast_to(x[:, :, None], shape)) for x, _ in inputs]
            results = self.call(arrays, positions)[1]
            parts.append([y * size for y, (_, size) in zip(results, inputs, strict=False)])
        return [np.concatenate(results) for results in zip(*parts, strict=True)]

    def accepts(self, positions: ArrayLike) -> bool:
        try:
            self.rotate(np.zeros((1, self.heads, self.head_dim)), positions)
        except CallRefused:
            return False
        return True

    def call(
        self, arguments: list[Array], positions: ArrayLike
    ) -> tuple[tuple[Array, ...], list[Floats]]:
        """Return the function's results, and their values; raise CallRefused if that fails."""
        if np.max(positions, initial=0) >= self.limit:
            raise BeyondLimit(f"it may be called with positions below {self.limit} alone")
        start, size = time.monotonic(), sum(math.prod(x.shape) for x in arguments) // self.head_dim
        if start + self.pace * size > self.deadline:
            raise OutOfTimeError("no answer within the given seconds; pass more, or fewer heads")
        try:
            return self._call(arguments, positions)
        finally:
            self.spent[0] += time.monotonic() - start
            self.spent[1] += size

    def _call(
        self, arguments: list[Array], positions: ArrayLike
    ) -> tuple[tuple[Array, ...], list[Floats]]:
        p = np.asarray(positions)  # (tokens,), (components, tokens) or (components, batch, tokens)
        p = p if p.ndim > 2 else p[..., None, :]
        batch = arguments[0].shape[self.axes.index("b")]
        p = np.broadcast_to(p, (self.components, batch, p.shape[-1]))
        dtype = np.int32 if self.backend.name == "jax" else np.int64  # jax has no int64 by default
        host = np.ascontiguousarray(POSITION_FORMATS[self.position_format](p), dtype)
        device_positions = self.backend.asarray(host, self.device)
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            try:
                last = (device_positions,)
                if self.tables is not None:
                    last = to_tuple(self.tables(device_positions))
                if self.slots:
                    return self._call_with_slots(arguments, last)
                result = self.function(*arguments, *last)
                results = to_tuple(result) if len(self.names) > 1 else (result,)
                for y, x in zip(results, arguments, strict=False):  # it may return more
                    self._check_result(y, x)
                return results, [self.read(y) for y in results[: len(arguments)]]
            except _FAILURES as error:
                text = " ".join(str(error).split())
                raise CallRefused(f"{type(error).__name__}: {text}") from error

    def _check_result(self, y: Array, x: Array) -> None:
        if find.find_backend(y) is not self.backend:
            raise TypeError(f"it returns {type(y).__name__} for {self.backend.name}")
        if tuple(y.shape) != tuple(x.shape):
            shapes = f"{tuple(y.shape)} for one of {tuple(x.shape)}"
            raise ValueError(f"it returns an array of {shapes}")

    def _call_with_slots(
        self, arguments: list[Array], last: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], list[Floats]]:
        """Call a function that writes k to a cache, and read k from there."""
        sizes = dict(zip(self.axes, arguments[1].shape, strict=True))
        batch, tokens = sizes["b"], sizes["s"]
        slots = np.random.default_rng(tokens).permutation(2 * batch * tokens + 3)[: batch * tokens]
        cache = self._put_host(np.full((2 * len(slots) + 3, sizes["h"], self.head_dim), FILL))
        q, *returned = to_tuple(
            self.function(*arguments, *last, cache, self.backend.asarray(slots, self.device))
        )
        self._check_result(q, arguments[0])
        keys = read_slots(read_host(returned[0] if returned else cache), slots)
        k = np.moveaxis(keys.reshape(batch, tokens, *keys.shape[1:]), 1, 2)
        return (q, arguments[1]), [self.read(q), k]

    def put(self, x: Floats) -> Array:
        """Return an array (batch, heads, tokens, head_dim) in the function's library and axes."""
        return self._put_host(np.einsum(f"bhsd->{self.axes}", x))

    def _put_host(self, x: Floats) -> Array:
        # A copy, as some functions write in place.
        host = np.array(x, np.float32, order="C")
        array = self.backend.asarray(host, self.device)
        if self.dtype == "float32":
            return array
        dtype = getattr(self.backend.xp, self.dtype, None) or np.dtype(self.dtype)
        return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)

    def read(self, x: Array) -> Floats:
        """Return the values of such an array, (batch, heads, tokens, head_dim)."""
        return np.asarray(np.einsum(f"{self.axes}->bhsd", read_host(x)))


def read_host(x: Array) -> Floats:
    if hasattr(x, "detach"):  # torch, whose bfloat16 numpy cannot read
        x = x.detach().cpu().double()
    return np.asarray(x.get() if hasattr(x, "get") else x, np.float64)


def to_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
