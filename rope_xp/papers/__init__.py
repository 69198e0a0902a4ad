"""Functions of the papers around RoPE, in plain array API. The rotation itself needs none of them.

- :mod:`rope_xp.papers.attention`: softmax and linear attention with rotated queries and keys
- :mod:`rope_xp.papers.encodings`: the position encodings that RoFormer compares RoPE with
- :mod:`rope_xp.papers.analysis`: scores over distance, in numpy
"""

import typing as _typing

from rope_xp._core.lazy import load_on_first_use as _load_on_first_use

if _typing.TYPE_CHECKING:
    from rope_xp.papers import analysis, attention, encodings  # noqa: F401  # names for type checkers
else:
    __getattr__, __dir__ = _load_on_first_use(__name__, "analysis", "attention", "encodings")
