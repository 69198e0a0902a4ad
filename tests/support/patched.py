"""What the tests of patched models share: tokens, logits, and a count of rotations by rope_xp."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rope_xp.integrations import _functions

TOKENS = torch.randint(1, 64, (2, 24), generator=torch.Generator().manual_seed(1))
# Float32 of two layers, with logits of 1 to 10 in modulus: the model's own rounding.
LOGITS = 2e-4
# Of q and k in a forward of two layers.
ROTATIONS = 4


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits  # type: ignore[no-any-return]  # a tensor


def counted(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows by one with each rotation of q or k by rope_xp, however small."""
    done: list[None] = []
    rotated = _functions._rotated

    def rotate(x: torch.Tensor, *given: Any) -> Any:
        if TOKENS.shape[-1] in x.shape:  # and not the few values by which functions are recognised
            done.append(None)
        return rotated(x, *given)

    monkeypatch.setattr(_functions, "_rotated", rotate)
    monkeypatch.setattr(_functions, "SMALL", 0)
    return done
