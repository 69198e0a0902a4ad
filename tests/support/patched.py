"""What the tests of patched models share: tokens, logits, and a count of rotations by rope_xp."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rope_xp._dispatch import call_cache
from rope_xp.integrations import _functions
from rope_xp.integrations._formats import Format

TOKENS = torch.randint(1, 64, (2, 24), generator=torch.Generator().manual_seed(1))
# Float32 of two layers, with logits of 1 to 10 in modulus: the model's own rounding.
LOGITS = 2e-4
# Of q and k in a forward of two layers.
ROTATIONS = 4


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits  # type: ignore[no-any-return]  # a tensor


def replaced(
    kind: str, form: Format, name: str = "apply_rotary_pos_emb"
) -> tuple[_functions.Function, _functions.Function]:
    """Return a function of a kind of models, and what replaces it in one that is patched."""
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    function = getattr(module, name)
    rotation = _functions.recognise("apply", function, [form])
    return function, _functions.replacement("apply", function, rotation)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows by one with each rotation of q or k by rope_xp."""
    done: list[None] = []
    rotated, known = _functions._rotated, call_cache.CALLS.get

    def count(xs: Sequence[torch.Tensor]) -> None:
        # Not the few values by which functions are recognised.
        done.extend(None for x in xs if TOKENS.shape[-1] in x.shape)

    def rotate(xs: Sequence[torch.Tensor], *given: Any) -> Any:
        count(xs)
        return rotated(xs, *given)

    class Counting(dict[Any, Any]):
        """Count what is found in the cache; calls by signature come here alone."""

        def get(self, key: Any, default: Any = None) -> Any:
            run = known(key, default)
            return run and (lambda signature: (count(signature.arrays), run(signature))[1])

    monkeypatch.setattr(_functions, "_rotated", rotate)
    stand_in = SimpleNamespace(**vars(call_cache) | {"CALLS": Counting()})
    monkeypatch.setattr(_functions, "call_cache", stand_in)
    return done
