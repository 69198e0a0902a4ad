"""What the report on GPUs hands to other people's functions, by what these say that they take.

The stand-ins have the signatures and the demands of the packages, read in liger-kernel 0.8.5,
flash-attn at 0251105a and csrc/rotary of 2.8.2, quack-kernels 0.6.5, flashinfer-python 0.5.3 and
0.7.2. They rotate in float32, by code that shares nothing with the adapters.
"""

import sys
import types

import pytest
from support.exhaustive import exhaustive

from asv_benchmarks import gpu_measure, gpu_rivals
from rope_xp._bench import targets

torch = pytest.importorskip("torch")


def turned(x, cos, sin, conjugate=False):
    """Rotate halves by tables of half as many components, which broadcast against x."""
    half = cos.shape[-1]
    cos, sin = cos.float(), sin.float() * (-1 if conjugate else 1)
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def liger(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    assert cos.shape == sin.shape == (q.shape[0], q.shape[2], q.shape[3])
    half = q.shape[-1] // 2
    for x in (q, k):
        assert x.transpose(1, 2).is_contiguous()  # else it would rotate a copy
        x.copy_(turned(x, cos[:, None, :, :half], sin[:, None, :, :half]))
    return q, k


def each(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None):
    assert x.ndim == 4
    assert cos.shape == sin.shape == (x.shape[1], x.shape[3] // 2)
    assert cos.dtype == sin.dtype == x.dtype
    assert cos.is_contiguous()
    assert not interleaved
    return turned(x, cos[:, None], sin[:, None])


def flashinfer(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    assert cos_sin_cache.dtype == torch.float32
    assert positions.dtype in (torch.int32, torch.int64)
    assert is_neox
    cos, sin = cos_sin_cache[positions.long(), None].chunk(2, dim=-1)
    assert positions.shape == query.shape[:1] == key.shape[:1]
    views = (x.view(x.shape[0], -1, head_size) for x in (query, key))
    return tuple(turned(x, cos, sin).flatten(1) for x in views)


def rotary_emb(x1, x2, cos, sin, out1, out2, conj):
    assert x1.shape == x2.shape == out1.shape == out2.shape
    assert cos.shape == sin.shape == (x1.shape[1], 1, x1.shape[3])
    whole = turned(torch.cat([x1, x2], dim=-1), cos, sin, conj)
    half = x1.shape[-1]
    out1.copy_(whole[..., :half])
    out2.copy_(whole[..., half:])


STAND_INS = {
    gpu_rivals.LIGER: liger,
    gpu_rivals.FLASH: each,
    gpu_rivals.QUACK: each,
    gpu_rivals.FLASHINFER: flashinfer,
    gpu_rivals.ROTARY_EMB: rotary_emb,
}
TARGET = targets.find("torch:cpu")


def install(monkeypatch, name, function):
    rival = gpu_rivals.RIVALS[name]
    parts = rival.module.split(".")
    for i in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:i]))
        package.__path__ = []
        monkeypatch.setitem(sys.modules, package.__name__, package)
    setattr(sys.modules[rival.module], rival.name, function)


@pytest.mark.parametrize("name", STAND_INS)
def test_a_rival_is_given_what_it_takes(name, monkeypatch):
    install(monkeypatch, name, STAND_INS[name])
    contender = gpu_rivals.contenders(TARGET, False)[0][name]
    accepted, missing = gpu_measure.tried(TARGET, {name: contender})
    assert list(accepted) == [name], missing
    arrays, positions = gpu_measure.inputs(TARGET, gpu_measure.CHECKED)
    copies = tuple(map(torch.clone, arrays))
    results = contender.make(positions, copies)(copies, positions)
    written_over = [a.data_ptr() == b.data_ptr() for a, b in zip(copies, results, strict=True)]
    assert written_over == [contender.in_place] * 2


@pytest.mark.parametrize("fault", ["other way", "other layout", "one array", "NaN"])
def test_what_rotates_differently_is_not_timed(fault, monkeypatch):
    def wrong(x, cos, sin):
        if fault == "NaN":
            return x * float("nan")
        if fault == "other layout":
            shuffled = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            return each(shuffled, cos, sin)
        return each(x, cos, sin if fault == "one array" and x.shape[2] == 32 else -sin)

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
