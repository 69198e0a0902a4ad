"""What a layer holds: one RoPE and the names of axes, both plain values."""

from dataclasses import fields
from typing import Any

from rope_xp._arguments.fields import check_rope
from rope_xp._contract.errors import RopeError
from rope_xp.rope import RoPE


def checked(rope: Any) -> RoPE:
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
    check_rope(rope, RoPE)
    return rope


def described(rope: RoPE, axes: str | None) -> str:
    """Return what is not as by default, for people to read."""
    held = {
        f.name: getattr(rope, f.name) for f in fields(rope) if getattr(rope, f.name) != f.default
    }
    if axes is not None:
        held["axes"] = axes
    return ", ".join(f"{name}={value!r}" for name, value in held.items())
