"""Which components of a head a Hugging Face model rotates, and what each pair reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError
from rope_xp.hf import _keys
from rope_xp.hf._model import Model, Parameters


@dataclass(frozen=True)
class Slice:
    """What a RoPE says about components, and the base, which an odd number of them changes."""

    base: float
    rotary_dim: int | None
    rotary_offset: int
    position_axes: tuple[int, ...] | None
    components: int | None
    """How many are rotated, None where the configuration does not say."""


def find_slice(
    config: Mapping[str, Any], model: Model, parameters: Parameters, where: str
) -> Slice:
    """Return the slice of the head that these parameters are for."""
    numbers.check_positive("rope_theta", parameters["rope_theta"])
    base = float(parameters["rope_theta"])
    head_dim, rotary_dim = _dims(config, model, parameters)
    count = head_dim if rotary_dim is None else rotary_dim
    if rotary_dim is not None and rotary_dim % 2:
        # An odd number has the frequencies base ** (-2i / odd), and pairs for one component more.
        if parameters["rope_type"] in ("dynamic", "yarn"):
            raise RopeConfigError(f"{where}: {rotary_dim} rotated components must be even")
        base, rotary_dim = base ** ((rotary_dim + 1) / rotary_dim), rotary_dim + 1
        count = rotary_dim
    if count is not None and (count % 2 or (head_dim is not None and count > head_dim)):
        msg = f"{where}: {count} components cannot be rotated in pairs in a head of {head_dim}"
        raise RopeConfigError(msg)
    at_end = model.trailing or config.get("qk_rope_head_dim") is not None
    offset = -rotary_dim if at_end and rotary_dim is not None else 0
    axes = _position_axes(parameters, model, count, where)
    return Slice(base, rotary_dim, offset, axes, count)


def _dims(
    config: Mapping[str, Any], model: Model, parameters: Parameters
) -> tuple[int | None, int | None]:
    """Return head_dim and rotary_dim, each None where the configuration does not say."""
    head_dim = _keys.read_head_dim(config, model)
    latent = _keys.read_size(config, "qk_rope_head_dim")
    if latent is not None:
        return None, latent
    if parameters["rope_type"] == "axial":
        axes = len(model.components)
        whole = _known(head_dim, model, "rope_type 'axial' divides it")
        return whole, 2 * axes * (whole // axes // 2)
    given = _keys.read_size(parameters, "rotary_dim") or _keys.read_size(config, "rotary_dim")
    partial = parameters["partial_rotary_factor"]
    if given is None and partial == 1 and "rotary_dim" not in config:  # null is for all of a head
        given = model.rotary_dim
    if given is not None:
        return head_dim, given
    numbers.check_share("partial_rotary_factor", partial)
    if partial == 1 or parameters["rope_type"] == "proportional":
        return head_dim, None
    whole = _known(head_dim, model, f"partial_rotary_factor = {partial} is a share of it")
    return whole, int(whole * partial)


def _known(head_dim: int | None, model: Model, why: str) -> int:
    if head_dim is None:
        msg = f"head_dim is missing, and so is {' or '.join(model.width)}; {why}"
        raise RopeConfigError(msg)
    return head_dim


def _position_axes(
    parameters: Parameters, model: Model, count: int | None, where: str
) -> tuple[int, ...] | None:
    """Return the component of the position that each pair reads; None where it has only one."""
    if parameters["rope_type"] == "axial":
        each = _pairs(count, where) // len(model.components)
        if model.axial == "alternating":
            return model.components * each
        return tuple(a for a in model.components for _ in range(each))
    if model.section_order == "rows and columns":
        return (0, 1) * (_pairs(count, where) // 2)
    given = _keys.first_value(parameters, "mrope_section", "xdrope_section")
    sections = model.sections if given is None else given
    if not sections:
        return None
    checked = _checked(sections, model.section_order, where)
    return _mrope(checked, parameters, model, _pairs(count, where), where)


def _pairs(count: int | None, where: str) -> int:
    if count is None:
        msg = f"{where}: head_dim is missing; the components of a position are dealt to its pairs"
        raise RopeConfigError(msg)
    return count // 2


def _checked(sections: Any, order: str, where: str) -> Sequence[int]:
    whole = isinstance(sections, Sequence) and all(numbers.is_int(n) and n >= 0 for n in sections)
    if not whole or len(sections) < 3 or (len(sections) > 3 and order == "ernie"):
        wanted = "three integers" + (" or more" if order != "ernie" else "")
        msg = f"{where}.mrope_section must hold {wanted}; got {sections!r}"
        raise RopeConfigError(msg)
    return sections  # type: ignore[no-any-return]  # as was just checked


def _mrope(
    sections: Sequence[int], parameters: Parameters, model: Model, pairs: int, where: str
) -> tuple[int, ...]:
    """Return the component (0 time, 1 height, 2 width) that each pair reads."""
    if model.section_order == "across":
        msg = (
            f"{where}.mrope_section: here the two components of a pair read different components "
            "of the position, which is no rotation"
        )
        raise RopeConfigError(msg)
    if sum(sections) != pairs:
        msg = f"{where}.mrope_section {list(sections)} must sum to {pairs}, the rotated pairs"
        raise RopeConfigError(msg)
    order = "interleaved" if parameters.get("mrope_interleaved") else model.section_order
    if order == "contiguous":
        return tuple(i % 3 for i, n in enumerate(sections) for _ in range(n))
    if order == "ernie":  # sections of height, width and time; the first two take turns
        height, width, time = sections
        if height != width:
            msg = f"{where}.mrope_section {list(sections)}: height and width must be alike"
            raise RopeConfigError(msg)
        return (1, 2) * height + (0,) * time
    axes = [0] * pairs
    for component in (1, 2):
        for pair in range(component, min(3 * sections[component], pairs), 3):
            axes[pair] = component
    return tuple(axes)
