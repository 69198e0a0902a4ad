"""What the tests of patched models share: tokens, logits, and a count of rotations by rope_xp."""

import importlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rope_xp._dispatch import call_cache
from rope_xp.integrations import _recognition, _replacements
from rope_xp.integrations._formats import Format

TOKENS = torch.randint(1, 64, (2, 24), generator=torch.Generator().manual_seed(1))
# Float32 of two layers, with logits of 1 to 10 in modulus: the model's own rounding.
LOGITS = 2e-4
# Of q and k in a forward of two layers.
ROTATIONS = 4


def logits(model: Any, tokens: torch.Tensor = TOKENS, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens, **more).logits  # type: ignore[no-any-return]  # a tensor


def replaced(kind: str, form: Format, name: str = "apply_rotary_pos_emb") -> tuple[Any, Any]:
    """Return a function of a kind of models, and what replaces it in one that is patched."""
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    function = getattr(module, name)
    return function, _replacements.build_replacement(name, function, None, [form])


def count_rotations(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows by one with each rotation of q or k by rope_xp."""
    rotations: list[None] = []
    rotate, run = _recognition.rotate, call_cache.run

    def count(xs: Sequence[torch.Tensor]) -> None:
        # Not the few values by which functions are recognised.
        rotations.extend(None for x in xs if TOKENS.shape[-1] in x.shape)

    def rotate_and_count(rotation: Any, xs: Sequence[torch.Tensor], *rest: Any) -> Any:
        count(xs)
        return rotate(rotation, xs, *rest)

    def run_and_count(key: Any, xs: Sequence[torch.Tensor], *rest: Any) -> Any:
        results = run(key, xs, *rest)
        count(xs)
        return results

    monkeypatch.setattr(_recognition, "rotate", rotate_and_count)
    counting = SimpleNamespace(**vars(call_cache) | {"run": run_and_count})
    monkeypatch.setattr(_replacements, "call_cache", counting)
    return rotations
