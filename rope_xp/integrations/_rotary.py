"""Read the rotary modules of transformers: their buffers, and the RoPE of their configurations."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rope_xp._core.errors import RopeError, rewording
from rope_xp.hf import from_hf_config
from rope_xp.rope import RoPE
from rope_xp.scaling import Axial, LongRoPE

# Errors of a module's own code for arguments that it does not expect.
FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def rotary_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, module in model.named_modules():
        if type(module).__name__ == "VoxtralRealtimeTimeEmbedding":
            continue  # its inv_freq is of a sinusoidal embedding
        if any(key.endswith("inv_freq") for key, _ in module.named_buffers(recurse=False)):
            yield name, module


def layer_type(key: str) -> str | None:
    """Return the layer type of a buffer by its name, None where there is only one."""
    label = key.removesuffix("inv_freq").removesuffix("_").removesuffix("original")
    return label.removesuffix("_") or None


def label_argument(label: str | None) -> dict[str, Any]:
    return {} if label is None else {"layer_type": label}


def named_frequencies(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of frequencies, but for originals, which some scaling copies from."""
    buffers = module.named_buffers(recurse=False)
    return {key: b for key, b in buffers if key.endswith("inv_freq") and "original" not in key}


def frequency_buffers(module: torch.nn.Module) -> dict[str | None, torch.Tensor]:
    return {layer_type(key): buffer for key, buffer in named_frequencies(module).items()}


def configured_ropes(module: torch.nn.Module, label: str | None) -> list[RoPE]:
    """Return the ropes that a module's configuration has for a layer type, or for all layers."""
    config = getattr(module, "config", None)
    if config is None:
        raise RopeError("it has no configuration with a RoPE")
    with rewording(TypeError, ""):
        # These modules make tables alone; their layout depends on the functions that rotate.
        ropes = from_hf_config(config, layout="half")
    if isinstance(ropes, RoPE):
        return [ropes]
    by_label = ropes.values() if label is None else [ropes.get(label)]
    return list(dict.fromkeys(rope for rope in by_label if rope is not None))


def attention_attribute(label: str | None) -> str:
    return f"{label}_attention_scaling" if label else "attention_scaling"


def own_attention_factor(module: torch.nn.Module, label: str | None) -> Any:
    return getattr(module, attention_attribute(label), 1.0)


def regimes(rope: RoPE) -> list[RoPE]:
    """Return a rope for a short context and, where its frequencies change, for a long one."""
    lengths = [1]
    if isinstance(rope.scaling, LongRoPE):
        lengths.append(rope.scaling.original_max_position_embeddings + 1)
    return [rope.for_length(n) for n in lengths]


def rotated_pairs(rope: RoPE, size: int) -> int:
    if isinstance(rope.scaling, Axial) and rope.scaling.order != "strided":
        return size * rope.scaling.axes
    return size


def series(rope: RoPE, size: int) -> NDArray[np.float64]:
    frequencies = rope.frequencies(2 * rotated_pairs(rope, size))
    if isinstance(rope.scaling, Axial) and rope.scaling.order == "alternating":
        return frequencies[:: rope.scaling.axes]
    return frequencies[:size]


def probe_positions(rope: RoPE, numbers: list[int], step: int) -> torch.Tensor:
    """Return positions as the modules of this rope take them, whose components differ by a step."""
    positions = torch.tensor(numbers)
    components = max(rope.position_axes or (0,)) + 1
    rows = torch.stack([positions + step * i for i in range(components)])
    if isinstance(rope.scaling, Axial):
        return rows.T
    return rows[:, None] if components > 1 else rows
