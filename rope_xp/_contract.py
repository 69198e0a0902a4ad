"""What a backend is asked, and what it may decline.

A *backend* is the glue for one array library: one :class:`Backend`. A *path* is one way to run a
call on it: one :class:`Path`. A backend lists its fast paths, fastest first; each may decline a
call with a reason. The portable path follows them all and declines nothing, so it is the truth
that fast paths are tested against.

To add a backend, see backends/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from rope_xp import _angles, _compat
from rope_xp._typing import Array, Device, Layout, Namespace

if TYPE_CHECKING:
    from rope_xp._axes import Axes
    from rope_xp.rope import RoPE


# The next four are made anew in every call and written by nobody; freezing them would cost 2 us.
@dataclass(slots=True, eq=False)
class Lookup:
    """Angles to be looked up: what :func:`rope_xp._angles.cos_sin` needs.

    Parameters
    ----------
    tables : tuple of tuple of array
        For each position component the digit tables, see :mod:`rope_xp._angles`.
    whole : array or None
        Whole part of the positions, integers, (batch..., tokens); with several position
        components (components, batch..., tokens). None: 0, 1, ... tokens - 1.
    part : array or None
        Fractional part in [0, 1), same shape; None where positions are integers.
    tokens : int
        Length of the tokens axis.
    device : device or None
        Where the tables lie.
    reach : Reach
        What is known about the size of the positions.
    wide : bool
        Whether the angles are computed in float64.
    scale : float
        Factor on cos and sin. Already in the tables unless ``wide``.
    components : int
        0 where positions have no leading axis of components, else its length.
    """

    tables: tuple[tuple[Array, ...], ...]
    whole: Array | None
    part: Array | None
    device: Device
    tokens: int
    reach: _angles.Reach
    wide: bool
    scale: float
    components: int


@dataclass(slots=True, eq=False)
class Given:
    """Angles that the caller computed: cos and sin, (batch..., tokens, r/2)."""

    cos: Array
    sin: Array


@dataclass(slots=True, eq=False)
class Difference:
    """The angles of ``new`` less those of ``old``, composed before any array is rotated by them.

    ``old`` was looked up for the inverse, so that its factor on cos and sin is undone.
    """

    new: Lookup
    old: Lookup


Angles: TypeAlias = Lookup | Given | Difference


@dataclass(slots=True, eq=False)
class Call:
    """One validated call: every shape, dtype and device in it fits.

    Parameters
    ----------
    backend : Backend
        The glue of the library that all arrays belong to.
    arrays : tuple of array
        One or two arrays (q and k) to rotate, each with the same axes.
    angles : tuple of Lookup, Given or Difference
        One for each array, or a single one that all share.
    out : tuple of array or None
        Where to write, one for each array, each either identical with its array or disjoint from
        all of them; None for new arrays.
    axes : Axes
        Where tokens, heads and batch axes lie. head_dim is last.
    layout : str
        How components pair up, see :class:`rope_xp.RoPE`.
    rotary_dim, rotary_offset : int
        The rotated slice of head_dim; both in range, the offset not negative.
    inverse : bool
        Rotate by the negative angle (and read and write layouts swapped).
    """

    backend: Backend
    arrays: tuple[Array, ...]
    angles: tuple[Angles, ...]
    out: tuple[Array, ...] | None
    axes: Axes
    layout: Layout
    rotary_dim: int
    rotary_offset: int
    inverse: bool


class Unavailable(Exception):  # noqa: N818  # no error: the next path runs
    """Raised by ``Path.run``, before it has written anything, to leave the call to the next path.

    Only for what cannot be known without importing or compiling; ``declines`` tells all else.
    """


class Path(Protocol):
    """One way to run a call."""

    @property
    def name(self) -> str:
        """The name by which ``use_backend`` and ``explain`` call the path."""
        ...

    def declines(self, call: Call) -> str | None:
        """Return why the path cannot take the call, or None if it can. Must not import or build."""
        ...

    def defers(self, call: Call) -> str | None:
        """Return why another path is better for the call, or None. Not asked of a path by name."""
        ...

    def run(self, call: Call) -> tuple[Array, ...]:
        """Return the rotated arrays, one for each of ``call.arrays``."""
        ...


@lru_cache(maxsize=64)
def numpy_name(dtype: np.dtype) -> str:
    """Return the name of a dtype of numpy, which numpy takes 2 us to put together."""
    return dtype.name


class Memory(NamedTuple):
    """Where the elements of an array lie: enough to tell whether two arrays overlap."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    itemsize: int
    writeable: bool


class Backend:
    """What rope_xp must know of one array library. The defaults need only the standard.

    Parameters
    ----------
    name : str
        The library's name, as users call it.
    xp : namespace
        Its array API namespace.
    paths : tuple of Path, optional
        Its fast paths, fastest first.
    """

    out_refusal: str | None = None
    """Why the library cannot take ``out=``, or None if it can."""
    kin: Backend | None = None
    """The backend of arrays that are taken for positions and tables too, or None for its own."""
    spread: bool = False
    """Whether an array lies on several devices, so that no path takes a call as it is."""

    def __init__(self, name: str, xp: Namespace, paths: tuple[Path, ...] = ()) -> None:
        self.name = name
        self.xp = xp
        self.paths = paths

    def __repr__(self) -> str:
        return f"<backend {self.name}>"

    def recognises(self, x: object) -> bool:
        """Return whether x is an array of this library. Asked only of third-party backends."""
        return False

    def variant(self, x: Array) -> Backend:
        """Return the backend for this kind of array of the library. Asked once a type."""
        return self

    def here(self, call: Call) -> Call:
        """Return a call like that which ``run_spread`` will run, moving nothing between devices."""
        raise NotImplementedError

    def run_spread(self, call: Call, run: Callable[[Call], tuple[Array, ...]]) -> tuple[Array, ...]:
        """Run a call on arrays that are ``spread``, by running others on what they consist of."""
        raise NotImplementedError

    def cos_sin(self, lookup: Lookup) -> tuple[Array, Array]:
        """Return cos and sin, (..., tokens, r/2), as the result of a call for them alone."""
        return _angles.cos_sin(self, lookup)

    def refusal(self, x: Array) -> str | None:
        """Return why this array of the library cannot be taken, or None. Asked once a type."""
        return None

    def is_compiling(self) -> bool:
        """Return whether a compiler is tracing the Python code of the call right now."""
        return False

    def traced(self, host: object, device: Device) -> Array:
        """Return numpy or Python numbers as an array, asked only while a compiler is tracing."""
        return self.xp.asarray(host, device=device)

    def dtype_name(self, x: Array) -> str:
        """Return the name of the dtype of x as numpy would spell it, such as "bfloat16"."""
        return str(x.dtype).rpartition(".")[2]

    def device(self, x: Array) -> Device:
        """Return the device of x, hashable; None where there is only one."""
        return _compat.device_of(x)

    def asarray(self, host: np.ndarray, device: Device) -> Array:
        """Return a numpy array as an array of the library on a device."""
        return self.xp.asarray(host, device=device)

    def settle(self, device: Device) -> None:
        """Return once all streams of a device can read what ``asarray`` put there.

        Asked of tables, which are kept for every later call. Others are read where they were put.
        """

    def length(self, x: Array, axis: int) -> Array:
        """Return what ``arange`` takes for the length of an axis that is None in the shape."""
        raise NotImplementedError

    def arange(self, n: int, device: Device) -> Array:
        """Return the integers 0 to n - 1."""
        return self.xp.arange(n, dtype=self.xp.int32, device=device)

    def integers(self, positions: Array) -> Array:
        """Return integer positions in a signed dtype of at least 32 bits, which can be indices."""
        xp, dtype = self.xp, self.dtype_name(positions)
        if dtype in ("int32", "int64"):
            return positions
        if dtype not in ("uint32", "uint64"):
            return xp.astype(positions, xp.int32)
        # Spelled with numbers that fit 32 signed bits: jax takes no others without x64.
        signed = xp.astype(positions & (_angles.LIMIT - 1), xp.int32)
        return xp.where(positions >> 31 == 0, signed, xp.full_like(signed, -_angles.LIMIT))

    def parts(self, positions: Array) -> tuple[Array, Array]:
        """Return the whole part of float positions, as int32, and the fractional part."""
        xp = self.xp
        if self.dtype_name(positions) in ("float16", "bfloat16"):
            positions = xp.astype(positions, xp.float32)
        # Not a number, infinite, or too large: the one number that the lookup takes for "outside".
        inside = xp.abs(positions) < float(_angles.LIMIT)
        positions = xp.where(inside, positions, xp.full_like(positions, -float(_angles.LIMIT)))
        floor = xp.floor(positions)
        return xp.astype(floor, xp.int32), positions - floor

    def product(self, a: Array, b: Array) -> Array:
        """Return a * b rounded to its dtype, also where a compiler likes to fuse multiply-add."""
        return a * b

    def computed_once(self, cos: Array, sin: Array) -> tuple[Array, Array]:
        """Return cos and sin such that a compiler does not compute them anew for every head."""
        return cos, sin

    def rows(self, table: Array, indices: Array) -> Array:
        """Return rows of a table, (*indices.shape, columns)."""
        if indices.ndim == 1:
            return self.xp.take(table, indices, axis=0)
        # The standard takes lines of indices only.
        rows = self.xp.take(table, self.xp.reshape(indices, (-1,)), axis=0)
        return self.xp.reshape(rows, (*indices.shape, table.shape[1]))

    def tables(
        self, rope: RoPE, head_dim: int, inverse: bool, wide: bool, like: Array
    ) -> tuple[tuple[Array, ...], ...]:
        """Return the digit tables of a rope on the device of ``like``, from a bounded cache."""
        return _tables_on_device(self, rope, head_dim, inverse, wide, self.device(like))

    def memory(self, x: Array) -> Memory | None:
        """Return where x lies, or None if the library does not tell."""
        return None

    def out_objection(self, out: Array, x: Array) -> str | None:
        """Return why this result may not be written over ``out``, or None."""
        return None

    def write(self, out: Array, result: Array) -> None:
        """Copy result into out."""
        out[...] = result


# A model has one or two ropes and a process a few devices; a table set is 2.4 MB at head_dim 128.
@lru_cache(maxsize=64)
def _tables_on_device(
    backend: Backend, rope: RoPE, head_dim: int, inverse: bool, wide: bool, device: Hashable
) -> tuple[tuple[Array, ...], ...]:
    tables = put_tables(backend, rope, head_dim, inverse, wide, device)
    backend.settle(device)
    return tables


def put_tables(
    backend: Backend, rope: RoPE, head_dim: int, inverse: bool, wide: bool, device: Device
) -> tuple[tuple[Array, ...], ...]:
    """Return the digit tables of a rope on a device, copied there anew."""
    host = _angles.host_tables(rope, head_dim, inverse, wide)
    return tuple(tuple(backend.asarray(t, device) for t in component) for component in host)
