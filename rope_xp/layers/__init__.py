"""Modules for torch, flax, equinox and keras that rotate by a RoPE. The core imports none."""

import typing as _typing

from rope_xp._core.lazy import load_on_first_use as _load_on_first_use

if _typing.TYPE_CHECKING:
    from rope_xp.layers import equinox, flax, keras, torch  # noqa: F401  # names for type checkers
else:
    __getattr__, __dir__ = _load_on_first_use(__name__, "equinox", "flax", "keras", "torch")
