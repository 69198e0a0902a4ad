"""Open a black box: find the library and the format of positions that a function takes."""

import inspect
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rope_xp._core import numbers
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Device
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.testing._box import POSITION_FORMATS, BlackBox, CallRefused, Function

LIBRARIES = ("numpy", "torch", "jax", "cupy")


class CallError(RopeError):
    """A function rejected all calls that were tried."""

    __module__ = "rope_xp"

    def __init__(self, summary: str) -> None:
        fits = "a fitting head_dim, axes, heads, components or tables"
        super().__init__(f"{summary}. Pass {fits}, or like= an array of its library")
        self.summary = summary


def open_boxes(
    function: Function,
    head_dim: int,
    axes: str,
    tables: Function | None,
    like: Array | None,
    heads: int,
    components: int | None,
    **more: Any,
) -> Iterator[BlackBox]:
    """Yield a function with the first way of calling that it takes, for each count of components.

    CallError for none. ``more`` are fields of BlackBox.
    """
    if not callable(function):
        raise TypeError(f"function must be callable; got {type(function).__name__}")
    counts = (1, 2, 3) if components is None else (components,)
    for name, n in {"head_dim": head_dim, "heads": heads, "components": counts[0]}.items():
        numbers.check_positive_int(name, n)
    if not isinstance(axes, str) or sorted(axes) != sorted("bhsd"):
        raise RopeError(
            f"axes must name b, h, s and d, each once, such as 'bhsd' or 'bshd'; got {axes!r}"
        )
    parameters = _list_parameters(function)
    numbers_of_arrays = _count_arrays(parameters, tables is not None, more.get("slots", False))
    zeros = np.zeros((heads + 5, heads, head_dim))  # a batch that is no number of heads or tokens
    errors: dict[str, str] = {}
    for backend, device, dtype in _find_libraries(like):
        box = BlackBox(function, tables, "", axes, head_dim, heads, backend, device, dtype, **more)
        opened = False
        for count in counts:
            for arrays, form in itertools.product(numbers_of_arrays, POSITION_FORMATS):
                if ("c" in form) != (count > 1):
                    continue
                names = "qkv"[:arrays]
                candidate = replace(box, names=names, components=count, position_format=form)
                try:
                    candidate.rotate(zeros, np.arange(5))
                except CallRefused as rejected:
                    errors.setdefault(backend.name, str(rejected))
                    continue
                opened = True
                yield candidate
                break
        if opened:
            return
    names = "qkv"[: numbers_of_arrays[0]]
    shape = ", ".join(str(head_dim) if axis == "d" else axis for axis in axes)
    has_all = tables is not None or more.get("slots", False)
    raise CallError(_explain_errors(function, errors, names, shape, parameters, has_all=has_all))


def _explain_errors(
    function: Function,
    errors: dict[str, str],
    names: str,
    shape: str,
    parameters: list[inspect.Parameter] | None,
    *,
    has_all: bool,
) -> str:
    """Return what a function was called with, what else it needs, and its first error."""
    # Errors of libraries that the function's module does not import are of the array type alone.
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    imports = [str(getattr(x, "__name__", "")) for x in vars(module or object).values()]
    roots = {name.partition(".")[0] for name in imports}
    first = [library for library in errors if library in roots][-1:] or [*errors]
    name = getattr(function, "__name__", type(function).__name__)
    given = ", ".join(names) if len(names) > 1 else "x"
    summary = f"could not call {name} with {given} of shape ({shape})"
    required = [p.name for p in parameters or () if p.default is inspect.Parameter.empty]
    unknown = ", ".join(required[len(names) + 1 :])
    takes_tables = required[len(names) :][:1] in (["cos"], ["freqs"])
    if unknown and not takes_tables and not has_all:
        summary += f", as it needs {unknown} too: bind them, as in lambda {given}, positions: "
        summary += f"{name}({given}, positions, {unknown}), or see rope_xp.testing.conventions"
    return f"{summary}; first error: {errors[first[0]]}"


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


def _list_parameters(function: Function) -> list[inspect.Parameter] | None:
    """Return what can be passed by its place; None for compiled code that has no signature."""
    # A torch module itself takes any arguments; its method forward has the signature.
    called = getattr(function, "forward", function)
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in parameters if parameter.kind in kinds]


def _count_arrays(
    parameters: list[inspect.Parameter] | None, has_tables: bool, has_slots: bool
) -> tuple[int, ...]:
    """Return how many arrays a function takes before positions or tables, likeliest first."""
    if parameters is None or has_slots:
        return (2,)
    for i, parameter in enumerate(parameters):
        if parameter.name.startswith(("pos", "cos", "freqs")) and i:
            return (min(i, 3),)
    required = sum(p.default is inspect.Parameter.empty for p in parameters)
    others = (2, 1) if has_tables else (1,)  # cos and sin, or one table
    return tuple(min(max(required - n, 1), 3) if required else 2 for n in others)
