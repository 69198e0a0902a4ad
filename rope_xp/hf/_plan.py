"""Build the plan of every layer of a model from its configuration."""

import copy
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError
from rope_xp._core.typing import Layout
from rope_xp.hf import _build, _keys, _limits
from rope_xp.hf._attention import Attention
from rope_xp.hf._keys import FLAT, Model
from rope_xp.hf._layer_plan import IndexerPlan, LayerPlan, NormPlan, Temperature
from rope_xp.rope import RoPE

Part = Mapping[str, Any]
_NO_ATTENTION = ("linear_attention", "conv", "mamba", "recurrent", "cross_attention")


class _MissingKeyError(RopeConfigError):
    """A key is missing, for which the model's class in transformers may have a default."""


@dataclass(frozen=True)
class _Facts:
    """A configuration, and whether it has the defaults of the model's class."""

    part: Part
    is_filled: bool

    def find(self, name: str) -> Any:
        """Return a value. None only if the model's class has no default either."""
        value = _keys.first_value(self.part, name, *_keys.ALIASES.get(name, ()))
        if value is None and not self.is_filled:
            raise _MissingKeyError(
                f"{name} is missing, and a plan needs it; add it, or install transformers, whose "
                "class of the model type may have a default"
            )
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
        return _build_layers(_Facts(part, is_filled=False), _build.find_model(part, layout))
    except _MissingKeyError as error:
        if (filled := _fill_in(part)) is None:
            raise RopeConfigError(str(error)) from None
    return _build_layers(_Facts(filled, is_filled=True), _build.find_model(filled, layout))


def _fill_in(part: Part) -> Part | None:
    """Return a configuration with the defaults of transformers; None if it is not there."""
    if not importlib.util.find_spec("transformers"):
        return None
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    name = str(part.get("model_type"))
    known = next((n for n in (f"{name}_text", name) if n in mapping), None)
    if known is None:
        return None
    content = {**copy.deepcopy(dict(part)), "model_type": known}
    try:
        filled: Part = mapping[known].from_dict(content).to_dict()
    except Exception as error:  # its classes have errors of their own
        raise RopeConfigError(f"transformers cannot read the configuration: {error}") from error
    return filled


def _build_layers(facts: _Facts, model: Model) -> tuple[LayerPlan, ...]:
    part, attention = facts.part, model.attention
    if attention.obstacle:
        name = part.get("model_type")
        raise RopeConfigError(f"no plan of model_type {name!r}: {attention.obstacle}")
    for key in attention.needs:
        facts.find(key)
    if part.get("qk_nope_head_dim") is None and "head_dim" not in model.sizes:
        facts.find("head_dim")  # of which many classes have a default that is not width over heads
    ropes = _build.build_ropes(part, model)
    kinds = _list_kinds(facts, attention, is_uniform=FLAT in ropes)
    unrotated = {*list_unrotated(part, model, len(kinds))}
    return tuple(
        LayerPlan(kind=kind)
        if kind in _NO_ATTENTION
        else _build_layer(facts, model, i, kind, None if i in unrotated else _select(kind, ropes))
        for i, kind in enumerate(kinds)
    )


def _list_kinds(facts: _Facts, attention: Attention, *, is_uniform: bool) -> list[str]:
    """Return the configuration's word for each layer."""
    count = facts.need_size("num_hidden_layers") * attention.per_layer
    _limits.check_number("num_hidden_layers", count, _limits.LAYERS)
    key, part = attention.kinds_key or "layer_types", facts.part
    if key not in part and is_uniform and not attention.kinds_key:
        return ["attention"] * count
    value = facts.find(key)
    for name, listed, others in (
        ("attn_layer_indices", "attention", "mamba"),
        ("cross_attention_layers", "cross_attention", "attention"),
    ):
        if key == name:
            return [listed if i in (value or ()) else others for i in range(count)]
    if value is None and is_uniform:
        return ["attention"] * count
    words = value * count if key == "block_types" and isinstance(value, list) else value
    if not isinstance(words, list) or len(words) < count:
        raise RopeConfigError(f"{key} must list {count} layers; got {value!r}")
    return [str(word) for word in words[:count]]


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
    # bases, and 0 for exempt layers.
    for key in ("no_rope_layers", "layer_rope_theta"):
        flags = part.get(key)
        if isinstance(flags, list) and flags:
            _limits.check_size(key, flags, _limits.LAYERS)
            if len({flag for flag in flags if flag}) > 1:
                raise RopeConfigError(f"{key} with several values is not supported; got {flags}")
            return [i for i, rotates in enumerate(flags) if not rotates]
    interval = _keys.read_size(part, "no_rope_layer_interval") or model.unrotated_every
    return list(range(interval - 1, total, interval)) if interval and total else []


def _build_layer(facts: _Facts, model: Model, i: int, kind: str, rope: RoPE | None) -> LayerPlan:
    attention, own = model.attention, read_overrides(facts.part, i)
    head_dim = read_head_dim(facts.part, model, kind, own)
    if head_dim is None:
        raise RopeConfigError("head_dim is missing, and a plan needs it")
    heads, kv_heads = _read_heads(facts, attention, kind, own, i)
    scale = attention.softmax(facts.need, head_dim) * (1.0 if rope is None else rope.softmax_scale)
    return LayerPlan(
        kind=kind,
        rope=rope,
        head_dim=head_dim,
        heads=heads,
        kv_heads=kv_heads,
        softmax_scale=scale,
        norm=_read_norm(facts, attention, rope),
        temperature=_read_temperature(facts, model, rope),
        indexer=None if rope is None else _read_indexer(facts, attention, kind, rope, i),
    )


def read_overrides(part: Part, layer: int) -> Part:
    """Return the values that ``per_layer_config`` has for a layer, under 5 or "05"."""
    per_layer = part.get("per_layer_config")
    for key, values in per_layer.items() if isinstance(per_layer, Mapping) else ():
        if str(key).isdecimal() and int(key) == layer and isinstance(values, Mapping):
            return values
    return {}


def read_head_dim(part: Part, model: Model, kind: str, own: Part) -> int | None:
    """Return the components of a head of a layer."""
    latent = _keys.read_size(part, "qk_rope_head_dim")
    if latent is not None and not model.trailing:
        rest = _keys.read_size({**part, **own}, "qk_nope_head_dim")
        return None if rest is None else rest + latent
    # Gemma 4 has wider heads where attention is full, and two keys for them.
    wide = _keys.read_size(part, "global_head_dim") if kind == "full_attention" else None
    return wide or _keys.read_size(own, "head_dim") or _keys.read_head_dim(part, model)


def _read_heads(
    facts: _Facts, attention: Attention, kind: str, own: Part, i: int
) -> tuple[int, int]:
    """Return the heads of q and of k of a layer."""
    per_layer = facts.part.get("num_attention_heads_per_layer")
    heads = _keys.read_size(own, "num_attention_heads")
    if heads is None and isinstance(per_layer, Sequence) and i < len(per_layer):
        heads = numbers.check_positive_int("num_attention_heads_per_layer", per_layer[i])
    heads = heads or facts.need_size("num_attention_heads")
    if _keys.read_size(facts.part, "qk_nope_head_dim"):
        return heads, 1  # the rotated part of k
    kv_heads = _keys.read_size(own, "num_key_value_heads")
    if kv_heads is None and kind == "full_attention":
        kv_heads = _keys.read_size(facts.part, "num_global_key_value_heads")
    if kv_heads is not None:
        return heads, kv_heads
    if facts.part.get("multi_query") and not facts.part.get("new_decoder_architecture"):
        return heads, 1  # Falcon
    has_key = facts.find("num_key_value_heads") is not None
    kv_heads = facts.need_size("num_key_value_heads") if has_key else heads
    return heads, kv_heads * (attention.sliding_kv_factor if kind == "sliding_attention" else 1)


def _read_norm(facts: _Facts, attention: Attention, rope: RoPE | None) -> NormPlan | None:
    for row in attention.norms:
        if row.only_rotated and rope is None:
            return None
        if row.only_if is None or facts.find(row.only_if[0]) == row.only_if[1]:
            eps = facts.need(row.eps) if isinstance(row.eps, str) else row.eps
            return NormPlan(eps=numbers.check_positive(str(row.eps), eps), **row.fields)
    return None


def _read_temperature(facts: _Facts, model: Model, rope: RoPE | None) -> Temperature | None:
    if model.attention.has_temperature:
        if rope is not None or not facts.need("attn_temperature_tuning"):
            return None
        values, shift = (facts.need("attn_scale"), facts.need("floor_scale")), 1
    else:
        parameters = _keys.read_layers(facts.part, model).get(FLAT) or {}
        values, shift = (parameters.get("llama_4_scaling_beta"), parameters.get(_keys.TRAINED)), 0
        if values[0] is None:
            return None
    beta, length = (numbers.check_positive("temperature of q", value) for value in values)
    return Temperature(beta=beta, length=length, shift=shift)


def _read_indexer(
    facts: _Facts, attention: Attention, kind: str, rope: RoPE, i: int
) -> IndexerPlan | None:
    row = attention.indexer
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
    for layer, members in by_plan.items():
        n = 1 + sum(other.kind == layer.kind for other, _ in groups.values())
        groups[layer.kind if n == 1 else f"{layer.kind}_{n}"] = (layer, members)
    return groups
