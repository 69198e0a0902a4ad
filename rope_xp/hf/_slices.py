"""Find the rotated components of a head, and the component of positions that each pair reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.hf import _keys
from rope_xp.hf._model import Model, Parameters


def find_slice(
    config: Mapping[str, Any], model: Model, parameters: Parameters
) -> tuple[dict[str, Any], int | None]:
    """Return fields of the RoPE, and the number of rotated components, None if it is unknown."""
    base = float(numbers.check_positive("rope_theta", parameters["rope_theta"]))
    head_dim, rotary_dim = _read_dims(config, model, parameters)
    if rotary_dim is not None and rotary_dim % 2:
        # An odd number has the frequencies base ** (-2i / odd), and pairs for one component more.
        if parameters["rope_type"] in ("dynamic", "yarn"):
            raise RopeError(f"{rotary_dim} rotated components must be even")
        base, rotary_dim = base ** ((rotary_dim + 1) / rotary_dim), rotary_dim + 1
    count = head_dim if rotary_dim is None else rotary_dim
    if count is not None and (count % 2 or (head_dim is not None and count > head_dim)):
        raise RopeError(f"{count} components cannot be rotated in pairs in a head of {head_dim}")
    trailing = model.trailing or config.get("qk_rope_head_dim") is not None
    offset = -rotary_dim if trailing and rotary_dim is not None else 0
    axes = _find_position_axes(parameters, model, count)
    fields = {"base": base, "rotary_dim": rotary_dim, "rotary_offset": offset}
    return {**fields, "position_axes": axes}, count


def _read_dims(
    config: Mapping[str, Any], model: Model, parameters: Parameters
) -> tuple[int | None, int | None]:
    """Return head_dim and rotary_dim, each None if it is unknown."""
    head_dim = _keys.read_head_dim(config, model)
    latent = _keys.read_size(config, "qk_rope_head_dim")
    if latent is not None:
        return None, latent
    if parameters["rope_type"] == "axial":
        axes = len(model.components)
        whole = _need_head_dim(head_dim, model, "rope_type 'axial' divides it")
        return whole, 2 * axes * (whole // axes // 2)
    rotary_dim = _keys.read_size(parameters, "rotary_dim") or _keys.read_size(config, "rotary_dim")
    partial = parameters["partial_rotary_factor"]
    if rotary_dim is None and partial == 1 and "rotary_dim" not in config:  # null: the whole head
        rotary_dim = model.rotary_dim
    if rotary_dim is not None:
        return head_dim, rotary_dim
    numbers.check_share("partial_rotary_factor", partial)
    if partial == 1 or parameters["rope_type"] == "proportional":
        return head_dim, None
    whole = _need_head_dim(head_dim, model, f"partial_rotary_factor = {partial} is a share of it")
    return whole, int(whole * partial)


def _need_head_dim(head_dim: int | None, model: Model, reason: str) -> int:
    if head_dim is None:
        keys = " or ".join(model.width)
        raise RopeConfigError(f"head_dim is missing, and so is {keys}; {reason}")
    return head_dim


def _find_position_axes(
    parameters: Parameters, model: Model, count: int | None
) -> tuple[int, ...] | None:
    """Return the component of positions that each pair reads; None if there is only one."""
    is_axial = parameters["rope_type"] == "axial"
    alternates = model.section_order == "rows and columns"
    sections = _keys.first_value(parameters, "mrope_section", "xdrope_section")
    sections = model.sections if sections is None else sections
    if not (is_axial or alternates or sections):
        return None
    if not (is_axial or alternates):
        _check_sections(sections, model.section_order)
    pairs = _need_head_dim(count, model, "its pairs read components of the position") // 2
    if is_axial:
        share = pairs // len(model.components)
        if model.axial == "alternating":
            return model.components * share
        return tuple(a for a in model.components for _ in range(share))
    if alternates:
        return (0, 1) * (pairs // 2)
    return _deal_sections(sections, parameters, model, pairs)


def _check_sections(sections: Any, order: str) -> None:
    is_list = isinstance(sections, Sequence) and all(map(numbers.is_int, sections))
    bad_length = is_list and (len(sections) < 3 or (len(sections) > 3 and order == "ernie"))
    if not is_list or bad_length or min(sections) < 0:
        expected = "three integers" + (" or more" if order != "ernie" else "")
        raise RopeError(f"mrope_section must hold {expected}; got {sections!r}")


def _deal_sections(
    sections: Sequence[int], parameters: Parameters, model: Model, pairs: int
) -> tuple[int, ...]:
    """Return the component (0 time, 1 height, 2 width) that each pair reads."""
    if model.section_order == "across":
        raise RopeError(
            "mrope_section: in this model the two components of a pair read different components "
            "of the position, which is no rotation"
        )
    if sum(sections) != pairs:
        raise RopeError(f"mrope_section {[*sections]} must sum to {pairs}, the rotated pairs")
    order = "interleaved" if parameters.get("mrope_interleaved") else model.section_order
    if order == "contiguous":
        return tuple(i % 3 for i, n in enumerate(sections) for _ in range(n))
    if order == "ernie":  # sections of height, width and time; the first two alternate
        height, width, time = sections
        if height != width:
            raise RopeError(f"mrope_section {[*sections]}: height and width must be equal")
        return (1, 2) * height + (0,) * time
    axes = [0] * pairs
    for component in (1, 2):
        stop = min(3 * sections[component], pairs)
        axes[component:stop:3] = [component] * len(range(component, stop, 3))
    return tuple(axes)
