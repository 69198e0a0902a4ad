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
_KINDS: tuple[Literal["rms", "layer"], ...] = ("rms", "layer")


def read_norm(
    attention: torch.nn.Module, calls: list[Made | Rotation], head_dim: int, heads: int
) -> NormPlan | None:
    """Return the norm that an attention has by one of its usual names; None if there is none."""
    names: tuple[str, ...] = next((pair for pair in _NAMES if hasattr(attention, pair[0])), ())
    norms: dict[str, Any] = {
        a: getattr(attention, name, None) for a, name in zip("qk", names, strict=False)
    }
    made = {call.module: (i, call) for i, call in enumerate(calls) if isinstance(call, Made)}
    rotations = [
        (i, call)
        for i, call in enumerate(calls)
        if isinstance(call, Rotation) and call.module is attention
    ]
    for name, module in attention.named_children() if rotations else ():
        is_norm = "norm" in type(module).__name__.lower() and not name.startswith(_OTHERS)
        i, call = made.get(module, (len(calls), None))
        if is_norm and module not in norms.values() and call and i < rotations[0][0]:
            size = call.results[0].shape[-1]
            if size in (head_dim, head_dim * heads, rotations[0][1].arrays[0].shape[-1]):
                raise RopeError(f"its {name} may be a norm of q or k, of {size} components")
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


def _measure(call: Made) -> tuple[Literal["rms", "layer"], float, float] | None:
    """Return the norm that has these results, its eps and the offset of its weights."""
    module, x, y = call.module, call.arguments[0].double(), call.results[0].double()
    eps: Any = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    weight: Any = getattr(module, "weight", None)
    for kind in _KINDS if eps else ():
        z = x - x.mean(-1, keepdim=True) if kind == "layer" else x
        z = z / (z.square().mean(-1, keepdim=True) + eps).sqrt()
        for offset in (0.0, 1.0):
            w = 1.0 if weight is None else weight.double() + offset
            if torch.allclose(y, z * w, rtol=1e-2, atol=1e-3):  # of 16 bits
                return kind, float(eps), offset
    return None
