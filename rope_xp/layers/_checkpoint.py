"""Compare frequencies in checkpoints of torch with those of a RoPE."""

from collections.abc import Iterator

import torch

from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE
from rope_xp.scaling import DynamicNTK, LongRoPE

_RTOL = 1e-6
"""float32 powers and quotients differ by a few units of 6e-8."""


def find_mismatches(rope: RoPE, key: str, saved: torch.Tensor) -> Iterator[str]:
    """Yield the errors of a checkpoint whose frequencies are not those of a RoPE."""
    if saved.device.type == "meta":  # has no values
        return
    values = saved.detach().to("cpu", torch.float64)
    # Casts of a model round its buffers.
    rtol = max(_RTOL, 2 * torch.finfo(saved.dtype).eps) if saved.is_floating_point() else _RTOL
    head_dim = rope.rotary_dim or 2 * values.numel()
    try:
        candidates = [torch.from_numpy(r.frequencies(head_dim)) for r in _list_regimes(rope)]
    except RopeError as error:
        shape = tuple(values.shape)
        yield f"{key} has shape {shape}, for which the RoPE has no frequencies: {error}"
        return
    if any(values.shape == c.shape and torch.allclose(values, c, rtol, 0.0) for c in candidates):
        return
    listed = ", ".join(f"{c[:3].tolist()} ... ({len(c)})" for c in candidates)
    yield (
        f"{key} holds the frequencies {values.flatten()[:3].tolist()} ... ({values.numel()}), and "
        f"the RoPE of this Rotary has {listed}. Build it from the checkpoint's own configuration, "
        "by rope_xp.from_hf_config, or remove the key if it is wrong there"
    )


def _list_regimes(rope: RoPE) -> list[RoPE]:
    """Return the RoPE fixed for each length whose frequencies a module may have saved."""
    scaling, lengths = rope.scaling, [1]
    if isinstance(scaling, (DynamicNTK, LongRoPE)) and scaling.length is not None:
        lengths.append(scaling.length)
    if isinstance(scaling, LongRoPE):
        lengths.append(scaling.original_max_position_embeddings + 1)
    return [rope.for_length(n) for n in lengths]
