"""Count the layers of a type, and list those that do not rotate."""

from rope_xp._cli.reading import Reading
from rope_xp.hf import _keys

PERIODS = {
    "gemma3": ("sliding_window_pattern", 6, 5),
    "modernbert": ("global_attn_every_n_layers", 3, 0),
}
"""Key of the period of layers with full attention, its default, and the first of these layers."""


def count_layers(reading: Reading, label: str) -> int | None:
    """Return the number of layers of a type, None where the configuration does not say."""
    part = reading.part
    types = part.get("layer_types")
    if label and isinstance(types, list):
        return types.count(label)
    key = "num_hidden_layers"
    total = _keys.read_size(part, key) or reading.model.sizes.get(key)
    if not label or total is None:
        return total
    name = str(part.get("model_type")).removesuffix("_text")
    if name not in PERIODS or label not in ("full_attention", "sliding_attention"):
        return None
    pattern, default, first = PERIODS[name]
    period = _keys.read_size(part, pattern) or default
    full = len(range(first and period - 1, total, period))
    return full if label == "full_attention" else total - full


def list_unrotated(reading: Reading) -> list[int]:
    """Return the numbers of the layers that are exempt from rotation.

    Llama 4 and SmolLM3 list a 1 for every layer that rotates, and a 0 for every other. With no
    list their code exempts every fourth.
    """
    flags = reading.part.get("no_rope_layers")
    if isinstance(flags, list) and flags:
        return [i for i, rotates in enumerate(flags) if not rotates]
    interval = _keys.read_size(reading.part, "no_rope_layer_interval")
    interval = interval or reading.model.unrotated_every
    layers = count_layers(reading, "")
    return [] if interval is None or layers is None else list(range(interval - 1, layers, interval))
