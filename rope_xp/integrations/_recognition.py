"""Recognise what a function of transformers that rotates does, by calling it."""

import functools
import inspect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import torch

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Layout
from rope_xp.angles import Angles
from rope_xp.integrations import _drop_in, _formats
from rope_xp.integrations._methods import Function
from rope_xp.rope import RoPE


@dataclass(frozen=True)
class RecognizedRotation:
    parameters: tuple[str, ...]
    arrays: int
    form: _formats.Format
    layout: Layout
    trailing: bool  # the slice that it rotates ends the head
    heads_first: bool  # heads come before tokens, where no ``unsqueeze_dim`` says it
    unsqueeze_dim: int | None

    def rope(self, rotary_dim: int) -> RoPE:
        offset = -rotary_dim if self.trailing else 0
        return _drop_in.load_rope(torch.compiler.is_compiling(), self.layout, rotary_dim, offset)


def own_function(function: Function) -> Function:
    """Return the model's own function where the package kernels has put a module in its place."""
    if isinstance(function, torch.nn.Module):  # whose own forward may be a kernel for a GPU
        return functools.partial(type(function).forward, function)
    return function


def recognize(
    name: str, function: Function, forms: Iterable[_formats.Format]
) -> RecognizedRotation:
    """Return what a function does to random arrays; a RopeError if no layout does the same."""
    function = own_function(function)
    parameters = inspect.signature(function).parameters
    unsqueeze = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else None
    names = tuple(parameters)
    arrays = 1 if names[1:2] == ("cos",) else 2
    slices = (True, False), (True, True), (False, False)  # partial, and then at which end
    for form, layout, heads_first, (partial, trailing), batch in itertools.product(
        forms, get_args(Layout), (True, False), slices, (True, False)
    ):
        trial = RecognizedRotation(names, arrays, form, layout, trailing, heads_first, unsqueeze)
        if _agrees(function, trial, partial, batch):
            return trial
    raise RopeError(
        f"cannot patch {name}: with tables like those of the model's rotary modules, it does not "
        "rotate in any known layout; patch(model, rotation=False) only makes the tables exact"
    )


def _agrees(function: Function, trial: RecognizedRotation, partial: bool, batch: bool) -> bool:
    """Return whether a function does what the trial says to random arrays."""
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
    sizes = {"b": 2, "h": 3, "s": 6, "d": 8 + 4 * partial}
    axes = "b" * batch + ("hs" if trial.heads_first else "sh") + "d"
    shape = [sizes[axis] for axis in axes]
    xs = tuple([torch.randn(shape, **options) for _ in range(trial.arrays)])
    angles = torch.rand((2,) * batch + (6, 4), **options)
    tables = _formats.write(angles.cos(), angles.sin(), trial.form)
    try:
        theirs = function(*xs, *tables)
    except (RuntimeError, TypeError, ValueError, LookupError, NameError):  # it is for other shapes
        return False
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    return _formats.scaled_error(rotate(trial, xs, tables, axes, None), theirs) <= 1


def rotate(
    rotation: RecognizedRotation, xs: tuple[Any, ...], tables: _formats.Tables, axes: str, norm: Any
) -> tuple[torch.Tensor, ...]:
    cos, sin = _formats.read(tables, rotation.form)
    angles = Angles(cos, sin, rotation.rope(2 * cos.shape[-1]))
    if len(xs) == 1:
        return (angles.rotate(xs[0], axes=axes, norm=norm),)
    return angles.apply(*xs, axes=axes, norm=norm)
