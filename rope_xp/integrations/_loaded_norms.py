"""Read the norm of q and k of a loaded model's attention, from its calls."""

from typing import Any, Literal

import torch

from rope_xp._core.errors import RopeError
from rope_xp.hf import NormPlan
from rope_xp.integrations._loaded_calls import Made, Rotation

_NAMES = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
    ("qk_norm", "qk_norm"),
)
_OTHERS = ("v", "q_a", "kv_a")  # of values, and of latent attention before its last projection
_EPS = ("variance_epsilon", "eps")


def read_norm(
    attention: torch.nn.Module, calls: list[Made | Rotation], head_dim: int, heads: int
) -> NormPlan | None:
    """Return the norm that an attention has by one of its usual names; None if there is none."""
    names: tuple[str, ...] = next((pair for pair in _NAMES if hasattr(attention, pair[0])), ())
    norms: dict[str, Any] = {
        a: getattr(attention, name, None) for a, name in zip("qk", names, strict=False)
    }
    made = {call.module: (i, call) for i, call in enumerate(calls) if isinstance(call, Made)}
    rotations = _list_rotated(attention, calls)
    if rotations:
        (first, x), own = rotations[0], set(norms.values())
        before = {m: call for m, (i, call) in made.items() if i < first and m not in own}
        _refuse_others(attention, before, {head_dim, head_dim * heads, x.shape[-1]})
    arrays = [array for array, norm in norms.items() if norm in made]
    if not arrays:
        return None
    i, call = made[norms[arrays[0]]]
    size, measured = int(call.arguments[0].shape[-1]), _measure(call)
    if measured is None or size not in (head_dim, head_dim * heads):
        raise RopeError(f"its {names[0]} is none of RMSNorm and LayerNorm over heads")
    kind, eps, offset = measured
    weighted = [a for a in arrays if next(norms[a].parameters(), None) is not None]
    return NormPlan(
        eps=eps,
        kind=kind,
        offset=offset,
        over="head" if size == head_dim else "all heads",
        after_rotation=bool(rotations) and rotations[0][0] < i,
        arrays=(*arrays,),
        weighted=(*weighted,),
    )


def _list_rotated(
    attention: torch.nn.Module, calls: list[Made | Rotation]
) -> list[tuple[int, torch.Tensor]]:
    """Return the arrays that an attention rotates, each with the number of its call."""
    own = ((i, x) for i, x in enumerate(calls) if isinstance(x, Rotation) and x.module is attention)
    return [(i, x) for i, call in own for x in call.arrays]


def _refuse_others(
    attention: torch.nn.Module, before: dict[torch.nn.Module, Made], sizes: set[int]
) -> None:
    """Raise for a norm of another name before the rotation, which may be one of q or k."""
    for name, module in attention.named_children():
        is_norm = "norm" in type(module).__name__.lower() and not name.startswith(_OTHERS)
        if is_norm and module in before:
            size = before[module].results[0].shape[-1]
            if size in sizes:
                raise RopeError(f"its {name} may be a norm of q or k, of {size} components")


def _measure(call: Made) -> tuple[Literal["rms", "layer"], float, float] | None:
    """Return the norm that has these results, its eps and the offset of its weights."""
    module, x, y = call.module, call.arguments[0].double(), call.results[0].double()
    eps: Any = next((getattr(module, name) for name in _EPS if hasattr(module, name)), None)
    weight: Any = getattr(module, "weight", None)
    kinds: tuple[Literal["rms", "layer"], ...] = ("rms", "layer")
    for kind in kinds if eps else ():
        z = x - x.mean(-1, keepdim=True) if kind == "layer" else x
        z = z / (z.square().mean(-1, keepdim=True) + eps).sqrt()
        for offset in (0.0, 1.0):
            w = 1.0 if weight is None else weight.double() + offset
            if torch.allclose(y, z * w, rtol=1e-2, atol=1e-3):  # of 16 bits
                return kind, float(eps), offset
    return None
