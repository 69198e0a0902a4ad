"""What is odd about a configuration, in plain sentences."""

import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from rope_xp._cli.reading import (
    EXTENDED,
    TRAINED,
    Layers,
    Reading,
    lengths_to_show,
    read_trained_length,
)
from rope_xp.hf import _build, _keys, _scaling, _slices, _table, _text_models
from rope_xp.hf._model import Model
from rope_xp.scaling import Linear, LongRoPE, YaRN

_ASIDE = {"llama_4_scaling_beta": "scales q with its position"}
"""Keys among those of the rotation that are about something else, and what they do."""
_ALWAYS_READ = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


def find_suspicions(reading: Reading) -> list[str]:
    """Return everything odd."""
    sentences = [
        *_check_model_type(reading),
        *_check_both_keys(reading.part),
        *_find_unread_parameters(reading),
        *_find_unread_keys(reading),
    ]
    for layers in reading.layers:
        if layers.rope is None:
            continue
        of_layers = (
            *_find_contradictions(reading.part, layers),
            *_check_factor(reading.part, layers),
            *_check_rounding(reading, layers),
            *_find_unknown_sizes(reading, layers),
        )
        sentences += [f"{layers.label}: {text}" if layers.label else text for text in of_layers]
    return sentences


def find_notes(reading: Reading, requested: int | None = None) -> list[str]:
    """Return what is as it should be, and must be heeded.

    ``requested`` is the length of the context, if one was asked for.
    """
    sentences = (
        (layers.label, text)
        for layers in reading.layers
        for text in _describe_length(layers, requested)
    )
    given = reading.part.get(_keys.parameters_key(reading.part)) or {}
    aside = [
        f"{key} = {given[key]} {what}, which is no rotation: it is left to the attention"
        for key, what in _ASIDE.items()
        if given.get(key)
    ]
    return [*(f"{label}: {text}" if label else text for label, text in sentences), *aside]


def is_checked(model_type: object) -> bool:
    """Return whether the table knows the model type, and so its layout and its defaults."""
    names = {str(model_type), str(model_type).removesuffix("_text")}
    return not names.isdisjoint({*_table.MODELS, *_text_models.PLAIN})


def _check_model_type(reading: Reading) -> Iterator[str]:
    name = reading.part.get("model_type")
    if not is_checked(name):
        who = (
            f"model_type {name!r} is not among those that were checked"
            if name
            else ("the configuration has no model_type")
        )
        yield f"{who}: the usual defaults are assumed"


# --- what is read --------------------------------------------------------------------------------


def _check_both_keys(part: Mapping[str, Any]) -> Iterator[str]:
    if part.get("rope_scaling") and part.get("rope_parameters"):
        yield "rope_scaling and rope_parameters are both there; only rope_scaling is read"


class _Watched(Mapping[str, Any]):
    """Parameters that remember which of them were read."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self.read = set(_ALWAYS_READ)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self._parameters[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


_ROTARY = re.compile("rope|rotary|alibi|ntk|position_embeddings?_type")
_REPORTED = ("no_rope_layers", "no_rope_layer_interval", "rope_scaling", "rope_parameters")


def _find_unread_keys(reading: Reading) -> Iterator[str]:
    """Yield the keys beside the dictionary that sound as if they were about positions."""
    watched = _Watched(reading.part)
    _build.read_ropes(watched, reading.layout)
    watched.read |= _table.find_ignored_keys(reading.part)
    for key, value in reading.part.items():
        unread = key not in watched.read and key not in _REPORTED
        if unread and _ROTARY.search(key) and value not in (None, False):
            yield f"nothing reads {key} = {reprlib.repr(value)}"


def _find_unread_parameters(reading: Reading) -> Iterator[str]:
    name = _keys.parameters_key(reading.part)
    given = reading.part.get(name) or {}
    nested = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    read = {layers.label: _read_keys(reading, layers) for layers in reading.layers}
    flat = set(given) - set(nested)
    if nested:
        for label, own in nested.items():
            yield from _describe_unread(
                f"{name}.{label}", own, set(own) - read[label], reading.part
            )
    else:
        model = reading.model
        shared = (*model.scaled, "") if not model.unrotated else tuple(read)
        taken = {label for label in read if label in shared}
        flat -= set().union(*(read[label] for label in taken))
    yield from _describe_unread(name, given, flat, reading.part)


def _read_keys(reading: Reading, layers: Layers) -> set[str]:
    """Return the keys that were read, found by reading them once more."""
    watched = _Watched(layers.parameters)
    if layers.rope is not None:
        _scaling.read_scaling(_scaling.Source(reading.part, reading.model, watched, layers.where))
        _slices.find_slice(reading.part, reading.model, watched)
        # The one in the configuration itself goes first; _contradictions tells if they differ.
        if reading.part.get(TRAINED) and hasattr(layers.rope.scaling, TRAINED):
            watched.read.add(TRAINED)
    return watched.read


def _describe_unread(
    name: str, given: Mapping[str, Any], unread: set[str], part: Mapping[str, Any]
) -> Iterator[str]:
    for key in sorted(unread):
        # What the configuration itself says as well, and alike, misleads nobody.
        if given[key] is not None and given[key] != part.get(key) and key not in _ASIDE:
            yield f"nothing reads {name}.{key} = {reprlib.repr(given[key])}"


def _find_contradictions(part: Mapping[str, Any], layers: Layers) -> Iterator[str]:
    """Tell of two values for one thing."""
    own = layers.parameters
    own_type = own["rope_type"]
    twice = [("rope_type", None if own_type == "axial" else own_type, "type", own.get("type"))]
    if not layers.label:  # what is there for one type of layer differs by intent
        shared = ("rope_theta", "partial_rotary_factor")
        twice += [(f"{layers.where}.{key}", own[key], key, part.get(key)) for key in shared]
        twice += [(TRAINED, part.get(TRAINED), f"{layers.where}.{TRAINED}", own.get(TRAINED))]
    for name, value, other_name, other in twice:
        if None not in (value, other) and value != other:
            yield f"{name} = {value!r} is read and not {other_name} = {other!r}"


# --- contexts ------------------------------------------------------------------------------------


def _check_factor(part: Mapping[str, Any], layers: Layers) -> Iterator[str]:
    rule = layers.rope.scaling if layers.rope else None
    factor = getattr(rule, "factor", None)
    if factor is not None and factor < 1:
        yield f"factor = {factor!r} is below 1, and a rule is there to make contexts longer"
    given, extended = read_trained_length(part, layers), layers.extended
    if hasattr(rule, TRAINED) and not given:
        yield f"{TRAINED} is missing, and taken to be {EXTENDED} = {extended}"
    if rule is None or not given or extended is None:
        return
    if hasattr(rule, TRAINED) and given >= extended:
        yield f"{TRAINED} = {given} is not below {EXTENDED} = {extended}: no context is extended"
    # Not that of Llama3: Meta's own files have a factor of 8 and 16 times the context.
    ratio = extended / given
    if isinstance(rule, YaRN | LongRoPE | Linear) and factor and abs(ratio - factor) > 1e-6 * ratio:
        yield f"factor = {factor!r}, but {EXTENDED} / {TRAINED} = {extended} / {given} = {ratio:g}"


def _describe_length(layers: Layers, requested: int | None) -> Iterator[str]:
    if layers.depends_on_length and layers.rope:
        name = type(layers.rope.scaling).__name__
        shown = " and ".join(map(str, lengths_to_show(layers, requested)))
        yield (
            f"the frequencies of {name} depend on the length of the context: fix it by "
            f"rope.for_length(n). Shown here for {shown} tokens"
        )


# --- sizes ---------------------------------------------------------------------------------------


def _check_rounding(reading: Reading, layers: Layers) -> Iterator[str]:
    rope, partial = layers.rope, layers.parameters["partial_rotary_factor"]
    if rope is None or rope.rotary_dim is None:
        return
    product = (_keys.read_head_dim(reading.part, reading.model) or 0) * partial
    cut = int(product)
    if abs(product - cut) > 1e-9 and rope.rotary_dim in (cut, cut + 1):
        yield f"partial_rotary_factor = {partial} of a head is {product:g} components, cut to {cut}"
    if rope.base != layers.parameters["rope_theta"]:
        yield (
            f"{rope.rotary_dim - 1} components, an odd number, are rotated as "
            f"{rope.rotary_dim} by the same frequencies: base {rope.base:g} for "
            f"{layers.parameters['rope_theta']:g}"
        )


def _find_unknown_sizes(reading: Reading, layers: Layers) -> Iterator[str]:
    if layers.rotated is None:
        yield (
            f"head_dim is missing, and so is {_width_keys(reading.model)}: pairs and wavelengths "
            "cannot be computed"
        )
    if layers.extended is None and not reading.model.axial:  # of a grid, which has no context
        yield f"{EXTENDED} is missing: how far pairs turn within the context is not known"


def _width_keys(model: Model) -> str:
    return " or ".join(model.width)
