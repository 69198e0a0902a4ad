"""Read a configuration: the RoPE of each layer type, and the facts that a report adds to it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rope_xp._core.typing import Layout
from rope_xp.hf import _build, _files, _keys, _limits, _parts, _plan, _scaling
from rope_xp.hf._keys import EXTENDED, TRAINED, Model
from rope_xp.rope import RoPE
from rope_xp.scaling import NTK, Linear, YaRN

PERIODS = {
    "gemma3": ("sliding_window_pattern", 6, 5),
    "modernbert": ("global_attn_every_n_layers", 3, 0),
}
"""Key of the period of layers with full attention, its default, and the first of these layers."""


@dataclass(frozen=True)
class Layers:
    """Layers of one type. A number is None where the configuration does not say it."""

    label: str
    source: _scaling.Source
    rope: RoPE | None  # None for layers without positions
    head_dim: int | None
    rotated: int | None  # components
    contexts: tuple[int | None, int | None]  # the original and the extended length
    depends_on_length: bool

    @property
    def prefix(self) -> str:
        """What begins a sentence on these layers."""
        return self.label and f"{self.label}: "

    def has_base(self) -> bool:
        config = self.source.config
        shared = config.get(_keys.parameters_key(config)) or {}
        nested = shared[self.label] if isinstance(shared.get(self.label), Mapping) else shared
        layer = self.source.model.layers.get(self.label)
        keys = (layer.base_key,) if layer and layer.base_key else _keys.BASE
        return (nested.get("rope_theta"), _keys.first_value(config, *keys)) != (None, None)

    def list_lengths(self, requested: int | None) -> tuple[int, ...]:
        """Return the lengths at which to report frequencies; none where length does not matter."""
        if not self.depends_on_length:
            return ()
        if requested is not None:
            return (requested,)
        trained, extended = self.contexts
        if trained is None:  # only a scaling of another package works without it
            return (1,)
        # Where the context is no longer than the trained one, frequencies change only beyond it.
        return trained, extended if extended and extended > trained else 2 * trained


@dataclass(frozen=True)
class Reading:
    """A configuration that was read, with the argument ``layout``."""

    part: Mapping[str, Any]  # which has the rotary embedding
    path: str  # the keys that lead there
    model: Model
    layout: Layout | None
    layers: tuple[Layers, ...]

    def list_defaults(self) -> dict[str, int]:
        """Return the sizes that the configuration omits, with the defaults of its model type."""
        sizes = self.model.sizes
        return {k: sizes[k] for k in _list_missing_sizes(self.part, self.model) if k in sizes}


def read_config(config: object, layout: Layout | None = None) -> Reading:
    """Read a configuration; arguments as of :func:`rope_xp.from_hf_config`."""
    whole = _files.read_mapping(config)
    part = _parts.find_part(whole)
    model = _build.find_model(part, layout)
    ropes = _build.build_ropes(part, model)
    if _list_missing_sizes(part, model):
        model = replace(model, sizes={**_read_default_sizes(part), **model.sizes})
    parameters = _keys.read_layers(part, model)
    layers, types, overrides = [], part.get("layer_types"), _plan.read_overrides(part)
    for label, rope in ropes.items():
        where = ".".join(filter(None, (_keys.parameters_key(part), label)))
        source = _scaling.Source(part, model, parameters[label] or {}, where)
        first = types.index(label) if isinstance(types, list) and label in types else -1
        head_dim = _plan.read_head_dim(part, model, label, overrides.get(first, {}))
        rotated = head_dim if rope is None or rope.rotary_dim is None else rope.rotary_dim
        _limits.check_number("rotated components of a head", rotated, _limits.COMPONENTS)
        depends_on_length = rope is not None and rope.for_length(1) is not rope
        sizes = (head_dim, rotated, _find_contexts(source, rope))
        layers.append(Layers(label, source, rope, *sizes, depends_on_length))
    path, place = [], whole
    while names := [name for name in _parts.PARTS if isinstance(place.get(name), Mapping)]:
        path.append(names[0])
        place = place[names[0]]
    return Reading(part, ".".join(path), model, layout, tuple(layers))


def _list_missing_sizes(part: Mapping[str, Any], model: Model) -> list[str]:
    """Return the keys of sizes that a report needs and the configuration omits."""
    needed = [EXTENDED]
    if _keys.first_value(part, *_keys.HEAD_DIM, "qk_rope_head_dim") is None:
        needed += ["head_dim"] if "head_dim" in model.sizes else model.width
    if part.get("layer_types") is None:
        needed.append("num_hidden_layers")
    return [key for key in needed if _keys.read_size(part, key) is None]


def _read_default_sizes(part: Mapping[str, Any]) -> dict[str, int]:
    """Return the default sizes of the model's transformers class, none if that is not installed."""
    # transformers is not imported for configurations that omit nothing.
    config_class = _plan.find_class(part)
    defaults = {} if config_class is None else config_class().to_dict()
    keys = ("head_dim", "num_attention_heads", "hidden_size", EXTENDED, "num_hidden_layers")
    sizes = {key: defaults[key] for key in keys if isinstance(defaults.get(key), int)}
    by_width = sizes.get("hidden_size", 0) // sizes.get("num_attention_heads", 1)
    if sizes.get("head_dim") == by_width:  # it follows the width of the configuration
        del sizes["head_dim"]
    return sizes


def _find_contexts(source: _scaling.Source, rope: RoPE | None) -> tuple[int | None, int | None]:
    # Perhaps no scaling read these lengths, so they are checked here.
    extended = _keys.read_size({EXTENDED: source.extended}, EXTENDED)
    extended = extended or source.model.sizes.get(EXTENDED)
    trained = _keys.read_size({TRAINED: source.original}, TRAINED)
    scaling = None if rope is None else rope.scaling
    if trained is None and not isinstance(scaling, Linear | NTK):
        trained = extended  # Linear and NTK extend a context whose length they do not hold
    if isinstance(scaling, YaRN) and trained is not None and trained == extended:
        # Qwen's files leave max_position_embeddings at the trained length.
        extended = round(min(scaling.factor * trained, 2.0**63))
    return trained, extended


def count_layers(part: Mapping[str, Any], model: Model, label: str) -> int | None:
    """Return the number of layers of a type, None where the configuration does not say."""
    types, key = part.get("layer_types"), "num_hidden_layers"
    if label and isinstance(types, list):
        return types.count(label)
    total = _keys.read_size(part, key) or model.sizes.get(key)
    _limits.check_number(key, total, _limits.LAYERS)
    if not label or total is None:
        return total
    name = str(part.get("model_type")).removesuffix("_text")
    if name not in PERIODS or label not in ("full_attention", "sliding_attention"):
        return None
    pattern, default, first = PERIODS[name]
    period = _keys.read_size(part, pattern) or default
    full = len(range(first and period - 1, total, period))
    return full if label == "full_attention" else total - full
