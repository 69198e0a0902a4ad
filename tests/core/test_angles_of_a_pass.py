"""Angles made once for all layers: the numbers of RoPE.apply, rotate and unrotate, everywhere."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from support.equality import LAYOUTS, POSITIONS, sample
from support.targets import FUSED, Target, truth

import rope_xp
from rope_xp import Angles, RoPE, RopeError
from rope_xp.scaling import YaRN

YARN = YaRN(4.0, 4096)
ROPES = {
    "interleaved": RoPE(),
    "half": RoPE(layout="half", base=5e5),
    "interleaved_to_half": RoPE(layout="interleaved_to_half"),
    "slice": RoPE(layout="half", rotary_dim=6, rotary_offset=-8),
    "factor": RoPE(layout="half", scaling=YARN),
    "factor and layouts": RoPE(layout="interleaved_to_half", scaling=YARN),
}


def alike(backend: Target, result: Any, expected: np.ndarray, x: np.ndarray) -> None:
    """Check the bits of one result; where products fuse, by steps of a head's largest number."""
    got = backend.back(result)
    assert got.dtype == x.dtype
    if backend.ulps == 0 and not backend.truncates:
        np.testing.assert_array_equal(got, expected)
        return
    wide = [y.astype(np.float64) for y in (got, expected, x)]
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(x.dtype.name, 2.0**-23)
    largest = np.abs(wide[2]).max(axis=-1, keepdims=True)
    assert (np.abs(wide[0] - wide[1]) <= FUSED * eps * largest).all()


def check(
    backend: Target, rope: RoPE, q: np.ndarray, k: np.ndarray, p: Any, **options: Any
) -> None:
    """Compare two layers and what undoes one with the methods of the rope."""

    def by_angles(q: Any, k: Any) -> Any:
        angles = rope.at(p, like=q)
        again = angles.rotate(q, **options), angles.unrotate(k, **options)
        return *angles.apply(q, k, **options), *again

    rotated = truth(rope.apply, q, k, p, **options)
    back = truth(rope.unrotate, k, p, **options)
    got = backend.run(by_angles, backend.make(q), backend.make(k))
    for g, e, x in zip(got, (*rotated, rotated[0], back), (q, k) * 2, strict=True):
        alike(backend, g, e, x)


@pytest.mark.covering
@pytest.mark.parametrize("name", ROPES)
def test_the_numbers_of_the_rope(backend: Target, name: str, rng: np.random.Generator) -> None:
    q, k = sample(rng, (2, 9, 4, 16), "float32"), sample(rng, (2, 9, 2, 16), "float32")
    check(backend, ROPES[name], q, k, POSITIONS)


@pytest.mark.covering
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dtypes(backend: Target, layout: str, rng: np.random.Generator) -> None:
    rope = RoPE(layout=layout, scaling=YARN)
    for dtype in backend.floats[1:3] if backend.compiles else backend.floats:
        q, k = sample(rng, (9, 4, 16), dtype), sample(rng, (9, 1, 16), dtype)
        check(backend, rope, q, k, POSITIONS)


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["batched", "one a sequence", "fractions", "token", "components"])
def test_positions(backend: Target, kind: str, rng: np.random.Generator) -> None:
    rope, tokens = RoPE(layout="half"), 9
    positions: Any = rng.integers(0, 1 << 20, (2, 9))
    if kind == "one a sequence":
        positions = positions[:, :1]
    elif kind == "fractions":
        positions = positions + 0.25
    elif kind == "token":
        positions, tokens = 70_000, 1
    elif kind == "components":
        rope = RoPE(layout="half", position_axes=(0, 1, 0, 1))
        positions = rng.integers(0, 1 << 20, (2, 2, 9))
    q, k = (sample(rng, (2, h, tokens, 8), "float32") for h in (3, 1))
    check(backend, rope, q, k, positions, axes="bhsd")


def test_positions_of_the_library(backend: Target, rng: np.random.Generator) -> None:
    x = sample(rng, (9, 2, 8), "float32")
    got = backend.run(
        lambda x, p: RoPE().at(p, like=x).rotate(x), backend.make(x), backend.make(POSITIONS)
    )
    alike(backend, got, truth(RoPE().rotate, x, POSITIONS), x)


def test_angles_that_are_handed_on(backend: Target, rng: np.random.Generator) -> None:
    """Made in one function, used in another: each may be compiled by itself."""
    rope = RoPE(layout="half", scaling=YARN)
    x = sample(rng, (9, 2, 8), "float32")
    made = backend.make(x)
    angles = backend.run(lambda x: rope.at(POSITIONS, like=x), made)
    assert isinstance(angles, Angles)
    assert angles.rope == rope
    got = backend.run(lambda angles, x: (angles.rotate(x), angles.unrotate(x)), angles, made)
    for g, turn in zip(got, (rope.rotate, rope.unrotate), strict=True):
        alike(backend, g, truth(turn, x, POSITIONS), x)


def test_tables_of_the_caller(backend: Target, rng: np.random.Generator) -> None:
    rope = RoPE(layout="interleaved_to_half", rotary_dim=6, rotary_offset=1)
    q, k = sample(rng, (9, 3, 8), "float32"), sample(rng, (9, 1, 8), "float32")
    cos, sin = RoPE().cos_sin(POSITIONS, 6)
    options: dict[str, Any] = {"layout": rope.layout, "rotary_offset": 1}
    expected = [truth(rope_xp.apply_tables, x, cos, sin, **options) for x in (q, k)]
    expected += [truth(rope_xp.apply_tables, q, cos, sin, inverse=True, **options)]

    def turned(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        angles = rope.with_tables(cos, sin)
        return *angles.apply(q, k), angles.unrotate(q)

    made = [backend.make(x) for x in (q, k, cos, sin)]
    for got in (backend.run(turned, *made), turned(*made[:2], cos, sin)):  # numpy's, in the second
        for g, e, x in zip(got, expected, (q, k, q), strict=True):
            alike(backend, g, e, x)


def test_widths_that_differ(backend: Target, rng: np.random.Generator) -> None:
    """Angles are as wide as what they are made like; each array is computed in its own width."""
    if "float64" not in backend.floats:
        pytest.skip("it has no float64")
    q, k = sample(rng, (9, 2, 8), "float64"), sample(rng, (9, 2, 8), "float32")
    made = [backend.make(x) for x in (q, k)]
    cos, sin = RoPE().cos_sin(POSITIONS, 8, dtype=np.float64)
    for x in made:
        assert RoPE().at(POSITIONS, like=x).cos.dtype == x.dtype
    for arrays in ((0, 1), (1, 0)):
        got = backend.run(
            lambda q, k, x: RoPE().at(POSITIONS, like=x).apply(q, k),
            *(made[i] for i in arrays),
            made[0],
        )
        for g, i in zip(got, arrays, strict=True):
            x = (q, k)[i]
            alike(backend, g, truth(rope_xp.apply_tables, x, cos, sin), x)


def test_results_in_given_arrays() -> None:
    q, k = np.ones((9, 4, 8), np.float32), np.ones((9, 2, 8), np.float32)
    angles = RoPE().at(POSITIONS, like=q)
    expected = RoPE().apply(q, k, POSITIONS)
    got_q, got_k = angles.apply(q, k, out=(q, k))
    assert got_q is q
    assert got_k is k
    for x, e in zip((q, k), expected, strict=True):
        np.testing.assert_array_equal(x, e)
    assert angles.rotate(q, out=q) is q
    assert angles.unrotate(q, out=q) is q
    np.testing.assert_allclose(q, expected[0], rtol=0, atol=1e-6)
    memory = np.zeros((9, 1, 8), np.float32)
    given = RoPE().with_tables(memory[:, 0, :4], angles.sin)
    with pytest.raises(RopeError, match="out overlaps cos without being x"):
        given.rotate(np.ones_like(memory), out=memory)


def test_what_does_not_fit() -> None:
    q, k = np.ones((9, 4, 8), np.float32), np.ones((9, 2, 8), np.float32)
    rope = RoPE()
    angles = rope.at(POSITIONS, like=q)
    with pytest.raises(RopeError, match=r"cos has 4 columns.* rotates 16 components, 8 pairs"):
        angles.rotate(np.ones((9, 4, 16)))
    with pytest.raises(RopeError, match=r"cos\[..., 0\] has shape \(9,\); it must broadcast"):
        angles.apply(q[:5], k[:5])
    with pytest.raises(RopeError, match=r"cos has one row, of one token, for 9 tokens; make"):
        rope.at(70_000, like=q).apply(q, k)
    with pytest.raises(TypeError, match="k is"):
        angles.apply(q, k.astype(int))
    with pytest.raises(RopeError, match="differ in tokens"):
        angles.apply(q, k[:3])
    with pytest.raises(TypeError, match="like is a numpy array.*int64"):
        rope.at(POSITIONS, like=np.ones(8, int))
    with pytest.raises(TypeError, match="like"):
        rope.at(POSITIONS, like=[1.0, 2.0])
    with pytest.raises(RopeError, match="like is a single number; give an array such as q"):
        rope.at(POSITIONS, like=np.float32(3))
    with pytest.raises(RopeError, match="does not lie within head_dim=8"):
        RoPE(rotary_dim=16).at(POSITIONS, like=q)
    with pytest.raises(TypeError, match="positions must hold integers"):
        rope.at(None, like=q)
    with pytest.raises(RopeError, match="must be equal"):
        rope.with_tables(angles.cos, angles.sin[:3])
    with pytest.raises(RopeError, match="two axes at least"):
        rope.with_tables(angles.cos[0], angles.sin[0])
    with pytest.raises(RopeError, match=r"by a RoPE with rotary_dim=8"):
        RoPE(rotary_dim=4).with_tables(angles.cos, angles.sin)
    with pytest.raises(TypeError, match="sin is"):
        rope.with_tables(angles.cos, angles.sin.astype(int))
    with pytest.raises(RopeError, match="need one column a pair"):
        rope.with_tables(*(np.ones((9, 8)),) * 2).rotate(q)
    with pytest.raises(FrozenInstanceError):
        angles.cos = angles.sin  # type: ignore[misc]  # what is refused
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="q is a numpy array and cos a torch array; convert one"):
        rope.at(POSITIONS, like=torch.ones(8)).apply(q, k)


def test_what_undoes_a_factor_is_held_only_where_there_is_one() -> None:
    q = np.ones((9, 2, 8), np.float32)
    assert RoPE().at(POSITIONS, like=q).inverse is None
    cos, _ = RoPE(scaling=YARN).at(POSITIONS, like=q).inverse or (None, None)
    assert cos is not None
    assert cos[0, 0] == np.float32(1 / YARN.effective_attention_factor)
