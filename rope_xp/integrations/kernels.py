"""Register rope_xp's rotation with the package kernels, for models of transformers."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from kernels import LocalLayerRepository

from rope_xp._core.errors import RopeError
from rope_xp.integrations import _recognition, _replacements
from rope_xp.integrations._methods import Function

__all__ = ["repository"]

_REPLACEMENTS: dict[type, Function] = {}


def repository() -> LocalLayerRepository:
    """Return the repository to map to ``rotary_pos_emb``, for all devices and modes.

    On its first call, the layer calls the model's own function with a few values. From then on
    rope_xp rotates in that function's layout, by the model's tables. A function without a known
    layout, such as nanochat's, still runs itself, and so does a model that is compiled before its
    first call.

    Returns
    -------
    kernels.LocalLayerRepository
        It has the layer ``apply_rotary_transformers``.

    Examples
    --------
    >>> import kernels
    >>> from rope_xp.integrations.kernels import repository
    >>> mapping = {"rotary_pos_emb": {"cpu": repository(), "cuda": repository()}}
    >>> kernels.register_kernel_mapping(mapping)
    """
    # A repository as the package kernels reads them: its layers are those of this module.
    folder = Path(__file__).parent / "hub"
    return LocalLayerRepository(repo_path=folder, layer_name="apply_rotary_transformers")


class apply_rotary_transformers(torch.nn.Module):  # noqa: N801  # as repositories on the Hub call it
    """Rotates by rope_xp if the model's own function has a known layout."""

    # The package kernels allows layers these two members, and no method but forward.
    can_torch_compile = True
    has_backward = True

    def forward(self, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        kind = type(self)
        if kind not in _REPLACEMENTS:
            if torch.compiler.is_compiling():  # which cannot trace how functions are recognized
                return kind.forward(self, q, k, cos, sin, unsqueeze_dim)
            function = _REPLACEMENTS[kind] = _recognition.own_function(self)
            with contextlib.suppress(RopeError):  # it is not recognized, and computes by itself
                _REPLACEMENTS[kind] = _replacements.build_replacement(
                    kind.__name__, function, None, ("halves", "neighbours", "pairs")
                )
        return _REPLACEMENTS[kind](q, k, cos, sin, unsqueeze_dim)
