"""Frequencies in checkpoints of torch, compared with those of a RoPE."""

from collections.abc import Iterator

import torch

from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE
from rope_xp.scaling import DynamicNTK, LongRoPE

# float32 powers and quotients: a few units of 6e-8.
_CLOSE = 1e-6


def mismatches(rope: RoPE, key: str, saved: torch.Tensor) -> Iterator[str]:
    """Yield why the frequencies of a checkpoint are not those of a rope, if they are not."""
    if saved.device.type == "meta":  # which has no values
        return
    values = saved.detach().to("cpu", torch.float64)
    # A model that was cast rounded them to its dtype.
    close = max(_CLOSE, 2 * torch.finfo(saved.dtype).eps) if saved.is_floating_point() else _CLOSE
    head_dim = rope.rotary_dim or 2 * values.numel()
    try:
        expected = [torch.from_numpy(r.frequencies(head_dim)) for r in _regimes(rope)]
    except RopeError as error:
        shape = tuple(values.shape)
        yield f"{key} has shape {shape}, for which the RoPE has no frequencies: {error}"
        return
    if any(values.shape == e.shape and torch.allclose(values, e, close, 0.0) for e in expected):
        return
    listed = ", ".join(f"{e[:3].tolist()} ... ({len(e)})" for e in expected)
    yield (
        f"{key} holds the frequencies {values.flatten()[:3].tolist()} ... ({values.numel()}), and "
        f"the RoPE of this Rotary has {listed}. Make it of the checkpoint's own configuration, by "
        "rope_xp.from_hf_config, or take the key out if it is wrong there"
    )


def _regimes(rope: RoPE) -> list[RoPE]:
    """Return the rope fixed for each length whose frequencies a module may have saved."""
    rule, lengths = rope.scaling, [1]
    if isinstance(rule, (DynamicNTK, LongRoPE)) and rule.length is not None:
        lengths.append(rule.length)
    if isinstance(rule, LongRoPE):
        lengths.append(rule.original_max_position_embeddings + 1)
    return [rope.for_length(n) for n in lengths]
