"""Read a configuration: the RoPE of each layer type, and the facts that a report adds to it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rope_xp._core.typing import Layout
from rope_xp.hf import _build, _files, _keys, _limits, _parts, _plan, _scaling
from rope_xp.hf._keys import EXTENDED, TRAINED, Model
from rope_xp.rope import RoPE
from rope_xp.scaling import NTK, Linear, YaRN


@dataclass(frozen=True)
class Layers:
    """Layers of one type. A number is None where the configuration does not say it."""

    label: str
    source: _scaling.Source
    rope: RoPE | None  # None for layers without positions
    head_dim: int | None
    rotated: int | None  # components
    contexts: tuple[int | None, int | None]  # the original and the extended length

    @property
    def prefix(self) -> str:
        """What begins a sentence on these layers."""
        return self.label and f"{self.label}: "

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths at which to report frequencies; none where length does not matter."""
        trained, extended = self.contexts
        if self.rope is None or self.rope.for_length(1) is self.rope or trained is None:
            return ()
        # Where the context is no longer than the trained one, frequencies change only beyond it.
        return trained, extended if extended and extended > trained else 2 * trained


class Reading(NamedTuple):
    """A configuration that was read, with the argument ``layout``."""

    part: Mapping[str, Any]  # which has the rotary embedding
    model: Model
    layout: Layout | None
    layers: tuple[Layers, ...]


def read_config(config: object, layout: Layout | None = None) -> Reading:
    """Read a configuration; arguments as of :func:`rope_xp.from_hf_config`."""
    part = _parts.find_part(_files.read_mapping(config))
    model = _build.find_model(part, layout)
    ropes = _build.build_ropes(part, model)
    extended = _keys.read_size(part, EXTENDED) or model.sizes.get(EXTENDED)
    if None in (extended, _keys.read_head_dim(part, model)):
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
        contexts = _find_contexts(source, rope)
        layers.append(Layers(label, source, rope, head_dim, rotated, contexts))
    return Reading(part, model, layout, tuple(layers))


def _read_default_sizes(part: Mapping[str, Any]) -> dict[str, int]:
    """Return the default sizes of the model's transformers class, none if that is not installed."""
    # transformers is not imported for configurations that omit nothing.
    config_class = _plan.find_class(part)
    defaults = {} if config_class is None else config_class().to_dict()
    keys = ("head_dim", "num_attention_heads", "hidden_size", EXTENDED)
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
