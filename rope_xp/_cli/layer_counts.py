"""How many layers are of a type, and which of them do not rotate."""

from collections.abc import Mapping
from typing import Any

from rope_xp._cli.reading import Reading
from rope_xp.hf import _keys

PERIODS = {
    "gemma3": ("sliding_window_pattern", 6, 5),
    "modernbert": ("global_attn_every_n_layers", 3, 0),
}
"""Key of the period of layers with full attention, its default, and the first of these layers."""


def count_layers(reading: Reading, label: str) -> int | None:
    """Return how many layers are of a type, None where that is not known."""
    part = reading.part
    types = part.get("layer_types")
    if label and isinstance(types, list):
        return types.count(label)
    key = "num_hidden_layers"
    whole = _keys.read_size(part, key) or reading.model.sizes.get(key)
    if not label or whole is None:
        return whole
    name = str(part.get("model_type")).removesuffix("_text")
    if name not in PERIODS or label not in ("full_attention", "sliding_attention"):
        return None
    pattern, usual, first = PERIODS[name]
    period = _keys.read_size(part, pattern) or usual
    full = len(range(first % period if first == 0 else period - 1, whole, period))
    return full if label == "full_attention" else whole - full


def list_unrotated(reading: Reading) -> list[int]:
    """Return the numbers of the layers that are exempt from rotation.

    Llama 4 and SmolLM3 list a 1 for every layer that rotates, and a 0 for every other. With no
    list their code exempts every fourth.
    """
    part: Mapping[str, Any] = reading.part
    listed = part.get("no_rope_layers")
    if isinstance(listed, list) and listed:
        return [i for i, rotates in enumerate(listed) if not rotates]
    every = _keys.read_size(part, "no_rope_layer_interval") or reading.model.unrotated_every
    layers = count_layers(reading, "")
    return [] if every is None or layers is None else list(range(every - 1, layers, every))
