"""Build the RoPE of one layer type: the row of its model type, its rotated slice and its axes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rope_xp._arguments import fields
from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp._core.typing import Layout
from rope_xp.hf import _keys, _limits, _scaling
from rope_xp.hf._models import MODELS, UNSUPPORTED, get_row
from rope_xp.rope import RoPE

_TYPE_KEYS = ("position_embedding_type", "position_embeddings_type")
_NOT_ROTARY = ("absolute", "alibi", "learned", "none", "nope", "relative", "sinusoidal")
_TYPE_IGNORED = ("modernbert", "modernbert-decoder")
"""Models whose files have "absolute" for an older class, and whose code does not read it."""


def build_ropes(part: Mapping[str, Any], model: _keys.Model) -> dict[str, RoPE | None]:
    """Return the RoPE of each layer type, ``FLAT`` if all share it, or None without positions."""
    ropes: dict[str, RoPE | None] = {}
    for label, parameters in _keys.read_layers(part, model).items():
        where = ".".join(filter(None, (_keys.parameters_key(part), label)))
        source = _scaling.Source(part, model, parameters or {}, where)
        with _keys.naming_errors(f"{where}: "):
            ropes[label] = None if parameters is None else build_rope(source)
    return ropes


def find_model(config: Mapping[str, Any], layout: Layout | None = None) -> _keys.Model:
    """Return the row of the model type; a plain one for an unknown type whose layout is given."""
    if layout is not None:
        fields.check_layout(layout)
    name = config.get("model_type") or ""
    if not isinstance(name, str):
        raise RopeConfigError(f"model_type must be a string; got {name!r}")
    row = get_row(name)
    if obstacle := _find_obstacle(name, config, row):
        raise RopeConfigError(f"model_type {name!r}{obstacle}")
    if row is None:
        if not _is_rotary(config):
            parts = [name for name, part in config.items() if _is_rotary(part)]
            advice = f"; pass only the part that has one: {', '.join(parts)}" if parts else ""
            if not name and not parts:
                advice = "; add the model_type of this part, such as 'qwen2_5_vl_vision'"
            raise RopeConfigError(
                f"the configuration{f' of model_type {name!r}' * bool(name)} has no rotary "
                f"embedding that rope_xp knows: none of {', '.join(_keys.ROTARY_KEYS)}{advice}"
            )
        if layout is None:
            raise RopeConfigError(
                f"model_type {repr(name) + ' is not known' if name else 'is missing'}, and only "
                "the model's code shows how components pair up: pass layout= (inspect --layout), "
                "'half' for most models derived from Llama, or set model_type to the type of the "
                "model that this one is derived from; rope_xp.plan(model) reads a loaded model"
            )
        row = _keys.Model()
    is_half = row.reads_interleave and config.get("rope_interleave") is False
    return replace(row, layout=layout or ("half" if is_half else row.layout))


def _is_rotary(part: object) -> bool:
    return isinstance(part, Mapping) and (
        str(part.get("model_type")) in MODELS or any(key in part for key in _keys.ROTARY_KEYS)
    )


def _find_obstacle(name: str, config: Mapping[str, Any], row: _keys.Model | None) -> str | None:
    """Return why a model has no rotary embedding, or none that a RoPE can express."""
    for key in _TYPE_KEYS:
        value = config.get(key)  # ESM, for one, has either embedding
        is_other = isinstance(value, str) and value.lower().startswith(_NOT_ROTARY)
        if is_other and name not in _TYPE_IGNORED:
            return f" has {key} = {value!r}, and so no rotary embedding"
    if config.get("alibi"):
        return " has alibi, and so no rotary embedding"
    if reason := UNSUPPORTED.get(name) or UNSUPPORTED.get(name.removesuffix("_text")):
        return f": {reason}"
    if row is None or row.rotary_if is None or config.get(row.rotary_if[0]) == row.rotary_if[1]:
        return None
    key, required = row.rotary_if
    return f" rotates only with {key} = {required!r}; got {config.get(key)!r}"


def build_rope(source: _scaling.Source) -> RoPE:
    scaling = _scaling.read_scaling(source)
    base = float(numbers.check_positive("rope_theta", source.parameters["rope_theta"]))
    head_dim, rotary_dim = _read_dims(source)
    if rotary_dim is not None and rotary_dim % 2:
        # An odd number has the frequencies base ** (-2i / odd), and pairs for one component more.
        if source.parameters["rope_type"] in ("dynamic", "yarn"):
            raise RopeError(f"{rotary_dim} rotated components must be even")
        base, rotary_dim = base ** ((rotary_dim + 1) / rotary_dim), rotary_dim + 1
    count = head_dim if rotary_dim is None else rotary_dim
    if count is not None and (count % 2 or (head_dim is not None and count > head_dim)):
        raise RopeError(f"cannot rotate {count} components in pairs in a head of {head_dim}")
    _limits.check_number("rotated components of a head", count, _limits.COMPONENTS)
    is_last = source.model.trailing or source.config.get("qk_rope_head_dim") is not None
    rope = RoPE(
        base=base,
        layout=source.model.layout,
        rotary_dim=rotary_dim,
        rotary_offset=-rotary_dim if is_last and rotary_dim is not None else 0,
        scaling=scaling,
        position_axes=_find_position_axes(source, count),
    )
    if count is not None:
        for length in (1, 1 << 40):  # raises unless both lists of LongRoPE have r/2 entries
            rope.for_length(length).frequencies(count)
    return rope


def _read_dims(source: _scaling.Source) -> tuple[int | None, int | None]:
    """Return head_dim and rotary_dim, each None if it is unknown."""
    config, model, parameters = source.config, source.model, source.parameters
    head_dim, rope_type = _keys.read_head_dim(config, model), parameters["rope_type"]
    name = "partial_rotary_factor"
    partial = numbers.check_positive(name, parameters[name])
    if latent := _keys.read_size(config, "qk_rope_head_dim"):
        return None, latent
    rotary_dim = _keys.read_size(parameters, "rotary_dim") or _keys.read_size(config, "rotary_dim")
    if not model.reads_share and rope_type != "proportional":
        for key, value, whole in ((name, partial, 1), ("rotary_dim", rotary_dim, head_dim)):
            if value not in (None, whole):
                raise RopeError(
                    f"{key} = {value} is not read by the code of model_type "
                    f"{config.get('model_type')!r}, which rotates whole heads; remove it, or set "
                    "the model_type of the code that reads it"
                )
    if rope_type == "axial":
        axes = len(model.components)
        whole = _need_head_dim(head_dim, source, "rope_type 'axial' divides it")
        return whole, 2 * axes * (whole // axes // 2)
    if rotary_dim is None and partial == 1 and "rotary_dim" not in config:  # null: the whole head
        rotary_dim = model.rotary_dim
    if rotary_dim is not None:
        return head_dim, rotary_dim
    numbers.check_share(name, partial)
    if partial == 1 or rope_type == "proportional":
        return head_dim, None
    whole = _need_head_dim(head_dim, source, f"partial_rotary_factor = {partial} is a share of it")
    return whole, int(whole * partial)


def _need_head_dim(head_dim: int | None, source: _scaling.Source, reason: str) -> int:
    if head_dim is None:
        keys = " or ".join(source.model.width)
        raise RopeConfigError(f"head_dim is missing, and so is {keys}; {reason}")
    return head_dim


def _find_position_axes(source: _scaling.Source, count: int | None) -> tuple[int, ...] | None:
    """Return the component of positions that each pair reads; None if there is only one."""
    model, parameters = source.model, source.parameters
    is_axial = parameters["rope_type"] == "axial"
    alternates = model.section_order == "rows and columns"
    sections = _keys.first_value(parameters, "mrope_section", "xdrope_section")
    sections = model.sections if sections is None else sections
    if not (is_axial or alternates or sections):
        return None
    pairs = _need_head_dim(count, source, "its pairs read components of the position") // 2
    share = pairs // len(model.components)
    if alternates or (is_axial and model.axial == "alternating"):
        return model.components * share
    if is_axial:
        return tuple(a for a in model.components for _ in range(share))
    return _deal_sections(sections, source, pairs)


def _deal_sections(sections: Any, source: _scaling.Source, pairs: int) -> tuple[int, ...]:
    """Return the component (0 time, 1 height, 2 width) that each pair reads."""
    order = source.model.section_order
    is_list = isinstance(sections, Sequence) and all(map(numbers.is_int, sections))
    bad_length = is_list and (len(sections) < 3 or (len(sections) > 3 and order == "ernie"))
    if not is_list or bad_length or min(sections) < 0:
        expected = "three integers" + (" or more" if order != "ernie" else "")
        raise RopeError(f"mrope_section must hold {expected}; got {sections!r}")
    if order == "across":
        raise RopeError(
            "mrope_section: the two components of a pair would read different components of the "
            "position, which is not a rotation"
        )
    if sum(sections) != pairs:
        raise RopeError(f"mrope_section {[*sections]} must sum to {pairs}, the rotated pairs")
    if order == "interleaved" or source.parameters.get("mrope_interleaved"):
        return tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(pairs))
    if order == "contiguous":
        return tuple(i % 3 for i, n in enumerate(sections) for _ in range(n))
    height, width, time = sections  # of Ernie, whose height and width alternate
    if height != width:
        raise RopeError(f"mrope_section {[*sections]}: height and width must be equal")
    return (*(1, 2) * height, *(0,) * time)
