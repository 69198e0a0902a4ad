"""conventions: right kernels with the signatures of engines pass, and faults of engines are named.

Faults of a rotation alone are in test_planted.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support.cases import slow
from support.engine_kernels import make, norm, spread, turn

from rope_xp import QKNorm, RoPE, RopeError, scaling
from rope_xp.testing import assert_rotates, conventions, identify

D = 32
HALF, PART_PAIRS = RoPE(layout="half"), RoPE(rotary_dim=16)
BASE = RoPE(layout="half", base=5e5)
LINEAR = RoPE(layout="half", scaling=scaling.Linear(4.0))
YARN = RoPE(layout="half", scaling=scaling.YaRN(4.0, 4096))
LLAMA3 = RoPE(layout="half", base=5e5, scaling=scaling.Llama3(8.0, 1.0, 4.0, 8192))
TO_HALF = RoPE(layout="interleaved_to_half")
LANES = RoPE(layout="half", position_axes=(0,) * 4 + (1,) * 6 + (2,) * 6)
TURNS = RoPE(layout="half", position_axes=(0, 1, 2) * 5 + (0,))
NORM = QKNorm(np.linspace(0.5, 2.0, D), np.linspace(2.0, 0.3, D))
GEMMA = QKNorm(NORM.q_weight, NORM.k_weight, offset=1.0)
RIGHT = make()


@dataclass(frozen=True)
class Case:
    """A kernel of a convention, by default the right one, and the RoPE that is meant."""

    convention: str
    rope: RoPE
    kernel: Any = ""
    options: dict[str, Any] = field(default_factory=dict)
    positions: Any = None
    atol: float | None = None

    def adapt(self) -> Callable[..., Any]:
        kernel = self.kernel or self.convention
        kernel = RIGHT[kernel] if isinstance(kernel, str) else kernel
        return getattr(conventions, self.convention)(kernel, self.rope, D, **self.options)

    def run(self) -> None:
        more = {name: x for name, x in self.options.items() if name != "ragged"}
        assert_rotates(self.adapt(), self.rope, D, positions=self.positions, atol=self.atol, **more)


def turn_both(q, k, angles, interleave):
    tables = angles.cos().float(), angles.sin().float()
    return tuple(turn(x, *tables, not interleave) for x in (q, k))


def rotate_by_llama3(q, k, p, r, interleave, factor, base, *rule):
    w = RoPE(base=base, scaling=scaling.Llama3(factor, *rule)).frequencies(r)
    return turn_both(q, k, p[:, None] * torch.tensor(w), interleave)


FORMS = [
    slow(Case("vllm", PART_PAIRS)),
    slow(Case("vllm", YARN)),
    Case("vllm", HALF, "vllm_norm", {"norm": NORM}),
    slow(Case("vllm", RoPE(layout="half", rotary_dim=16), "vllm_norm", {"norm": GEMMA})),
    Case("vllm", LANES, "vllm_mrope"),
    slow(Case("vllm", TURNS, "vllm_mrope")),
    slow(Case("sglang", PART_PAIRS)),
    Case("sglang", BASE, "sglang_slots", {"slots": True}),
    slow(Case("flashinfer", LINEAR)),
    Case("flashinfer", LLAMA3, rotate_by_llama3),
    Case("flashinfer", RoPE(), "flashinfer_ragged", {"ragged": True}),
    Case("flash_attn", PART_PAIRS),
    Case("fla", BASE),
    Case("transformer_engine", LLAMA3),
    Case("huggingface", YARN),
    slow(Case("huggingface", PART_PAIRS, partial(RIGHT["huggingface"], neox=False))),
    slow(Case("huggingface", TURNS)),
    slow(Case("liger", HALF, "huggingface")),
    Case("liger", LANES, "liger_mrope"),
    slow(Case("megatron", YARN)),
    Case("megatron", TO_HALF),
    Case("onnx", PART_PAIRS),
    slow(Case("ggml", LINEAR)),
    slow(Case("ggml", LLAMA3)),
    slow(Case("ggml", YARN)),
    Case("ggml", LANES),
    slow(Case("ggml", TURNS)),
    Case("mlx", PART_PAIRS),
    slow(Case("mlx", LLAMA3)),
]


def turn_back(x, cos, sin, neox):
    return turn(x, cos, -sin, neox)


WRONG = make(turn_back)


@pytest.mark.parametrize("case", FORMS, ids=lambda case: case.convention)
def test_conventions_pass_right_kernels_and_name_what_is_wrong_with_others(case):
    if case.convention == "mlx":
        pytest.importorskip("mlx.core")
    case.run()
    if not case.options:
        components = 3 if case.rope.position_axes else None
        assert identify(case.adapt(), D, components=components, max_tokens=128).faults == ()
    if isinstance(case.kernel, str):
        with pytest.raises(AssertionError, match="turns by the negative angle"):
            replace(case, kernel=WRONG[case.kernel or case.convention]).run()


def swap_halves(x, cos, sin, neox):
    y, n = turn(x, cos, sin, neox), cos.shape[-1]
    y[..., : 2 * n] = torch.cat([y[..., n : 2 * n], y[..., :n]], -1)
    return y


def scale_all(x, cos, sin, neox):
    return torch.cat([turn(x, cos, sin, neox)[..., :16], YARN.attention_factor * x[..., 16:]], -1)


def start_at_zero(x, cos, sin, *, seqlen_offsets, **options):
    return RIGHT["flash_attn"](x, cos, sin, seqlen_offsets=0 * seqlen_offsets, **options)


def take_packed_for_one(x, *tables, cu_seqlens=None, **options):
    if cu_seqlens is not None:
        options["seqlen_offsets"] = options["seqlen_offsets"][:1]
    return RIGHT["fla"](x, *tables, **options)


def count_through_the_batch(q, k, indptr, offsets, *options):
    return RIGHT["flashinfer"](q, k, offsets[0] + torch.arange(int(indptr[-1])), *options)


def write_slots_after(q, k, v, *caches, **options):
    *others, slots = caches
    RIGHT["sglang_slots"](q, k, v, *others, (slots + 1) % len(others[0]), **options)


def write_k_before(q, k, v, *caches, **options):
    k_cache, _, table, positions, slots = caches
    k_cache[slots] = k.flatten(1)
    RIGHT["sglang"](q, k, table, positions, **options)


def multiply_in_float32(q, k, p, r, interleave, *rule):
    w = (1.0 / rule[1] ** (torch.arange(0, r, 2).float() / r)) / rule[0]
    return turn_both(q, k, p.float()[:, None] * w, interleave)


def mrope(lanes, rope):
    return Case("vllm", rope, make(lanes=lambda *given: lanes(spread(*given)))["vllm_mrope"])


NORMS = {
    "q is not normalised": lambda x, w, eps, turn: turn(x),
    "q is normalised after the rotation": lambda x, w, eps, turn: norm(turn(x), w, eps),
    "weights of the norm of q are missing": lambda x, w, eps, turn: turn(norm(x, 1.0, eps)),
    "the offset 1 of the weights of the norm": lambda x, w, eps, turn: turn(norm(x, w - 1, eps)),
    "1 is added to the weights of the norm of q": lambda x, w, eps, turn: turn(norm(x, w + 1, eps)),
    "the mean of q is subtracted, as in LayerNorm": lambda x, w, eps, turn: turn(
        norm(x - x.mean(-1, keepdim=True), w, eps)
    ),
    "q is normalised over all heads together": lambda x, w, eps, turn: turn(
        norm(x.flatten(1), w.repeat(x.shape[1]), eps).view_as(x)
    ),
    "eps of the norm of q is 1e-05, and not 1e-06": lambda x, w, _, turn: turn(norm(x, w, 1e-5)),
}
FAULTS = {
    "of 3 components of a position it reads component 0 alone": mrope(lambda lane: 0 * lane, LANES),
    "position_axes is (0, 0, 0, 0, 2": mrope(lambda lane: (3 - lane) % 3, LANES),
    "position_axes is (0, 0, 0, 0, 0": mrope(np.sort, TURNS),
    "components that do not turn are multiplied by 1.13863": Case(
        "vllm", RoPE(layout="half", rotary_dim=16, scaling=YARN.scaling), make(scale_all)["vllm"]
    ),
    "the two results are written to each other's place": Case(
        "vllm", HALF, make(swap_halves)["vllm"]
    ),
    "its index in the call matters too": Case("flash_attn", HALF, start_at_zero),
    "where positions run on from sequence to sequence": Case("fla", HALF, take_packed_for_one),
    "as where positions run on from sequence to sequence": Case(
        "flashinfer", HALF, count_through_the_batch, {"ragged": True}
    ),
    "as with angles that are products in float32": Case(
        "flashinfer", HALF, multiply_in_float32, positions=(0, 1, 5, 1_000_003), atol=1e-3
    ),
    "slots are off by +1": Case("sglang", HALF, write_slots_after, {"slots": True}),
    "k is not turned": Case("sglang", HALF, write_k_before, {"slots": True}),
} | {
    message: Case("vllm", HALF, make(rms=rms)["vllm_norm"], {"norm": GEMMA})
    for message, rms in NORMS.items()
}


@pytest.mark.parametrize("message", FAULTS)
def test_assert_rotates_names_faults_of_engines(message):
    with pytest.raises(AssertionError) as raised:
        FAULTS[message].run()
    assert message in str(raised.value)
    assert "the cause is unknown" not in str(raised.value)


@pytest.mark.parametrize(
    "convention", ["vllm", "sglang", "flash_attn", "fla", "transformer_engine", "onnx"]
)
@pytest.mark.parametrize(("positions", "limit"), [(None, 131_072), slow(range(2048), 2048)])
def test_conventions_call_no_kernel_beyond_its_table(convention, positions, limit):
    read = []
    kernels = make(turn_back, watch=lambda p: read.extend((int(p.min()), int(p.max()))))
    case = Case(convention, BASE, kernels[convention], positions=positions)
    with pytest.raises(AssertionError, match="turns by the negative angle") as raised:
        case.run()
    assert "positions from" not in str(raised.value)
    if positions is None:
        assert set(identify(case.adapt(), D).error) == {128, 4096, 131_072}
        with pytest.raises(AssertionError, match="called with positions below 131072 alone"):
            replace(case, positions=(0, 131_072)).run()
    assert 0 <= min(read) <= max(read) == limit - 1


@pytest.mark.parametrize(
    ("convention", "rope", "message"),
    [
        ("vllm", TO_HALF, "layout must be interleaved or half there; got 'interleaved_to_half'"),
        ("fla", RoPE(rotary_dim=16, rotary_offset=-16), "rotary_offset must be 0 there; got 16"),
        ("onnx", LANES, "position_axes must be None there"),
        ("transformer_engine", YARN, "attention_factor must be 1 there; got 1.138"),
        ("flashinfer", RoPE(scaling=scaling.NTK(2.0)), "scaling must be None, Linear or Llama3"),
    ],
)
def test_conventions_refuse_a_rope_that_an_engine_has_not(convention, rope, message):
    with pytest.raises(RopeError, match=message):
        getattr(conventions, convention)(RIGHT[convention], rope, D)
