"""What a layer holds, one RoPE and the names of axes, and what it does with them."""

from dataclasses import fields
from typing import Any

from rope_xp._arguments.fields import check_rope as check_type
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp.angles import Angles
from rope_xp.rope import Positions, RoPE


def rotate(
    layer: Any, q: Any, k: Any, positions: Positions = None, *, k_positions: Positions = None
) -> tuple[Any, Any]:
    """Rotate queries and keys; the arguments are those of :func:`rope_xp.apply`."""
    rotated: tuple[Any, Any] = layer.rope.apply(
        q, k, positions, axes=layer.axes, k_positions=k_positions
    )
    return rotated


def at(layer: Any, positions: Positions, *, like: Any) -> Angles:
    """Return the angles of a forward pass, for all its layers; see :meth:`rope_xp.RoPE.at`."""
    angles: Angles = layer.rope.at(positions, like=like)
    return angles


def check_rope(rope: Any) -> RoPE:
    """Return the RoPE that a layer is to hold.

    Raises
    ------
    RopeError
        If it is a dictionary of several, as :func:`rope_xp.from_hf_config` returns of some models.
    TypeError
        If it is anything else.
    """
    if isinstance(rope, dict):
        listed = ", ".join(map(repr, rope))
        msg = f"rope holds a RoPE for each of {listed}; give a layer its own, rope[layer_type]"
        raise RopeError(msg)
    check_type(rope, RoPE)
    return rope


def describe(rope: RoPE, axes: str | None) -> str:
    """Return what is not as by default, for people to read."""
    held = {
        f.name: getattr(rope, f.name) for f in fields(rope) if getattr(rope, f.name) != f.default
    }
    if axes is not None:
        held["axes"] = axes
    return ", ".join(f"{name}={value!r}" for name, value in held.items())


def check_learned(learn: Any, head_dim: Any, heads: Any) -> tuple[int | None, int | None]:
    """Check that the sizes of what a layer learns are there, and no others; return them.

    Raises
    ------
    RopeError
        If a size is missing, is not asked for or out of range, or learn is no known word.
    TypeError
        If a size is no integer.
    """
    if learn is not None:
        numbers.check_one_of("learn", learn, ("shared", "head"))
    sizes = (
        ("head_dim", head_dim, learn is not None, "components of a head"),
        ("heads", heads, learn == "head", "heads of k"),
    )
    for name, size, needed, what in sizes:
        if size is None and needed:
            msg = (
                f"learn={learn!r} needs {name}=, {what}: frequencies that are learned are made "
                "before the layer sees q and k"
            )
            raise RopeError(msg)
        if size is not None and not needed:
            raise RopeError(f"{name}={size!r} was given, and learn={learn!r} has no use for it")
    return (
        None if head_dim is None else numbers.check_positive_int("head_dim", head_dim),
        None if heads is None else numbers.check_positive_int("heads", heads),
    )
