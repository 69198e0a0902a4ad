"""Methods and checks that the layers of all frameworks share."""

from typing import Any

from rope_xp._arguments.fields import check_rope as check_type
from rope_xp._core.errors import RopeError
from rope_xp.angles import Angles
from rope_xp.norm import QKNorm
from rope_xp.rope import Positions, RoPE


def rotate(
    layer: Any,
    q: Any,
    k: Any,
    positions: Positions = None,
    *,
    k_positions: Positions = None,
    out: tuple[Any, Any] | None = None,
    slots: Any = None,
    cache_axes: str | None = None,
    norm: QKNorm | None = None,
) -> tuple[Any, Any]:
    """Rotate queries and keys; see :func:`rope_xp.apply`."""
    rope: RoPE = layer.rope
    options = {"k_positions": k_positions, "slots": slots, "cache_axes": cache_axes, "norm": norm}
    return rope.apply(q, k, positions, axes=layer.axes, out=out, **options)


def at(layer: Any, positions: Positions, *, like: Any, head_dim: int | None = None) -> Angles:
    """Return angles for all layers of a forward pass; see :meth:`rope_xp.RoPE.at`."""
    angles: Angles = layer.rope.at(positions, like=like, head_dim=head_dim)
    return angles


def check_rope(rope: Any) -> RoPE:
    """Return the RoPE of a layer; :func:`rope_xp.from_hf_config` may return several in a dict."""
    if isinstance(rope, dict):
        listed = ", ".join(map(repr, rope))
        raise RopeError(f"rope is a dict of {listed}; pass rope[layer_type] of this layer")
    check_type(rope, RoPE)
    return rope
