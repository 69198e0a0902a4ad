"""What is measured on GPUs: wrong rivals are left out, gradients turn back, constants exist."""

import sys
import types

import pytest
from support.cases import slow

from asv_benchmarks.gpu import measure, tune
from asv_benchmarks.shared import contenders, rival_calls
from rope_xp._bench import targets

torch = pytest.importorskip("torch")


def flash(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None):
    """Rotate halves in float32, with the signature of flash-attn."""
    cos, sin, (a, b) = cos[:, None].float(), sin[:, None].float(), x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


TARGET = targets.find("torch:cpu")


@pytest.mark.parametrize("fault", ["other way", "other layout", "one array", "NaN"])
def test_what_rotates_differently_is_not_timed(fault, monkeypatch):
    def wrong(x, cos, sin):
        if fault == "NaN":
            return x * float("nan")
        if fault == "other layout":
            shuffled = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            return flash(shuffled, cos, sin)
        return flash(x, cos, sin if fault == "one array" and x.shape[2] == 32 else -sin)

    for name in ("flash_attn", "flash_attn.layers", "flash_attn.layers.rotary"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        vars(sys.modules[name]).update(__path__=[], apply_rotary_emb=wrong)
    made = {"flash_attn": rival_calls.RIVALS["flash_attn"]}
    accepted, missing = measure.tried(TARGET, made)
    assert not accepted
    assert missing["flash_attn"].startswith("rotates differently: off by ")


@pytest.mark.parametrize("library", ["torch", slow("jax")])
def test_gradients_are_those_of_the_rotation(library):
    """What is timed is what is meant: the gradient of a rotation turns back."""
    target = targets.find(f"{library}:cpu")
    at = measure.Case(2, 16).put(target)
    made, _ = measure.tried(target, measure.contenders_of(target, compile_too=False))
    for name, contender in made.items():
        if not contender.gradient:
            continue
        both = contenders.forward_and_backward(target, contender.make(at), at.arrays, at.positions)
        *_, q, k = both()
        for gradient, x in zip((q, k), at.arrays, strict=True):
            expected = measure.ROPE.unrotate(x, at.positions)
            a, b = (target.fetch(y).astype("float32") for y in (gradient, expected))
            # bfloat16 is rounded to, by others their tables and products too: 5 times 2**-8 of 4.5.
            assert abs(a - b).max() <= 5 * 2.0**-8 * 4.5, name


@pytest.mark.parametrize("library", tune.MODULES)
def test_the_constants_that_are_tried_are_there(library):
    if library == "torch":
        pytest.importorskip("triton")
    named = {*tune.SWEEPS[library], *(name for each in tune.ALONE[library] for name in each)}
    assert [name for name in named if not tune.modules(library, name)] == []


def test_one_combination_of_constants_is_timed():
    contenders = {speed["contender"] for speed in tune.one("torch", "cpu", {}, 1)["speed"]}
    assert contenders == {"copy", "flat copy", measure.US, measure.IN_PLACE}
