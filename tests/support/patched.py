"""What the tests of patched models share: tokens, logits, and a count of rotations by rope_xp."""

import importlib
from types import SimpleNamespace

import torch

from rope_xp._dispatch import call_cache
from rope_xp.integrations import _recognition, _replacements

TOKENS = torch.randint(1, 64, (2, 24), generator=torch.Generator().manual_seed(1))
# Float32 of two layers, with logits of 1 to 10 in modulus: the model's own rounding.
LOGITS = 2e-4
# Of q and k in a forward of two layers.
ROTATIONS = 4


def logits(model, tokens=TOKENS, **more):
    with torch.no_grad():
        return model(tokens, **more).logits


def replaced(kind, form, name="apply_rotary_pos_emb"):
    """Return a function of a kind of models, and what replaces it in one that is patched."""
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    function = getattr(module, name)
    return function, _replacements.build_replacement(name, function, None, [form])


def count_rotations(monkeypatch):
    """Return a list that grows by one with each rotation of q or k by rope_xp."""
    rotations = []
    rotate, run = _recognition.rotate, call_cache.run

    def count(xs):
        # Not the few values by which functions are recognised.
        rotations.extend(None for x in xs if TOKENS.shape[-1] in x.shape)

    def rotate_and_count(rotation, xs, *rest):
        count(xs)
        return rotate(rotation, xs, *rest)

    def run_and_count(signature, *rest):
        results = run(signature, *rest)
        count(signature.arrays)
        return results

    monkeypatch.setattr(_recognition, "rotate", rotate_and_count)
    counting = SimpleNamespace(**vars(call_cache) | {"run": run_and_count})
    monkeypatch.setattr(_replacements, "call_cache", counting)
    return rotations
