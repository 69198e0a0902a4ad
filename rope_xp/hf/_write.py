"""Write a RoPE into a configuration: the inverse of reading one."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from rope_xp import scaling
from rope_xp._core.errors import RopeConfigError
from rope_xp.hf import _build, _files, _keys, _parts
from rope_xp.hf._keys import EXTENDED, FLAT, LENGTHS, PARTIAL, TRAINED, Model, Parameters, Part
from rope_xp.hf._models import get_row
from rope_xp.rope import RoPE

Ropes = Mapping[str, RoPE | None]
_NAMES: dict[type, str] = {
    scaling.Linear: "linear",
    scaling.NTK: "dynamic",
    scaling.DynamicNTK: "dynamic",
    scaling.YaRN: "yarn",
    scaling.LongRoPE: "longrope",
    scaling.Llama3: "llama3",
    scaling.Proportional: "proportional",
    scaling.Axial: "axial",
}
_KEPT = {"rope_theta", "partial_rotary_factor", "rotary_dim", "mrope_section", "xdrope_section"} | {
    *("mrope_interleaved", "llama_4_scaling_beta", "interleaved", "finetuned"),
}
"""Parameters that no scaling has."""
_ORDERS = {"contiguous": (0, 1, 2), "interleaved": (0, 1, 2), "ernie": (1, 2, 0)}
"""The components that the sections of mrope_section are for."""


def write_config(rope: RoPE | Ropes, config: object) -> dict[str, Any]:
    """Return a copy of a configuration, as :func:`rope_xp.to_hf_config` describes it."""
    whole = copy.deepcopy(dict(_files.read_mapping(config)))
    ropes = {FLAT: rope} if isinstance(rope, RoPE) else dict(rope)
    layout = next((r.layout for r in ropes.values() if r is not None), None)
    known, problem = get_row(_parts.find_part(whole).get("model_type")) is not None, ""
    for is_new in (False, True):
        written = copy.deepcopy(whole)
        place = _find_place(written)
        _write_part(place, ropes, layout, is_new=is_new or _is_new(place))
        part = _parts.find_part(written)
        with _keys.naming_errors():
            found = _build.build_ropes(part, _build.find_model(part, None if known else layout))
        found = {FLAT: found[FLAT]} if FLAT in found else found
        if found == ropes:
            return written
        problem = problem or "; ".join(_list_differences(ropes, found))
    raise RopeConfigError(
        f"model_type {part.get('model_type')!r} has no keys for this rope: read again, {problem}"
    )


def _find_place(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part that has the rotary keys, inside the configuration."""
    for name in _parts.PARTS:
        if isinstance(config.get(name), Mapping):
            config[name] = dict(config[name])
            return _find_place(config[name])
    return config


def _is_new(place: Part) -> bool:
    """Return whether a part has the spelling of transformers 5."""
    old = ("rope_scaling", "rope_local_base_freq", *_keys.BASE)
    return "rope_parameters" in place or not any(key in place for key in old)


def _write_part(place: dict[str, Any], ropes: Ropes, layout: Any, *, is_new: bool) -> None:
    """Write the rotary keys of a part, in the spelling of transformers 5 or of 4."""
    part = _parts.find_part(place)
    known = get_row(part.get("model_type")) is not None
    model = _build.find_model(part, None if known else layout)
    own = _keys.read_layers(part, model)
    if {*own} != {*ropes}:
        expected = "one RoPE" if FLAT in own else f"a dictionary of {', '.join(own)}"
        got = "one RoPE" if FLAT in ropes else f"a dictionary of {', '.join(map(str, ropes))}"
        raise RopeConfigError(f"the configuration has {expected}; got {got}")
    by_label = {
        label: None if rope is None else _spell(place, part, model, rope, own[label] or {})
        for label, rope in ropes.items()
    }
    is_flat = FLAT in by_label or bool(model.unrotated)
    flat = next((values for values in by_label.values() if values is not None), {})
    if is_new:
        place.pop("rope_scaling", None)
        place["rope_parameters"] = flat if is_flat else by_label
        _update(place, flat, is_flat)
    elif is_flat:
        place[_find_key(place, _keys.BASE)] = flat["rope_theta"]
        if "partial_rotary_factor" in flat:
            place[_find_key(place, PARTIAL)] = flat["partial_rotary_factor"]
        place["rope_scaling"] = _strip(flat)
    else:
        for label, layer in model.layers.items():
            if layer is not None and (values := by_label[label]) is not None and layer.base_key:
                place[layer.base_key] = values["rope_theta"]
                if layer.is_scaled:
                    place["rope_scaling"] = _strip(values)


def _strip(parameters: Parameters) -> Parameters | None:
    """Return parameters as rope_scaling of transformers 4 has them; None without scaling."""
    rest = {k: v for k, v in parameters.items() if k not in ("rope_theta", PARTIAL[0])}
    return None if rest == {"rope_type": "default"} else rest


def _find_key(place: Part, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in place), names[0])


def _update(place: dict[str, Any], flat: Parameters, is_flat: bool) -> None:
    """Make keys at top level, which other versions read, say the same."""
    for names in (_keys.BASE, PARTIAL):
        for name in names:
            if is_flat and place.get(name) is not None and names[0] in flat:
                place[name] = flat[names[0]]


def _spell(
    place: dict[str, Any], part: Part, model: Model, rope: RoPE, own: Parameters
) -> dict[str, Any]:
    """Return the parameters of a rope, with those of the configuration that are no scaling's."""
    kept = {key: own[key] for key in own if key in _KEPT}
    kind, values = _spell_scaling(rope, own)
    parameters = {"rope_type": kind, **kept, **values}
    if EXTENDED in values:
        place[_find_key(place, (EXTENDED, *LENGTHS))] = parameters.pop(EXTENDED)
    if TRAINED in values and place.get(TRAINED) is not None:  # which is read first
        place[TRAINED] = values[TRAINED]
    base = parameters["rope_theta"]
    parameters["rope_theta"] = rope.base
    _write_share(place, part, model, rope, parameters, base)
    if rope.position_axes and model.section_order in _ORDERS and kind != "axial":
        counts = [rope.position_axes.count(i) for i in _ORDERS[model.section_order]]
        given = parameters.get("mrope_section", model.sections)
        is_same = [sum(given[i::3]) for i in range(3)] == counts  # some files have more sections
        if not is_same:
            parameters["mrope_section"] = counts
    return parameters


def _write_share(
    place: dict[str, Any],
    part: Part,
    model: Model,
    rope: RoPE,
    parameters: dict[str, Any],
    base: float,
) -> None:
    """Write how many components rotate, where sizes of latent attention do not say it."""
    share = stated = parameters.get("partial_rotary_factor", 1.0)
    if part.get("qk_rope_head_dim") is None and parameters["rope_type"] not in (
        "axial",
        "proportional",
    ):
        head_dim = _keys.read_head_dim(part, model)
        if "rotary_dim" in place or "rotary_dim" in parameters:
            (parameters if "rotary_dim" in parameters else place)["rotary_dim"] = rope.rotary_dim
        elif rope.rotary_dim is None:
            share = 1.0
        elif head_dim and int(head_dim * share) not in (rope.rotary_dim, rope.rotary_dim - 1):
            share = rope.rotary_dim / head_dim
        elif head_dim and (odd := int(head_dim * share)) % 2:  # read as if it were odd + 1
            is_same = base ** ((odd + 1) / odd) == rope.base
            parameters["rope_theta"] = base if is_same else rope.base ** (odd / (odd + 1))
    of_all = _keys.first_value(part, *PARTIAL)  # which layers without one of their own read
    if share == stated == model.partial == 1.0 and of_all in (None, 1.0):
        parameters.pop("partial_rotary_factor", None)
    else:
        parameters["partial_rotary_factor"] = share


def _spell_scaling(rope: RoPE, own: Parameters) -> tuple[str, dict[str, Any]]:
    """Return rope_type and the keys of a scaling."""
    rule = rope.scaling
    if rule is None:
        kind = own.get("rope_type")
        return str(kind if kind in ("mrope", "axial") else "default"), {}
    if type(rule) not in _NAMES:
        raise RopeConfigError(f"no configuration has keys for {type(rule).__name__}")
    if isinstance(rule, scaling.NTK):
        if own.get("alpha") is None:
            raise RopeConfigError("only HunYuan's configurations have keys for NTK")
        return "dynamic", {"alpha": rule.factor, "factor": own.get("factor", 1.0)}
    values = {field.name: getattr(rule, field.name) for field in fields(rule)}  # type: ignore[arg-type]  # a dataclass
    if isinstance(rule, scaling.Axial):
        values = {}
    values = {k: [*v] if isinstance(v, tuple) else v for k, v in values.items() if v is not None}
    if values.pop("length", None) is not None:
        raise RopeConfigError(
            "a configuration has no keys for a fixed length; pass the rope as read"
        )
    defaults = {field.name: field.default for field in fields(rule)}  # type: ignore[arg-type]  # a dataclass
    rest = ("beta_fast", "beta_slow", "truncate", "factor")
    return _NAMES[type(rule)], {
        k: v for k, v in values.items() if k == "factor" or k not in rest or v != defaults[k]
    }


def _list_differences(ropes: Ropes, found: Ropes) -> Iterator[str]:
    for label, rope in ropes.items():
        other = found.get(label)
        where = f"{label}: " * bool(label)
        if rope is None or other is None:
            if rope is not other:
                yield f"{where}{other} is not {rope}"
            continue
        for field in fields(rope):
            value, got = getattr(rope, field.name), getattr(other, field.name)
            if value != got:
                yield f"{where}{field.name} is {got!r} and not {value!r}"
