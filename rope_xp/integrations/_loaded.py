"""Read the plan of a loaded model from one call of it.

A model whose type no table has, such as one with code from the Hub, still calls a function that
rotates, with tables that one of its modules makes from positions. Together they are a function of
q, k and positions, which is identified.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from rope_xp._core.errors import RopeConfigError, RopeError, rewording
from rope_xp.hf import IndexerPlan, LayerPlan, _build
from rope_xp.integrations import _loaded_norms, _rotary
from rope_xp.integrations._loaded_calls import Made, Rotation, is_length, is_positions, record_calls
from rope_xp.rope import RoPE
from rope_xp.testing import _compare, identify

_HEAD_DIMS = ("qk_head_dim", "q_head_dim", "head_dim", "head_size")  # attributes of attentions
_SCALES = ("scaling", "softmax_scale")
_TEMPERATURES = ("attn_temperature_tuning", "llama_4_scaling_beta")


class _Facts(NamedTuple):
    """What a call of a model has shown."""

    part: Mapping[str, Any]
    calls: list[Made | Rotation]
    rotations: dict[torch.nn.Module, list[Rotation]]  # by the attention whose method rotates
    ropes: dict[Any, RoPE]  # that were identified

    def find_like(self, attention: torch.nn.Module) -> list[Rotation]:
        """Return the rotations of an attention, or of one of its class if it has none."""
        likes = (r for m, r in self.rotations.items() if type(m) is type(attention))
        return self.rotations.get(attention) or next(likes)


def plan_model(model: torch.nn.Module, part: Mapping[str, Any]) -> tuple[LayerPlan, ...]:
    """Return the plan of each layer of a loaded model; RopeConfigError says why there is none."""
    for keys in (part, part.get("rope_parameters")):
        for key in _TEMPERATURES:
            if isinstance(keys, Mapping) and keys.get(key):
                raise RopeConfigError(f"{key} scales q by positions that one call does not have")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    facts = _Facts(part, record_calls(model), {}, {})
    for call in facts.calls:
        if isinstance(call, Rotation):
            facts.rotations.setdefault(call.module, []).append(call)
    kinds = {type(module) for module in facts.rotations}
    rotating = {name: m for name, m in model.named_modules() if type(m) in kinds}
    inner = {name: outer for name in rotating for outer in rotating if name.startswith(f"{outer}.")}
    indexers = {outer: rotating[name] for name, outer in inner.items()}
    layers = list(_list_layers(model, [name for name in rotating if name not in inner]))
    words: Any = part.get("layer_types")
    if not isinstance(words, list) or len(words) != len(layers):
        words = ["attention" if names else "other" for names in layers]
    plans = []
    for names, word in zip(layers, words, strict=True):
        if not names:
            plans.append(LayerPlan(kind=str(word)))
        for name in names:
            with rewording(RopeError, f"{name}: ", into=RopeConfigError):
                plan = _read_attention(facts, rotating[name], indexers.get(name))
            plans.append(replace(plan, kind=str(word)))
    return tuple(plans)


def _list_layers(model: torch.nn.Module, names: list[str]) -> Iterator[list[str]]:
    """Yield the attentions of each layer of the lists that they are in, of some layers none."""
    stems = dict.fromkeys(re.split(r"\.\d+(?:\.|$)", name)[0] for name in names)
    for stem in stems:
        layers = model.get_submodule(stem)
        count = len(layers) if isinstance(layers, torch.nn.ModuleList) else 0
        for i in range(count):
            yield [name for name in names if f"{name}.".startswith(f"{stem}.{i}.")]
        if not count:
            yield [stem]


def _read_attention(
    facts: _Facts, attention: torch.nn.Module, indexer: torch.nn.Module | None
) -> LayerPlan:
    head_dim, heads, kv_heads = _read_heads(facts, attention)
    scale = next((getattr(attention, name) for name in _SCALES if hasattr(attention, name)), None)
    plan = LayerPlan(
        kind="attention",
        rope=_read_rope(facts, attention),
        head_dim=head_dim,
        heads=heads,
        kv_heads=kv_heads,
        softmax_scale=scale if isinstance(scale, float) else head_dim**-0.5,
        norm=_loaded_norms.read_norm(attention, facts.calls, head_dim, heads),
    )
    if indexer is None or (rope := _read_rope(facts, indexer)) is None:
        return plan
    head_dim, heads, _ = _read_heads(facts, indexer)
    return replace(plan, indexer=IndexerPlan(rope=rope, head_dim=head_dim, heads=heads))


def _read_heads(facts: _Facts, attention: torch.nn.Module) -> tuple[int, int, int]:
    """Return head_dim, and the numbers of heads of q and of k."""
    like = facts.find_like(attention)
    counts = [int(x.shape[r.axes.index("h")]) for r in like for x in r.arrays]
    return _find_slice(like[0], attention)[0], max(counts), min(counts)


def _find_slice(rotation: Rotation, attention: torch.nn.Module) -> tuple[int, int]:
    """Return head_dim of an attention, and where in a head what is rotated begins."""
    x = rotation.arrays[0]
    size, stride = int(x.shape[-1]), x.stride(rotation.axes.index("h"))
    values = (getattr(attention, name, None) for name in _HEAD_DIMS)
    head_dim = max((v for v in values if isinstance(v, int)), default=size)
    if head_dim <= size:
        return size, 0
    if stride % head_dim:
        raise RopeError(f"it rotates {size} components of {head_dim}, and no view shows which")
    first = int(x.storage_offset() % head_dim)
    return head_dim, -size if first == head_dim - size else first


def _read_rope(facts: _Facts, attention: torch.nn.Module) -> RoPE | None:
    """Return the RoPE of an attention: if they are equal, the configuration's, with its scaling."""
    if attention not in facts.rotations:
        return None
    rotation = facts.rotations[attention][0]
    if not rotation.tables:
        raise RopeError("no module that takes positions returns the tables of its rotation")
    made = next(iter(rotation.tables.values()))[0]
    words = [value for value in made.arguments.values() if isinstance(value, str)]
    size = int(rotation.arrays[0].shape[-1])
    key = rotation.function, made.module, *words, size
    if key not in facts.ropes:
        facts.ropes[key] = _identify(facts, rotation, made, size)
    rope, (head_dim, first) = facts.ropes[key], _find_slice(rotation, attention)
    if head_dim == size:
        return rope
    return replace(
        rope, rotary_dim=rope.rotary_dim or size, rotary_offset=rope.rotary_offset + first
    )


def _identify(facts: _Facts, rotation: Rotation, made: Made, size: int) -> RoPE:
    values = [*made.arguments.values(), *rotation.arguments.values()]
    ids = next((value for value in values if is_positions(value)), None)
    if ids is None:
        raise RopeError("its tables are of a length, and its function takes no positions")
    # A table of a given length ends there, and so may one that is no function of inv_freq.
    has_end = any(map(is_length, values)) or not _rotary.frequency_buffers(made.module)
    limit = int(facts.part.get("max_position_embeddings") or 2048) if has_end else math.inf

    def rotate(q: Any, k: Any, positions: Any) -> Any:
        def adapt(value: Any) -> Any:
            if is_positions(value):
                return positions if positions.ndim == value.ndim else positions[..., None, :]
            return limit if is_length(value) else value

        given = {  # x is there for its dtype
            name: q if isinstance(x, torch.Tensor) and x.is_floating_point() else adapt(x)
            for name, x in made.arguments.items()
        }
        at = [given[name] for name in given if isinstance(name, int)]
        result = made.module(*at, **{n: v for n, v in given.items() if isinstance(n, str)})
        results = result if isinstance(result, tuple) else (result,)
        tables = {name: results[i] for name, (_, i) in rotation.tables.items()}
        rest = {name: adapt(value) for name, value in rotation.arguments.items()} | tables
        if len(rotation.names) == 2:
            return rotation.function(**rest | dict(zip(rotation.names, (q, k), strict=True)))[:2]
        return tuple(rotation.function(**rest | {rotation.names[0]: x}) for x in (q, k))

    vars(rotate)["rope_xp_limit"] = limit
    components = ids.shape[0] if ids.ndim == 3 else 1
    like = torch.zeros(1, device=rotation.arrays[0].device)
    found = identify(rotate, size, axes=rotation.axes, components=components, like=like)
    if found.faults:
        raise RopeError(f"{'; '.join(found.faults)}; a plan has no words for this")
    return _find_stated(facts.part, found.rope, size) or found.rope


def _find_stated(part: Mapping[str, Any], rope: RoPE, size: int) -> RoPE | None:
    try:
        ropes = _build.build_ropes(part, _build.find_model(part, rope.layout))
    except (RopeError, TypeError):
        return None
    for stated in ropes.values():
        if stated is None:
            continue
        is_slice = stated.rotary_dim == size
        whole = replace(stated, rotary_dim=None, rotary_offset=0) if is_slice else stated
        with contextlib.suppress(RopeError):
            if not _compare.list_differences(rope, whole, size):
                return whole
    return None
