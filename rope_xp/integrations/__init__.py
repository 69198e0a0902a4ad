"""Replace the rotation of other packages' models by rope_xp's. The core imports none of this."""

import typing as _typing

from rope_xp._core.lazy import load_on_first_use as _load_on_first_use
from rope_xp.integrations._drop_in import apply_rotary_transformers

__all__ = ["apply_rotary_transformers"]

if _typing.TYPE_CHECKING:
    from rope_xp.integrations import diffusers, transformers  # noqa: F401  # names for type checkers
else:
    __getattr__, __dir__ = _load_on_first_use(__name__, "diffusers", "transformers")
