"""Kernels with the signatures of engines: right ones pass, and faults of engines are named.

Faults of a rotation alone are in test_planted.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support.cases import slow
from support.engine_kernels import interleaved, make, norm, sequence_positions, turn

from rope_xp import QKNorm, RoPE, RopeError, scaling
from rope_xp.testing import assert_rotates, conventions, identify

D = 32
HALF, PAIRS = RoPE(layout="half"), RoPE()
PART, PART_PAIRS = RoPE(layout="half", rotary_dim=16), RoPE(rotary_dim=16)
BASE = RoPE(layout="half", base=5e5)
LINEAR = RoPE(layout="half", scaling=scaling.Linear(4.0))
YARN = RoPE(layout="half", scaling=scaling.YaRN(4.0, 4096))
LLAMA3 = RoPE(layout="half", base=5e5, scaling=scaling.Llama3(8.0, 1.0, 4.0, 8192))
FACTOR = YARN.attention_factor
TO_HALF = RoPE(layout="interleaved_to_half")
LANES = RoPE(layout="half", position_axes=(0,) * 4 + (1,) * 6 + (2,) * 6)
TURNS = RoPE(layout="half", position_axes=(0, 1, 2) * 5 + (0,))
NORM = QKNorm(np.linspace(0.5, 2.0, D), np.linspace(2.0, 0.3, D))
GEMMA = QKNorm(NORM.q_weight, NORM.k_weight, offset=1.0)
RIGHT = make()


class Case(NamedTuple):
    """A kernel, its convention, the RoPE that is meant, and what the report says of it."""

    engine: str
    kernel: Callable[..., Any]
    rope: RoPE
    message: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012  # never written to
    positions: Any = None
    atol: float | None = None

    def run(self) -> None:
        function = getattr(conventions, self.engine)(self.kernel, self.rope, D, **self.options)
        more = {name: x for name, x in self.options.items() if name != "ragged"}
        assert_rotates(function, self.rope, D, positions=self.positions, atol=self.atol, **more)


FORMS = {
    "vllm": Case("vllm", RIGHT["vllm"], HALF),
    "vllm, partial neighbours": Case("vllm", RIGHT["vllm"], PART_PAIRS),
    "vllm, YaRN": Case("vllm", RIGHT["vllm"], YARN),
    "vllm, norm": Case("vllm", RIGHT["vllm_norm"], HALF, options={"norm": NORM}),
    "vllm, norm of Gemma": Case("vllm", RIGHT["vllm_norm"], PART, options={"norm": GEMMA}),
    "vllm, M-RoPE": Case("vllm", RIGHT["vllm_mrope"], LANES),
    "vllm, M-RoPE in turns": Case("vllm", RIGHT["vllm_mrope"], TURNS),
    "sglang": Case("sglang", RIGHT["sglang"], PART),
    "sglang, slots": Case("sglang", RIGHT["sglang_slots"], BASE, options={"slots": True}),
    "flashinfer, linear": Case("flashinfer", RIGHT["flashinfer"], LINEAR),
    "flashinfer, ragged": Case("flashinfer", RIGHT["flashinfer_ragged"], PAIRS,
                               options={"ragged": True}),
    "flash-attn": Case("flash_attn", RIGHT["flash_attn"], PART_PAIRS),
    "fla": Case("fla", RIGHT["fla"], BASE),
    "transformer-engine": Case("transformer_engine", RIGHT["transformer_engine"], LLAMA3),
    "huggingface, YaRN": Case("huggingface", RIGHT["huggingface"], YARN),
    "huggingface, neighbours": Case("huggingface", interleaved, PART_PAIRS),
    "huggingface, M-RoPE": Case("huggingface", RIGHT["huggingface"], TURNS),
    "liger": Case("liger", RIGHT["huggingface"], HALF),
    "liger, M-RoPE": Case("liger", RIGHT["liger_mrope"], LANES),
    "megatron, YaRN": Case("megatron", RIGHT["megatron"], YARN),
    "megatron, MLA": Case("megatron", RIGHT["megatron"], TO_HALF),
    "onnx": Case("onnx", RIGHT["onnx"], PART_PAIRS),
    "ggml, linear": Case("ggml", RIGHT["ggml"], LINEAR),
    "ggml, Llama 3": Case("ggml", RIGHT["ggml"], LLAMA3),
    "ggml, YaRN": Case("ggml", RIGHT["ggml"], YARN),
    "ggml, M-RoPE": Case("ggml", RIGHT["ggml"], LANES),
    "mlx": Case("mlx", RIGHT["mlx"], PART_PAIRS),
    "mlx, Llama 3": Case("mlx", RIGHT["mlx"], LLAMA3),
}  # fmt: skip


# One for each engine.
SHORT = ("vllm, norm", "vllm, M-RoPE", "sglang, slots", "flashinfer, ragged", "flash-attn", "fla")
SHORT += ("transformer-engine", "huggingface, YaRN", "liger, M-RoPE", "megatron, MLA", "onnx")
SHORT += ("ggml, M-RoPE", "mlx")


@pytest.mark.parametrize("name", [n if n in SHORT else slow(n) for n in FORMS])
def test_right_kernels_raise_no_alarm(name: str) -> None:
    case = FORMS[name]
    if case.engine == "mlx":
        pytest.importorskip("mlx.core")
    case.run()
    if not case.options:
        function = getattr(conventions, case.engine)(case.kernel, case.rope, D)
        assert identify(function, D, max_tokens=128).faults == ()


def swap_halves(x: Any, cos: Any, sin: Any, neox: bool) -> Any:
    y, n = turn(x, cos, sin, neox), cos.shape[-1]
    y[..., : 2 * n] = torch.cat([y[..., n : 2 * n], y[..., :n]], -1)
    return y


def from_zero(x: Any, cos: Any, sin: Any, *, seqlen_offsets: Any, **options: Any) -> Any:
    return RIGHT["flash_attn"](x, cos, sin, seqlen_offsets=0 * seqlen_offsets, **options)


def packed_as_one(x: Any, cos: Any, sin: Any, *, cu_seqlens: Any = None, **options: Any) -> Any:
    """Take packed sequences for one."""
    if cu_seqlens is None:
        return RIGHT["fla"](x, cos, sin, **options)
    options["seqlen_offsets"] = options["seqlen_offsets"][:1]
    return RIGHT["flash_attn"](x, cos, sin, **options)


def batch_as_one(indptr: Any, offsets: Any) -> Any:
    """Count positions through the batch."""
    return offsets[0] + torch.arange(int(indptr[-1])) + 0 * sequence_positions(indptr, offsets)


def ragged_as_one(q: Any, k: Any, indptr: Any, offsets: Any, *options: Any) -> Any:
    return RIGHT["flashinfer"](q, k, batch_as_one(indptr, offsets), *options)


def slots_after(q: Any, k: Any, v: Any, *caches: Any, **options: Any) -> None:
    *others, slots = caches
    RIGHT["sglang_slots"](q, k, v, *others, (slots + 1) % len(others[0]), **options)


def k_before(q: Any, k: Any, v: Any, *caches: Any, **options: Any) -> None:
    """Write k to the cache before it is rotated."""
    k_cache, _, table, positions, slots = caches
    k_cache[slots] = k.flatten(1)
    RIGHT["sglang"](q, k, table, positions, **options)


def in_float32(q: Any, k: Any, p: Any, r: int, interleave: bool, scale: float, base: float) -> Any:
    """Compute angles as float32 products."""
    w = (1.0 / base ** (torch.arange(0, r, 2).float() / r)) / scale
    angles = p.float()[:, None] * w
    return tuple(turn(x, angles.cos(), angles.sin(), not interleave) for x in (q, k))


def normed(change: Callable[..., Any]) -> Callable[..., Any]:
    """Return vLLM's kernel with another norm: change(x, weight, eps, rotate)."""
    return make(rms=change)["vllm_norm"]


def after(x: Any, weight: Any, eps: float, rotate: Any) -> Any:
    return norm(rotate(x), weight, eps, lambda y: y)


VLLM, NORMED = partial(Case, "vllm"), partial(Case, "vllm", options={"norm": NORM})
LANE = RIGHT["vllm_mrope"]
FAULTS = {
    "text position for images": VLLM(
        partial(LANE, lanes=lambda lane: 0 * lane), LANES, "it reads component 0 alone"),
    "height and width swapped": VLLM(
        partial(LANE, lanes=lambda lane: (3 - lane) % 3), LANES, "position_axes is (0, 0, 0, 0, 2"),
    "sections in blocks for turns": VLLM(
        partial(LANE, lanes=lambda lane: np.sort(lane)), TURNS, "position_axes is (0, 0, 0, 0, 0"),
    "attention factor on all components": VLLM(
        make(lambda x, c, s, neox: torch.cat(
            [turn(x, c, s, neox)[..., :16], FACTOR * x[..., 16:]], -1))["vllm"],
        RoPE(layout="half", rotary_dim=16, scaling=YARN.scaling),
        "components that do not turn are multiplied by 1.13863"),
    "halves swapped": VLLM(make(swap_halves)["vllm"], HALF,
                           "the two results are written to each other's place"),
    "offsets of sequences ignored": Case("flash_attn", from_zero, HALF,
                                         "its index in the call matters too"),
    "cu_seqlens ignored": Case("fla", packed_as_one, HALF,
                               "positions run on from sequence to sequence"),
    "positions that run through the batch": Case(
        "flashinfer", ragged_as_one, HALF, "positions run on from sequence to sequence",
        {"ragged": True}),
    "float32 product at a million": Case(
        "flashinfer", in_float32, HALF, "as with angles that are products in float32",
        positions=(0, 1, 5, 1_000_003), atol=1e-3),
    "norm after the rotation": NORMED(normed(after), HALF, "q is normalised after the rotation"),
    "offset of the norm missing": Case(
        "vllm", normed(lambda x, w, eps, rotate: norm(x, w - 1.0, eps, rotate)), HALF,
        "the offset 1 of the weights of the norm of q is missing", {"norm": GEMMA}),
    "eps of the norm": NORMED(
        normed(lambda x, w, eps, rotate: norm(x, w, 1e-5, rotate)), HALF,
        "eps of the norm of q is 1e-05, and not 1e-06"),
    "mean subtracted": NORMED(
        normed(lambda x, w, eps, rotate: norm(x - x.mean(-1, keepdim=True), w, eps, rotate)), HALF,
        "the mean of q is subtracted, as in LayerNorm"),
    "not normalised": NORMED(normed(lambda x, w, eps, rotate: rotate(x)), HALF,
                             "q is not normalised"),
    "slots off by one": Case("sglang", slots_after, HALF, "slots are off by +1", {"slots": True}),
    "k in the cache before its rotation": Case("sglang", k_before, HALF, "k is not turned",
                                               {"slots": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_named(name: str) -> None:
    case = FAULTS[name]
    with pytest.raises(AssertionError) as raised:
        case.run()
    assert case.message in str(raised.value)
    assert "the cause is unknown" not in str(raised.value)


@pytest.mark.parametrize(
    ("engine", "rope", "message"),
    [
        ("vllm", TO_HALF, "layout must be interleaved or half there; got 'interleaved_to_half'"),
        ("fla", RoPE(rotary_dim=16, rotary_offset=-16), "rotary_offset must be 0 there; got 16"),
        ("onnx", LANES, "position_axes must be None there"),
        ("transformer_engine", YARN, "attention_factor must be 1 there; got 1.138"),
        ("flashinfer", RoPE(scaling=scaling.NTK(2.0)), "scaling must be None, Linear or Llama3"),
    ],
)
def test_a_rope_that_an_engine_has_not_is_rejected(engine: str, rope: RoPE, message: str) -> None:
    with pytest.raises(RopeError, match=message):
        getattr(conventions, engine)(RIGHT[engine], rope, D)
