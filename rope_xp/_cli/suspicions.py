"""Find what is suspicious in a configuration, and what is correct but needs attention."""

import reprlib
from collections.abc import Iterator, Mapping

from rope_xp._cli.reading import Layers, Reading
from rope_xp.hf import _build, _keys, _models, _scaling, _unread
from rope_xp.hf._keys import EXTENDED, TRAINED
from rope_xp.scaling import Linear, LongRoPE, YaRN

_ATTENTION_KEY = "llama_4_scaling_beta"
"""A key among the rotary parameters by which the attention scales q with its position."""


def find_suspicions(reading: Reading) -> list[str]:
    part, sentences = reading.part, []
    name = part.get("model_type")
    if _models.get_row(name) is None:
        fact = f"model_type {name!r} is unknown to rope_xp"
        fact = fact if name else "the configuration has no model_type"
        sentences.append(f"{fact}: the usual defaults are assumed")
    if part.get("rope_scaling") and part.get("rope_parameters"):
        sentences.append("rope_scaling and rope_parameters are both set; only rope_scaling is read")
    unread = dict(_find_unread_parameters(reading)) | _unread.list_unread(part, reading.layout)
    sentences += [f"nothing reads {key} = {reprlib.repr(value)}" for key, value in unread.items()]
    for layers in reading.layers:
        if layers.rope is not None:
            odd = (*_find_contradictions(layers), *_check_factor(layers), *_check_sizes(layers))
            sentences += [layers.prefix + sentence for sentence in odd]
    return sentences


def find_notes(reading: Reading) -> list[str]:
    notes = []
    for layers in reading.layers:
        if layers.rope is not None and layers.lengths:
            name = type(layers.rope.scaling).__name__
            lengths = " and ".join(map(str, layers.lengths))
            note = f"frequencies of {name} depend on the context length; fix it with "
            note += f"rope.for_length(n). Shown here for {lengths} tokens"
            notes.append(layers.prefix + note)
    parameters = reading.part.get(_keys.parameters_key(reading.part)) or {}
    if beta := parameters.get(_ATTENTION_KEY):
        note = f"{_ATTENTION_KEY} = {beta} scales q by its position, which is not a rotation; "
        notes.append(f"{note}the attention must do it")
    return notes


def _find_unread_parameters(reading: Reading) -> Iterator[tuple[str, object]]:
    part, model = reading.part, reading.model
    name = _keys.parameters_key(part)
    parameters = part.get(name) or {}
    nested = {key: value for key, value in parameters.items() if isinstance(value, Mapping)}
    read = {layers.label: _watch_parameters(layers) for layers in reading.layers}
    shared = {key: value for key, value in parameters.items() if key not in nested}
    groups = [(f"{name}.{label}", values, read[label]) for label, values in nested.items()]
    # Flat parameters are of some layer types, or of those that rotate.
    scaled = [label for label, layer in model.layers.items() if layer and layer.is_scaled]
    flat = [label for label in read if model.unrotated or label in (*scaled, "")]
    groups.append((name, shared, set().union(*(read[label] for label in flat if not nested))))
    for where, values, used in groups:
        for key in sorted(set(values) - used - {_ATTENTION_KEY}):
            # A key that repeats another with the same value misleads nobody.
            if values[key] is not None and values[key] != part.get(key):
                yield f"{where}.{key}", values[key]


def _watch_parameters(layers: Layers) -> set[str]:
    """Return the keys of the parameters that are read, by reading them once more."""
    source, watched = layers.source, _unread.Watched(layers.source.parameters)
    if layers.rope is not None:
        _build.build_rope(_scaling.Source(source.config, source.model, watched, source.where))
        # The configuration's own goes first; _find_contradictions reports where they differ.
        if source.config.get(TRAINED) and hasattr(layers.rope.scaling, TRAINED):
            watched.read.add(TRAINED)
    return watched.read


def _find_contradictions(layers: Layers) -> Iterator[str]:
    """Yield where two keys for one fact have different values."""
    part, parameters, where = layers.source.config, layers.source.parameters, layers.source.where
    rope_type = None if parameters["rope_type"] == "axial" else parameters["rope_type"]
    pairs = [("rope_type", rope_type, "type", parameters.get("type"))]
    if not layers.label:  # parameters of one layer type differ from shared ones by intent
        shared = ("rope_theta", "partial_rotary_factor")
        pairs += [(f"{where}.{key}", parameters[key], key, part.get(key)) for key in shared]
        pairs += [(TRAINED, part.get(TRAINED), f"{where}.{TRAINED}", parameters.get(TRAINED))]
    for name, value, other_name, other in pairs:
        if None not in (value, other) and value != other:
            yield f"{name} = {value!r} is read and not {other_name} = {other!r}"


def _check_factor(layers: Layers) -> Iterator[str]:
    scaling = layers.rope.scaling if layers.rope else None
    factor = getattr(scaling, "factor", None)
    if factor is not None and factor < 1:
        yield f"factor = {factor!r} is below 1, but scaling is meant to extend the context"
    trained, extended = layers.source.original, layers.contexts[1]
    if hasattr(scaling, TRAINED) and not trained:
        yield f"{TRAINED} is missing; {EXTENDED} = {extended} is used instead"
    if scaling is None or not trained or extended is None:
        return
    if hasattr(scaling, TRAINED) and trained >= extended:
        yield f"{TRAINED} = {trained} is not below {EXTENDED} = {extended}: nothing is extended"
    # Llama3 is exempt: Meta's own files have a factor of 8 and 16 times the context.
    ratio = extended / trained
    checked = isinstance(scaling, YaRN | LongRoPE | Linear)
    if checked and factor and abs(ratio - factor) > 1e-6 * ratio:
        lengths = f"{EXTENDED} / {TRAINED} = {extended} / {trained} = {ratio:g}"
        yield f"factor = {factor!r}, but {lengths}"


def _check_sizes(layers: Layers) -> Iterator[str]:
    """Yield which sizes were rounded, and which are missing."""
    rope, source = layers.rope, layers.source
    partial, base = source.parameters["partial_rotary_factor"], source.parameters["rope_theta"]
    if rope is not None and rope.rotary_dim is not None:
        product = (_keys.read_head_dim(source.config, source.model) or 0) * partial
        cut, dim = int(product), rope.rotary_dim
        if abs(product - cut) > 1e-9 and dim in (cut, cut + 1):
            fact = f"gives {product:g} components of a head, rounded down to {cut}"
            yield f"partial_rotary_factor = {partial} {fact}"
        if rope.base != base:
            fact = f"with the same frequencies: base {rope.base:g} instead of {base:g}"
            yield f"{dim - 1} components, an odd number, are rotated as {dim} {fact}"
    if layers.rotated is None:
        width = " or ".join(source.model.width)
        yield f"head_dim and {width} are missing, so pairs and wavelengths are unknown"
    if layers.contexts[1] is None and not source.model.axial:  # a grid has no context
        yield f"{EXTENDED} is missing, so turns within the context are unknown"
