"""Measure errors: of angles, of scores, of keys that are moved, and of other packages."""

from __future__ import annotations

from functools import lru_cache, partial

import accuracy_table
import mpmath
import numpy as np
import package_errors
from accuracy_table import BASE, COUNT, HEAD_DIM
from measured_group import Group, Rows

import rope_xp
from rope_xp._bench.inputs import numpy_dtype

MOVES = {5000: 1, 1_000_000: -1, 300_000: 64}
"""Position of the first key, and how far each move takes it."""


def scores() -> Rows:
    """Return errors of attention scores."""
    import score_errors  # and with it torch and jax, which no timed process is to hold

    return score_errors.score_rows()


def drift() -> Rows:
    """Return differences of cos and sin between engines."""
    import score_errors

    return score_errors.drift_rows()


def moves() -> Rows:
    """Return the error of cached keys that were moved, by the largest key."""
    rows = {}
    for dtype in ("float32", "bfloat16"):
        for where, slots in (("slots", True), ("whole", False)):
            rows[f"{dtype}, {where}"] = {
                str(count): max(move(dtype, *at, count, slots=slots) for at in MOVES.items())
                for count in (1, 1000)
            }
    return rows


def move(dtype: str, start: int, step: int, count: int, *, slots: bool) -> float:
    """Return the error after some moves, compared with one rotation of the original keys."""
    rope, positions = rope_xp.RoPE(layout="half"), start + np.arange(32)
    raw = np.random.default_rng(0).standard_normal((32, 2, HEAD_DIM)).astype(numpy_dtype(dtype))
    keys = rope.rotate(raw, positions)
    options = {"slots": np.arange(32), "out": keys} if slots else {}
    for _ in range(count):
        keys = rope.rerotate(keys, positions, positions + step, **options)
        positions = positions + step
    expected = rope.rotate(raw.astype(np.float64), positions)
    return float(np.abs(keys.astype(np.float64) - expected).max() / np.abs(expected).max())


@lru_cache
def _learned() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return frequencies and positions near a million, and exact cos + i sin of their angles."""
    frequencies = (BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).astype(np.float32)
    positions = np.arange(10**6 - COUNT, 10**6)
    with mpmath.workdps(40):
        exact = [
            [mpmath.expj(int(p) * mpmath.mpf(float(f))) for f in frequencies] for p in positions
        ]
    return frequencies, positions, np.array(exact, dtype=np.complex128)


def frequencies() -> Rows:
    """Return the error of cos and sin of a float32 parameter, at a million."""
    given, positions, exact = _learned()

    def error(cos: np.ndarray, sin: np.ndarray) -> dict[str, float]:
        return {"error": max(np.abs(cos - exact.real).max(), np.abs(sin - exact.imag).max())}

    product = positions.astype(np.float32)[:, None] * given
    rows = {"product": error(np.cos(product), np.sin(product))}
    for dtype in ("float32", "float64"):
        x = np.tile(np.array([1.0, 0.0], dtype), (1, COUNT, 1, HEAD_DIM // 2))
        y, _ = rope_xp.apply_frequencies(x, x, positions, given.astype(dtype), layout="interleaved")
        rows[dtype] = error(y[0, :, 0, ::2], y[0, :, 0, 1::2])
    return rows


def edges() -> Rows:
    """Return errors of cos and sin: float64 below 2**31, float32 of positions with fractions."""
    rope = rope_xp.RoPE(base=BASE)
    wide = rope.cos_sin(np.arange(2**31 - COUNT, 2**31), HEAD_DIM, dtype=np.float64)
    fractions = np.concatenate([2**20 - 8 + np.arange(8.0) + 1.0 / (1 << n) for n in range(3, 11)])
    with mpmath.workdps(40):
        exponents = [mpmath.mpf(-i) / HEAD_DIM for i in range(0, HEAD_DIM, 2)]
        frequencies = [mpmath.mpf(BASE) ** e for e in exponents]
        exact = np.array(
            [
                [complex(mpmath.expj(mpmath.mpf(float(p)) * f)) for f in frequencies]
                for p in fractions
            ]
        )
    found = rope.cos_sin(fractions, HEAD_DIM, dtype=np.float32)
    errors = (np.abs(found[0] - exact.real).max(), np.abs(found[1] - exact.imag).max())
    return {
        "float64, 2**31": {"error": accuracy_table.find_largest_error(wide, 2**31)},
        "fractions, 2**20": {"error": max(map(float, errors))},
    }


def patched() -> Rows:
    """Return the error of a small Llama's logits near a million, compared with float64."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rope_xp.integrations.transformers import patch

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2**20,
        initializer_range=0.2,
        attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    tokens, positions = torch.arange(24)[None], 1_000_000 + torch.arange(24)[None]

    def logits() -> np.ndarray:
        with torch.no_grad():
            return model(tokens, position_ids=positions).logits.double().numpy()

    before = logits()
    patch(model)
    after = logits()
    model.double()
    exact = logits()
    return {
        name: {"error": float(np.abs(found - exact).max())}
        for name, found in (("unpatched", before), ("patched", after))
    }


_largest = partial(Group, "", statistic="the largest", is_alone=False)
GROUPS: dict[str, Group] = {
    "accuracy": _largest(accuracy_table.rows),
    "packages": _largest(package_errors.rows, keeps_absent=True),
    "scores": Group("", scores, "root mean square", is_alone=False),
    "drift": _largest(drift),
    "moves": _largest(moves),
    "frequencies": _largest(frequencies),
    "edges": _largest(edges),
    "patched": _largest(patched),
}
