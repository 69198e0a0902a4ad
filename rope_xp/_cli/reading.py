"""What a configuration says, beside what :func:`rope_xp.from_hf_config` makes of it."""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rope_xp._core.typing import Layout
from rope_xp.hf import _files, _keys, _scaling, _table, from_hf_config
from rope_xp.hf._model import FLAT, Model, Parameters
from rope_xp.rope import RoPE
from rope_xp.scaling import NTK, Linear, YaRN

TRAINED = "original_max_position_embeddings"
EXTENDED = "max_position_embeddings"


@dataclass(frozen=True)
class Layers:
    """Layers of one type: what their parameters say, and what rotates them."""

    label: str
    parameters: Parameters
    rope: RoPE | None
    """None for layers without positions."""
    head_dim: int | None
    trained: int | None
    extended: int | None

    @property
    def where(self) -> str:
        """How messages call the parameters."""
        return f"rope_parameters.{self.label}" if self.label else "rope_parameters"

    @property
    def rotated(self) -> int | None:
        """Number of rotated components, None where the configuration does not say."""
        given = None if self.rope is None else self.rope.rotary_dim
        return self.head_dim if given is None else given

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies change with the length of the context."""
        return self.rope is not None and self.rope.for_length(1) is not self.rope


@dataclass(frozen=True)
class Reading:
    """A configuration that was read."""

    part: Mapping[str, Any]
    """The part with the rotary embedding: the language model, or the whole."""
    path: str
    """Where the part lies in the whole, such as "text_config"; empty if it is the whole."""
    model: Model
    layout: Layout | None
    """The one that was given with it."""
    layers: tuple[Layers, ...]


def read_config(config: object, layout: Layout | None = None) -> Reading:
    """Read a configuration, given as to :func:`rope_xp.from_hf_config`."""
    whole = _files.read_mapping(config)
    result = from_hf_config(whole, layout=layout)
    part = _keys.find_language_part(whole)
    model = _with_default_sizes(part, _table.find_model(part, layout))
    ropes = result if isinstance(result, dict) else {FLAT: result}
    parameters = _keys.read_layers(part, model)
    return Reading(
        part,
        _find_path(whole),
        model,
        layout,
        tuple(_read_layers(part, model, label, parameters[label], ropes[label]) for label in ropes),
    )


def _needed_sizes(part: Mapping[str, Any], model: Model) -> Iterator[str]:
    """Yield the keys of sizes that a report is about and that the configuration leaves out."""
    needed = [EXTENDED]
    if _keys.first_value(part, *_keys.HEAD_DIM, "qk_rope_head_dim") is None:
        needed += ["head_dim"] if "head_dim" in model.sizes else model.width
    if part.get("layer_types") is None:
        needed.append("num_hidden_layers")
    return (key for key in needed if _keys.read_size(part, key) is None)


def _with_default_sizes(part: Mapping[str, Any], model: Model) -> Model:
    """Return a model with the sizes that its class has by default, where transformers is there.

    It is not imported for configurations that leave nothing out.
    """
    if not list(_needed_sizes(part, model)) or importlib.util.find_spec("transformers") is None:
        return model
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    name = str(part.get("model_type"))
    kind = next((mapping[n] for n in (f"{name}_text", name) if n in mapping), None)
    defaults = {} if kind is None else kind().to_dict()
    keys = ("head_dim", "num_attention_heads", "hidden_size", EXTENDED, "num_hidden_layers")
    sizes = {key: defaults[key] for key in keys if isinstance(defaults.get(key), int)}
    by_width = sizes.get("hidden_size", 0) // sizes.get("num_attention_heads", 1)
    if sizes.get("head_dim") == by_width:  # which the configuration may have otherwise
        del sizes["head_dim"]
    return replace(model, sizes={**sizes, **model.sizes})


def _find_path(config: Mapping[str, Any]) -> str:
    for name in _keys.PARTS:
        if isinstance(config.get(name), Mapping):
            return ".".join(filter(None, (name, _find_path(config[name]))))
    return ""


def _read_layers(
    part: Mapping[str, Any],
    model: Model,
    label: str,
    parameters: Parameters | None,
    rope: RoPE | None,
) -> Layers:
    given = parameters or {}
    so_far = Layers(label, given, rope, _read_head_dim(part, model, label), None, None)
    source = _scaling.Source(part, model, given, so_far.where)
    # Perhaps no rule read them, and so nothing checked them yet.
    extended = _keys.read_size({EXTENDED: source.extended}, EXTENDED) or model.sizes.get(EXTENDED)
    trained = _keys.read_size({TRAINED: read_trained_length(part, so_far)}, TRAINED)
    rule = None if rope is None else rope.scaling
    if trained is None and not isinstance(rule, Linear | NTK):
        trained = extended  # these two extend a context of which they do not know the length
    if isinstance(rule, YaRN) and trained is not None and trained == extended:
        # As Qwen has it: max_position_embeddings stays the length of the training.
        extended = round(rule.factor * trained)
    return replace(so_far, trained=trained, extended=extended)


def read_trained_length(part: Mapping[str, Any], layers: Layers) -> Any:
    """Return the trained length where the configuration says it in so many words."""
    of_all = None if layers.label else part.get(TRAINED)
    return of_all or layers.parameters.get(TRAINED)


def _read_head_dim(part: Mapping[str, Any], model: Model, label: str) -> int | None:
    """Return the components of a head of one type of layer."""
    latent = _keys.read_size(part, "qk_rope_head_dim")
    if latent is not None:
        rest = _keys.read_size(part, "qk_nope_head_dim")
        return None if rest is None else rest + latent
    # Gemma 4 has wider heads where attention is full, and two ways to write that down.
    wide = _keys.read_size(part, "global_head_dim") if label == "full_attention" else None
    return wide or _read_layer_head_dim(part, label) or _keys.read_head_dim(part, model)


def _read_layer_head_dim(part: Mapping[str, Any], label: str) -> int | None:
    types, each = part.get("layer_types"), part.get("per_layer_config")
    if not isinstance(types, list) or label not in types or not isinstance(each, Mapping):
        return None
    one = each.get(str(types.index(label)))
    return _keys.read_size(one, "head_dim") if isinstance(one, Mapping) else None


def lengths_to_show(layers: Layers, requested: int | None) -> tuple[int, ...]:
    """Return the lengths at which to look at a rule; none where the length does not matter."""
    if not layers.depends_on_length:
        return ()
    if requested is not None:
        return (requested,)
    if layers.trained is None:  # rules of rope_xp need it, so this is another
        return (1,)
    # Where the context is that of the training, a rule changes only beyond it.
    beyond = layers.extended or 0
    return layers.trained, beyond if beyond > layers.trained else 2 * layers.trained


def list_defaults(reading: Reading) -> dict[str, int]:
    """Return the sizes that the configuration leaves out, as the class of its type has them."""
    sizes = reading.model.sizes
    return {key: sizes[key] for key in _needed_sizes(reading.part, reading.model) if key in sizes}


def says_base(reading: Reading, layers: Layers) -> bool:
    """Return whether the configuration has a base for layers of this type."""
    part, label = reading.part, layers.label
    given = part.get(_keys.parameters_key(part)) or {}
    own = given[label] if isinstance(given.get(label), Mapping) else given
    names = reading.model.base_keys
    keys = (names[label],) if label in names else _keys.BASE
    return own.get("rope_theta") is not None or _keys.first_value(part, *keys) is not None


def without_offset(rope: RoPE) -> RoPE:
    """Return the RoPE of the rotated slice alone: where it lies does not change its frequencies."""
    return replace(rope, rotary_offset=0)
