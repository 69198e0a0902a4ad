"""Read a configuration: the RoPE of each layer type, and the facts that a report adds to it."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rope_xp._core.typing import Layout
from rope_xp.hf import _build, _files, _keys, _scaling, from_hf_config
from rope_xp.hf._keys import FLAT, Model, Parameters
from rope_xp.rope import RoPE
from rope_xp.scaling import NTK, Linear, YaRN

TRAINED = "original_max_position_embeddings"
EXTENDED = "max_position_embeddings"


@dataclass(frozen=True)
class Layers:
    """Layers of one type: their parameters, their RoPE and their sizes."""

    label: str
    source: _scaling.Source
    rope: RoPE | None
    """None for layers without positions."""
    head_dim: int | None

    @property
    def parameters(self) -> Parameters:
        """The rotary parameters, with defaults filled in."""
        return self.source.parameters

    @property
    def rotated(self) -> int | None:
        """Number of rotated components, None where the configuration does not say."""
        rotary_dim = None if self.rope is None else self.rope.rotary_dim
        return self.head_dim if rotary_dim is None else rotary_dim

    @property
    def slice_rope(self) -> RoPE | None:
        """The RoPE of the rotated slice alone: its offset does not change its frequencies."""
        return None if self.rope is None else replace(self.rope, rotary_offset=0)

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies change with the length of the context."""
        return self.rope is not None and self.rope.for_length(1) is not self.rope

    @property
    def contexts(self) -> tuple[int | None, int | None]:
        """Original and extended length of the context, None where the configuration omits one."""
        # Perhaps no scaling read them, so they are checked here.
        extended = _keys.read_size({EXTENDED: self.source.extended}, EXTENDED)
        extended = extended or self.source.model.sizes.get(EXTENDED)
        trained = _keys.read_size({TRAINED: self.source.original}, TRAINED)
        scaling = None if self.rope is None else self.rope.scaling
        if trained is None and not isinstance(scaling, Linear | NTK):
            trained = extended  # Linear and NTK extend a context whose length they do not hold
        if isinstance(scaling, YaRN) and trained is not None and trained == extended:
            # Qwen's files leave max_position_embeddings at the trained length.
            extended = round(scaling.factor * trained)
        return trained, extended

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
    """A configuration that was read."""

    part: Mapping[str, Any]
    """The part with the rotary embedding: the language model, or the whole."""
    path: str
    """Keys that lead to the part, such as "text_config"; empty if it is the whole."""
    model: Model
    layout: Layout | None
    """The layout argument."""
    layers: tuple[Layers, ...]


def read_config(config: object, layout: Layout | None = None) -> Reading:
    """Read a configuration; arguments as of :func:`rope_xp.from_hf_config`."""
    whole = _files.read_mapping(config)
    result = from_hf_config(whole, layout=layout)
    ropes = result if isinstance(result, dict) else {FLAT: result}
    part = _keys.find_language_part(whole)
    model = _fill_sizes(part, _build.find_model(part, layout))
    parameters = _keys.read_layers(part, model)
    layers = []
    for label, rope in ropes.items():
        where = f"rope_parameters.{label}" if label else "rope_parameters"
        source = _scaling.Source(part, model, parameters[label] or {}, where)
        layers.append(Layers(label, source, rope, _read_head_dim(part, model, label)))
        _ = layers[-1].contexts  # raises if a length is no size
    return Reading(part, _find_path(whole), model, layout, tuple(layers))


def _find_path(config: Mapping[str, Any]) -> str:
    for name in _keys.PARTS:
        if isinstance(config.get(name), Mapping):
            return ".".join(filter(None, (name, _find_path(config[name]))))
    return ""


def _list_missing_sizes(part: Mapping[str, Any], model: Model) -> Iterator[str]:
    """Yield the keys of sizes that a report needs and the configuration omits."""
    needed = [EXTENDED]
    if _keys.first_value(part, *_keys.HEAD_DIM, "qk_rope_head_dim") is None:
        needed += ["head_dim"] if "head_dim" in model.sizes else model.width
    if part.get("layer_types") is None:
        needed.append("num_hidden_layers")
    return (key for key in needed if _keys.read_size(part, key) is None)


def _fill_sizes(part: Mapping[str, Any], model: Model) -> Model:
    """Return a model with the default sizes of its transformers class, if that is installed.

    transformers is not imported for configurations that omit nothing.
    """
    if not any(_list_missing_sizes(part, model)) or not importlib.util.find_spec("transformers"):
        return model
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    name = str(part.get("model_type"))
    config_class = next((mapping[n] for n in (f"{name}_text", name) if n in mapping), None)
    defaults = {} if config_class is None else config_class().to_dict()
    keys = ("head_dim", "num_attention_heads", "hidden_size", EXTENDED, "num_hidden_layers")
    sizes = {key: defaults[key] for key in keys if isinstance(defaults.get(key), int)}
    by_width = sizes.get("hidden_size", 0) // sizes.get("num_attention_heads", 1)
    if sizes.get("head_dim") == by_width:  # it follows the width of the configuration
        del sizes["head_dim"]
    return replace(model, sizes={**sizes, **model.sizes})


def _read_head_dim(part: Mapping[str, Any], model: Model, label: str) -> int | None:
    """Return the components of a head of one layer type."""
    latent = _keys.read_size(part, "qk_rope_head_dim")
    if latent is not None:
        rest = _keys.read_size(part, "qk_nope_head_dim")
        return None if rest is None else rest + latent
    # Gemma 4 has wider heads where attention is full, and two keys for them.
    wide = _keys.read_size(part, "global_head_dim") if label == "full_attention" else None
    if wide is None:
        types, per_layer = part.get("layer_types"), part.get("per_layer_config")
        if isinstance(types, list) and label in types and isinstance(per_layer, Mapping):
            layer = per_layer.get(str(types.index(label)))
            wide = _keys.read_size(layer, "head_dim") if isinstance(layer, Mapping) else None
    return wide or _keys.read_head_dim(part, model)


def list_defaults(reading: Reading) -> dict[str, int]:
    """Return the sizes that the configuration omits, with the defaults of its model type."""
    sizes = reading.model.sizes
    missing = _list_missing_sizes(reading.part, reading.model)
    return {key: sizes[key] for key in missing if key in sizes}


def has_base(reading: Reading, layers: Layers) -> bool:
    """Return whether the configuration has a base for layers of this type."""
    part, label = reading.part, layers.label
    shared = part.get(_keys.parameters_key(part)) or {}
    nested = shared[label] if isinstance(shared.get(label), Mapping) else shared
    layer = reading.model.layers.get(label)
    keys = (layer.base_key,) if layer and layer.base_key else _keys.BASE
    return nested.get("rope_theta") is not None or _keys.first_value(part, *keys) is not None
