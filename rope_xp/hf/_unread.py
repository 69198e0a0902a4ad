"""Find the rotary keys of a configuration that nothing reads."""

import re
import reprlib
import warnings
from collections import UserDict
from collections.abc import Mapping
from typing import Any

from rope_xp._core.typing import Layout
from rope_xp.hf import _build
from rope_xp.hf._keys import Part
from rope_xp.hf._models import get_row

_ROTARY = re.compile("rope|rotary|alibi|ntk|dual_chunk|position_embeddings?_type")
_REPORTED = ("no_rope_layers", "no_rope_layer_interval", "rope_scaling", "rope_parameters")
"""Keys that a plan reads, or whose own keys are checked."""


class Watched(UserDict[str, Any]):
    """A mapping that records which of its keys were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def list_unread(part: Part, layout: Layout | None) -> dict[str, Any]:
    """Return the keys whose names are about positions, and that no rope depends on.

    A switch that is off says nothing, but for those of layouts, which are on where they are
    missing.
    """
    watched = Watched(part)
    _build.build_ropes(watched, _build.find_model(watched, layout))
    unread = {k: v for k, v in part.items() if k not in watched.read and _ROTARY.search(str(k))}
    return {
        key: value
        for key, value in unread.items()
        if key not in _REPORTED
        and (value not in (None, False) or (value is False and "interleave" in key))
    }


def warn_of_unread(part: Part, layout: Layout | None) -> None:
    """Warn of such keys of an unknown model type, whose code may read them."""
    is_known = get_row(part.get("model_type")) is not None
    if not is_known and (unread := list_unread(part, layout)):
        shown = ", ".join(f"{key} = {reprlib.repr(value)}" for key, value in unread.items())
        what = f"model_type {part.get('model_type')!r} is not known, and nothing reads {shown}"
        warnings.warn(f"{what}; its code may rotate otherwise", stacklevel=3)
