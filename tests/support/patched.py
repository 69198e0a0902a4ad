"""What the tests of patched models share: tokens, logits, refusals, and who rotates."""

import importlib

import pytest
import torch

import rope_xp
from rope_xp import MissingBackendError, RopeError

TOKENS = torch.randint(1, 64, (2, 24), generator=torch.Generator().manual_seed(1))
# Float32 of two layers, with logits of 1 to 10 in modulus: the model's own rounding.
LOGITS = 2e-4


def logits(model, tokens=TOKENS, **more):
    with torch.no_grad():
        return model(tokens, **more).logits


def gradients(model, *parts):
    model.zero_grad()
    model(TOKENS, use_cache=False).logits.square().mean().backward()
    weights = [w for name, w in model.named_parameters() if any(part in name for part in parts)]
    return [w.grad.clone() for w in weights if w.grad is not None]


def generate(model, **options):
    options = {"max_new_tokens": 8, "pad_token_id": 0, "disable_compile": True, **options}
    return model.generate(TOKENS, do_sample=False, **options)


def is_ours(compute, *arguments):
    """Return whether a computation on the CPU minds that rope_xp may run on GPUs alone."""
    try:
        with rope_xp.use_path("triton"):
            compute(*arguments)
    except (RopeError, MissingBackendError):
        return True
    return False


def refuse(change, model, message, **options):
    """Require that patch or unpatch raises an error, and changes nothing."""
    classes = [type(module) for module in model.modules()]
    keys = [set(vars(module)) for module in model.modules()]
    with pytest.raises(RopeError, match=message):
        change(model, **options)
    assert [type(module) for module in model.modules()] == classes
    assert [set(vars(module)) for module in model.modules()] == keys


def modeling(kind):
    return importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
