"""The contenders of the report on GPUs: wrong and absent rivals, and gradients."""

import sys
import types

import pytest
from support.exhaustive import exhaustive

from asv_benchmarks import gpu_measure, gpu_rivals
from rope_xp._bench import targets

torch = pytest.importorskip("torch")


def flash(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None):
    """Rotate halves in float32, with the signature of flash-attn."""
    cos, sin, (a, b) = cos[:, None].float(), sin[:, None].float(), x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


TARGET = targets.find("torch:cpu")


def install(monkeypatch, name, function):
    rival = gpu_rivals.RIVALS[name]
    parts = rival.module.split(".")
    for i in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:i]))
        package.__path__ = []
        monkeypatch.setitem(sys.modules, package.__name__, package)
    setattr(sys.modules[rival.module], rival.name, function)


@pytest.mark.parametrize("fault", ["other way", "other layout", "one array", "NaN"])
def test_what_rotates_differently_is_not_timed(fault, monkeypatch):
    def wrong(x, cos, sin):
        if fault == "NaN":
            return x * float("nan")
        if fault == "other layout":
            shuffled = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            return flash(shuffled, cos, sin)
        return flash(x, cos, sin if fault == "one array" and x.shape[2] == 32 else -sin)

    install(monkeypatch, gpu_rivals.FLASH, wrong)
    contenders, _ = gpu_rivals.contenders(TARGET, False)
    accepted, missing = gpu_measure.tried(TARGET, {gpu_rivals.FLASH: contenders[gpu_rivals.FLASH]})
    assert not accepted
    assert missing[gpu_rivals.FLASH].startswith("rotates differently: off by ")


def test_a_package_that_is_absent_says_what_to_carry(monkeypatch):
    for rival in gpu_rivals.RIVALS.values():
        monkeypatch.setitem(sys.modules, rival.module, None)
    contenders, missing = gpu_rivals.contenders(TARGET, False)
    assert not set(contenders) & set(gpu_rivals.RIVALS)
    for name, rival in gpu_rivals.RIVALS.items():
        assert missing[name].endswith(f"; carry {rival.carry}")
    assert missing[gpu_rivals.USUAL_COMPILED] == "left out by --no-compile"


@pytest.mark.parametrize("library", ["torch", exhaustive("jax")])
def test_gradients_are_those_of_the_rotation(library):
    """What is timed is what is meant: the gradient of a rotation turns back."""
    target = targets.find(f"{library}:cpu")
    arrays, positions = gpu_measure.inputs(target, gpu_measure.CHECKED)
    contenders, _ = gpu_rivals.contenders(target, False)
    for name, contender in contenders.items():
        if not contender.gradient:
            continue
        function = contender.make(positions, arrays)
        both = gpu_rivals.forward_and_backward(target, function, arrays, positions)
        *_, q, k = both()
        for gradient, x in zip((q, k), arrays, strict=True):
            expected = gpu_rivals.ROPE.unrotate(x, positions)
            a, b = (target.fetch(y).astype("float32") for y in (gradient, expected))
            # bfloat16 is rounded to, by others their tables and products too: 5 times 2**-8 of 4.5.
            assert abs(a - b).max() <= 5 * 2.0**-8 * 4.5, name
