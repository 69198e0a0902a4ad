"""The layer that the package kernels puts in place of a model's function ``rotary_pos_emb``."""

from typing import Any

import torch

from rope_xp._core.errors import RopeError
from rope_xp.integrations import _functions
from rope_xp.integrations._formats import Format

_FORMS: tuple[Format, ...] = ("halves", "neighbours", "pairs")


class apply_rotary_transformers(torch.nn.Module):  # noqa: N801  # as repositories on the Hub call it
    """Rotates by rope_xp where the model's own function does so in any layout."""

    # Whoever checks layers lets them have these two members, and no method but forward.
    can_torch_compile = True
    has_backward = True

    def forward(self, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        """Do what the function does whose ``forward`` this becomes."""
        kind = type(self)  # of the model's function; forward alone is exchanged
        if kind not in _ROTATIONS:
            if torch.compiler.is_compiling():  # which cannot trace how functions are recognised
                return kind.forward(self, q, k, cos, sin, unsqueeze_dim)
            _ROTATIONS[kind] = _replace(self)
        return _ROTATIONS[kind](q, k, cos, sin, unsqueeze_dim)


_ROTATIONS: dict[type, _functions.Function] = {}


def _replace(module: torch.nn.Module) -> _functions.Function:
    """Return what rotates as a function of a model does, which kernels has made a module of.

    Some that go by this name turn the other way: those stay as they are.
    """
    function, name = _functions.own_function(module), type(module).__name__
    try:
        rotation = _functions.recognise(name, function, _FORMS)
    except RopeError:
        return function
    return _functions.replacement(name, function, rotation)
