"""Build the plan of every layer of a model from its configuration."""

import copy
import importlib
import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError, rewording
from rope_xp._core.typing import Layout
from rope_xp.hf import _build, _keys, _limits
from rope_xp.hf._keys import FLAT, Model, Part
from rope_xp.hf._layer_plan import IndexerPlan, LayerPlan, NormPlan, Temperature
from rope_xp.hf._models import get_row
from rope_xp.rope import RoPE

_LISTED = {
    "attn_layer_indices": ("attention", "mamba"),
    "cross_attention_layers": ("cross_attention", "attention"),
}
"""Keys with numbers of layers, and the words for these and for the others."""
_NO_ATTENTION = ("linear_attention", "conv", "mamba", "recurrent", "cross_attention")


class _MissingKeyError(RopeConfigError):
    """A key is missing, for which the model's class in transformers may have a default."""


class _Facts(NamedTuple):
    """A configuration with the row of its type, and whether it has the defaults of its class."""

    part: Part
    model: Model
    is_filled: bool

    def find(self, name: str) -> Any:
        """Return a value. None only if the model's class has no default either."""
        value = _keys.find_value(self.part, name)
        if value is None and not self.is_filled:
            raise _MissingKeyError(f"{name} is missing, and a plan needs it; add it")
        return value

    def need(self, name: str) -> Any:
        if (value := self.find(name)) is None:
            raise RopeConfigError(f"{name} is missing, and a plan needs it")
        return value

    def need_size(self, name: str) -> int:
        return numbers.check_positive_int(name, self.need(name))


def build_plan(part: Part, layout: Layout | None) -> tuple[LayerPlan, ...]:
    """Return the plan of each layer; transformers fills in the keys that are missing."""
    try:
        return _build_layers(part, layout, is_filled=False)
    except _MissingKeyError as error:
        if (config_class := find_class(part)) is None:
            if get_row(part.get("model_type")) is None:  # no class has defaults for it
                return _build_layers(part, layout, is_filled=True)
            has = importlib.util.find_spec("transformers")
            hint = ", or install transformers, whose class of the model type may have a default"
            raise RopeConfigError(f"{error}{'' if has else hint}") from None
    for key, value in part.items():  # of which the class may make lists
        if "layer" in str(key) and isinstance(value, int):
            _limits.check_number(key, value, _limits.LAYERS)
    content = {k: v for k, v in part.items() if k not in ("num_labels", "id2label", "label2id")}
    unread = "transformers cannot read the configuration: "
    with rewording(Exception, unread, into=RopeConfigError):  # its classes have errors of their own
        filled = config_class.from_dict(copy.deepcopy(content)).to_dict()
    return _build_layers(filled, layout, is_filled=True)


def find_class(part: Part) -> Any:
    """Return the class of a configuration in transformers; None if it has none, or is missing."""
    if not importlib.util.find_spec("transformers"):
        return None
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    name = str(part.get("model_type"))
    return next((mapping[n] for n in (f"{name}_text", name) if n in mapping), None)


@_keys.naming_errors()
def _build_layers(part: Part, layout: Layout | None, *, is_filled: bool) -> tuple[LayerPlan, ...]:
    model = _build.find_model(part, layout)
    facts = _Facts(part, model, is_filled)
    obstacle = "its layers see images; plans are of language models" if model.axial else None
    if obstacle := model.obstacle or obstacle:
        raise RopeConfigError(f"no plan of model_type {part.get('model_type')!r}: {obstacle}")
    for key in model.needs:
        facts.find(key)
    if read_head_dim(part, model, "") is None:
        facts.find("head_dim")
    ropes = _build.build_ropes(part, model)
    kinds = _list_kinds(facts, is_uniform=FLAT in ropes)
    unrotated, overrides = {*list_unrotated(part, model, len(kinds))}, read_overrides(part)
    temperature, layers = _read_temperature(facts), []
    for i, kind in enumerate(kinds):
        layer = LayerPlan(kind=kind)
        if kind not in _NO_ATTENTION:
            rope = None if i in unrotated else _select(kind, ropes)
            own = facts._replace(part={**part, **overrides.get(i, {})})
            layer = _build_layer(own, i, kind, rope)
            if rope is None or not model.has_temperature:
                layer = replace(layer, temperature=temperature)
        layers.append(layer)
    return tuple(layers)


def _list_kinds(facts: _Facts, *, is_uniform: bool) -> list[str]:
    """Return the configuration's word for each layer."""
    count = facts.need_size("num_hidden_layers") * facts.model.per_layer
    _limits.check_number("num_hidden_layers", count, _limits.LAYERS)
    key = facts.model.kinds_key or "layer_types"
    if key not in facts.part and is_uniform and not facts.model.kinds_key:
        return ["attention"] * count
    value = facts.find(key)
    if value is None and (is_uniform or key in _LISTED):
        value = [] if key in _LISTED else ["attention"] * count
    if not isinstance(value, list):
        raise RopeConfigError(f"{key} must be a list; got {value!r}")
    _limits.check_size(key, value, _limits.LAYERS)
    if key in _LISTED:
        layers = {i for i in value if numbers.is_int(i)}
        return [_LISTED[key][i not in layers] for i in range(count)]
    if key == "block_types":  # which recur
        value = (value * count)[:count]
    if len(value) < count:
        raise RopeConfigError(f"{key} must list {count} layers; got {len(value)}: {value}")
    return [str(word) for word in value[:count]]


def _select(kind: str, ropes: Mapping[str, RoPE | None]) -> RoPE | None:
    if {*ropes} == {"main", "compress"}:  # of DeepSeek-V4
        return ropes["main" if kind == "sliding_attention" else "compress"]
    label = FLAT if FLAT in ropes else kind
    if label not in ropes:
        names = ", ".join(ropes)
        raise RopeConfigError(f"layer_types has {kind!r}, and rotary parameters are for {names}")
    return ropes[label]


def list_unrotated(part: Part, model: Model, total: int | None) -> list[int]:
    """Return the numbers of the layers that are exempt from rotation."""
    # Llama 4 and SmolLM3 list a 1 for every layer that rotates, or exempt every fourth; Muse lists
    # bases, of which its code reads no more than whether they are 0.
    for key in ("no_rope_layers", "layer_rope_theta"):
        flags = part.get(key)
        if isinstance(flags, list) and flags:
            _limits.check_size(key, flags, _limits.LAYERS)
            return [i for i, rotates in enumerate(flags) if not rotates]
    interval = _keys.read_size(part, "no_rope_layer_interval") or model.unrotated_every
    return list(range(interval - 1, total, interval)) if interval and total else []


def _build_layer(facts: _Facts, i: int, kind: str, rope: RoPE | None) -> LayerPlan:
    head_dim = read_head_dim(facts.part, facts.model, kind) or facts.need_size("head_dim")
    heads, kv_heads = _read_heads(facts, i, kind)
    scale = facts.model.softmax(facts.need, head_dim)
    return LayerPlan(
        kind=kind,
        rope=rope,
        head_dim=head_dim,
        heads=heads,
        kv_heads=kv_heads,
        softmax_scale=scale * (1.0 if rope is None else rope.softmax_scale),
        norm=_read_norm(facts, rope),
        indexer=None if rope is None else _read_indexer(facts, kind, rope, i),
    )


def read_overrides(part: Part) -> dict[int, Part]:
    """Return the values that ``per_layer_config`` has for single layers, under 5 or "05"."""
    per_layer = part.get("per_layer_config")
    values = per_layer if isinstance(per_layer, Mapping) else {}
    pairs = ((str(key), own) for key, own in values.items() if isinstance(own, Mapping))
    return {int(key): own for key, own in pairs if key.isdecimal() and len(key) < 8}


def read_head_dim(part: Part, model: Model, kind: str, own: Part | None = None) -> int | None:
    """Return the components of a head of q in a layer, whose own values take precedence."""
    part = {**part, **(own or {})}
    latent = _keys.read_size(part, "qk_rope_head_dim")
    if latent is not None and not model.trailing:
        rest = _keys.read_size(part, "qk_nope_head_dim")
        return None if rest is None else rest + latent
    # Gemma 4 has wider heads where attention is full, and two keys for them.
    wide = _keys.read_size(part, "global_head_dim") if kind == "full_attention" else None
    return wide or _keys.read_head_dim(part, model)


def _read_heads(facts: _Facts, i: int, kind: str) -> tuple[int, int]:
    part, per_layer = facts.part, facts.part.get("num_attention_heads_per_layer")
    if isinstance(per_layer, Sequence) and i < len(per_layer):
        heads = numbers.check_positive_int("num_attention_heads_per_layer", per_layer[i])
    else:
        heads = facts.need_size("num_attention_heads")
    if _keys.read_size(part, "qk_nope_head_dim"):
        return heads, 1  # the rotated part of k
    wide = _keys.read_size(part, "num_global_key_value_heads")
    if kind == "full_attention" and wide is not None:
        return heads, wide
    if part.get("multi_query") and not part.get("new_decoder_architecture"):
        return heads, 1  # Falcon
    has_key = facts.find("num_key_value_heads") is not None
    kv_heads = facts.need_size("num_key_value_heads") if has_key else heads
    return heads, kv_heads * (facts.model.sliding_kv_factor if kind == "sliding_attention" else 1)


def _read_norm(facts: _Facts, rope: RoPE | None) -> NormPlan | None:
    for row in facts.model.norms:
        if row.only_rotated and rope is None:
            return None
        if row.only_if is None or facts.find(row.only_if[0]) == row.only_if[1]:
            eps = facts.need(row.eps) if isinstance(row.eps, str) else row.eps
            return NormPlan(eps=numbers.check_positive(str(row.eps), eps), **row.fields)
    return None


def _read_temperature(facts: _Facts) -> Temperature | None:
    """Return how layers scale q, in Llama 4 those without positions."""
    if facts.model.has_temperature:
        is_scaled = facts.need("attn_temperature_tuning")
        beta, length = facts.need("attn_scale"), facts.need("floor_scale")
    else:
        parameters = _keys.read_layers(facts.part, facts.model).get(FLAT) or {}
        beta, length = parameters.get("llama_4_scaling_beta"), parameters.get(_keys.TRAINED)
        is_scaled = beta is not None
    if not is_scaled:
        return None
    return Temperature(
        beta=numbers.check_not_negative("the factor of the temperature of q", beta),
        length=numbers.check_positive("the length of the temperature of q", length),
        shift=int(facts.model.has_temperature),
    )


def _read_indexer(facts: _Facts, kind: str, rope: RoPE, i: int) -> IndexerPlan | None:
    row = facts.model.indexer
    if row is None or (row.kinds and kind not in row.kinds):
        return None
    modes = facts.find(row.modes) if row.modes else None
    if isinstance(modes, list) and i < len(modes) and modes[i] == "shared":
        return None  # it takes the tokens that an earlier layer selected
    head_dim, heads = map(facts.need_size, row.keys)
    offset = -rope.rotary_dim if row.trailing and rope.rotary_dim is not None else 0
    rope = replace(rope, layout=row.layout or rope.layout, rotary_offset=offset)
    return IndexerPlan(rope=rope, head_dim=head_dim, heads=heads)


def group_layers(layers: Sequence[LayerPlan]) -> dict[str, tuple[LayerPlan, list[int]]]:
    """Return equal layers with their numbers, by kind: "kind_2" where those of a kind differ."""
    by_plan: dict[LayerPlan, list[int]] = {}
    for i, layer in enumerate(layers):
        by_plan.setdefault(layer, []).append(i)
    groups: dict[str, tuple[LayerPlan, list[int]]] = {}
    seen: Counter[str] = Counter()
    for layer, members in by_plan.items():
        seen[layer.kind] += 1
        n = seen[layer.kind]
        groups[layer.kind if n == 1 else f"{layer.kind}_{n}"] = (layer, members)
    return groups
