"""Write a RoPE into a configuration: the inverse of reading one."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from rope_xp import scaling
from rope_xp._core.errors import RopeConfigError
from rope_xp.hf import _build, _files, _keys, _parts
from rope_xp.hf._keys import EXTENDED, FLAT, TRAINED, Model, Parameters, Part
from rope_xp.hf._models import get_row
from rope_xp.hf._scaling import BUILDERS
from rope_xp.rope import RoPE

Ropes = Mapping[str, RoPE | None]
_SHARE = "partial_rotary_factor"
_ORDERS = {"contiguous": (0, 1, 2), "interleaved": (0, 1, 2), "ernie": (1, 2, 0)}
"""The components that the sections of mrope_section are for."""


def write_config(rope: RoPE | Ropes, config: object) -> dict[str, Any]:
    """Return a copy of a configuration, as :func:`rope_xp.to_hf_config` describes it."""
    whole = dict(_files.read_mapping(config))
    part = _parts.find_part(whole)
    ropes = {FLAT: rope} if isinstance(rope, RoPE) else dict(rope)
    layout = next((r.layout for r in ropes.values() if r is not None), None)
    is_known = get_row(part.get("model_type")) is not None
    model = _build.find_model(part, None if is_known else layout)
    own, problem = _keys.read_layers(part, model), ""
    if {*own} != {*ropes}:
        expected = "one RoPE" if FLAT in own else f"a dictionary of {', '.join(own)}"
        got = "one RoPE" if FLAT in ropes else f"a dictionary of {', '.join(map(str, ropes))}"
        raise RopeConfigError(f"the configuration has {expected}; got {got}")
    for is_new in (False, True):
        written = copy.deepcopy(whole)
        place = _find_place(written)
        layers: _keys.LayerParameters = {
            label: None if rope is None else _spell(place, part, model, rope, own[label] or {})
            for label, rope in ropes.items()
        }
        _write_layers(place, model, layers, is_new=is_new or _is_new(place))
        with _keys.naming_errors():
            found = _build.build_ropes(_parts.find_part(written), model)
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


def _write_layers(
    place: dict[str, Any], model: Model, layers: _keys.LayerParameters, *, is_new: bool
) -> None:
    """Write the parameters of layer types, in the spelling of transformers 5 or of 4."""
    flat = next((values for values in layers.values() if values is not None), {})
    is_flat = FLAT in layers or bool(model.unrotated)
    shared = {"rope_theta", _SHARE} & {*flat} if is_flat else {*()}
    if is_new:
        place.pop("rope_scaling", None)
        place["rope_parameters"] = flat if is_flat else layers
        for name in shared:  # keys at top level, which other versions read, say the same
            stated = {key for key in _keys.NAMES[name] if place.get(key) is not None}
            place.update(dict.fromkeys(stated, flat[name]))
        return
    place.update({_find_key(place, name): flat[name] for name in shared})
    if is_flat:
        place["rope_scaling"] = _strip(flat)
    for label, layer in model.layers.items():
        values = layers.get(label)
        if layer is not None and values is not None and layer.base_key:
            place[layer.base_key] = values["rope_theta"]
            if layer.is_scaled:
                place["rope_scaling"] = _strip(values)


def _strip(parameters: Parameters) -> Parameters | None:
    """Return parameters as rope_scaling of transformers 4 has them; None without scaling."""
    rest = {k: v for k, v in parameters.items() if k not in ("rope_theta", _SHARE)}
    return None if rest == {"rope_type": "default"} else rest


def _find_key(place: Part, name: str) -> str:
    """Return the name that a part has for a key; its newest if it has none."""
    return next((other for other in _keys.NAMES[name] if other in place), name)


def _spell(
    place: dict[str, Any], part: Part, model: Model, rope: RoPE, own: Parameters
) -> dict[str, Any]:
    """Return the parameters of a rope, with those of the configuration that are no scaling's."""
    kept = {key: own[key] for key in own if key not in _keys.SCALING_KEYS}
    parameters = {**kept, "rope_theta": rope.base, **_spell_scaling(rope, own)}
    if EXTENDED in parameters:
        place[_find_key(place, EXTENDED)] = parameters.pop(EXTENDED)
    if TRAINED in parameters and place.get(TRAINED) is not None:  # which is read first
        place[TRAINED] = parameters[TRAINED]
    share = stated = parameters.pop(_SHARE, 1.0)
    if "rotary_dim" in parameters or "rotary_dim" in place:
        (parameters if "rotary_dim" in parameters else place)["rotary_dim"] = rope.rotary_dim
    elif parameters["rope_type"] not in ("axial", "proportional"):
        share, parameters["rope_theta"] = _find_share(part, model, rope, share, own["rope_theta"])
    of_all = _keys.find_value(part, _SHARE)  # which layers without one of their own read
    if not (share == stated == model.partial == 1.0 and of_all in (None, 1.0)):
        parameters[_SHARE] = share
    if rope.position_axes and model.section_order in _ORDERS and parameters["rope_type"] != "axial":
        counts = [rope.position_axes.count(i) for i in _ORDERS[model.section_order]]
        given = parameters.get("mrope_section", model.sections)
        if [sum(given[i::3]) for i in range(3)] != counts:  # some files have more sections
            parameters["mrope_section"] = counts
    return parameters


def _find_share(
    part: Part, model: Model, rope: RoPE, share: float, base: float
) -> tuple[float, float]:
    """Return how much of a head rotates, the configuration's share if it fits, and the base."""
    head_dim, count = _keys.read_head_dim(part, model), rope.rotary_dim
    if part.get("qk_rope_head_dim") is not None:  # latent attention, whose sizes say it
        return share, rope.base
    if count is None:
        return 1.0, rope.base
    if head_dim and int(head_dim * share) not in (count, count - 1):
        return count / head_dim, rope.base
    if head_dim and (odd := int(head_dim * share)) % 2:  # read as if it were odd + 1
        is_same = base ** ((odd + 1) / odd) == rope.base
        return share, base if is_same else rope.base ** (odd / (odd + 1))
    return share, rope.base


def _spell_scaling(rope: RoPE, own: Parameters) -> dict[str, Any]:
    """Return rope_type and the keys of a scaling, whose classes have their names."""
    rule, kind = rope.scaling, own.get("rope_type")
    if rule is None:
        return {"rope_type": kind if kind in ("mrope", "axial") else "default"}
    if isinstance(rule, scaling.NTK):
        if own.get("alpha") is None:
            raise RopeConfigError("only HunYuan's configurations have keys for NTK")
        return {"rope_type": "dynamic", "alpha": rule.factor, "factor": own.get("factor", 1.0)}
    name = type(rule).__name__
    kind = name.lower().removesuffix("ntk")
    if kind not in BUILDERS or getattr(scaling, name, None) is not type(rule):
        raise RopeConfigError(f"no configuration has keys for {name}")
    if isinstance(rule, scaling.Axial):
        return {"rope_type": kind}
    defaults = {field.name: field.default for field in fields(rule)}  # type: ignore[arg-type]  # a dataclass
    values = {name: getattr(rule, name) for name in defaults}
    values = {k: v for k, v in values.items() if v != defaults[k]}
    if "length" in values:
        raise RopeConfigError(
            "a configuration has no keys for a fixed length; pass the rope as read"
        )
    lists = {k: [*v] for k, v in values.items() if isinstance(v, tuple)}
    return {"rope_type": kind, **values, **lists}


def _list_differences(ropes: Ropes, found: Ropes) -> Iterator[str]:
    for label, rope in ropes.items():
        for name in (field.name for field in fields(RoPE)):
            value, got = (getattr(r, name, None) for r in (rope, found.get(label)))
            if value != got:
                yield f"{label}: " * bool(label) + f"{name} is {got!r} and not {value!r}"
