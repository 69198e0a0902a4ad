"""Every backend gives numpy's numbers: every layout, dtype, slice, order of axes and operation."""

from __future__ import annotations

import numpy as np
import pytest
from support.equality import LAYOUTS, POSITIONS, same, sample
from support.targets import FUSED, Target, truth

import rope_xp
from rope_xp import RoPE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_dtypes(backend: Target, layout: str, rng: np.random.Generator) -> None:
    rope = RoPE(layout=layout)
    for dtype in backend.floats:
        q, k = sample(rng, (2, 9, 4, 16), dtype), sample(rng, (2, 9, 2, 16), dtype)
        expected = truth(rope.apply, q, k, POSITIONS)
        got = backend.run(
            lambda q, k: rope.apply(q, k, POSITIONS), backend.make(q), backend.make(k)
        )
        for g, e, x in zip(got, expected, (q, k), strict=True):
            same(backend, g, e, x, layout, 16)


@pytest.mark.covering(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "rotary_offset"), [(6, 0), (6, 5), (6, -6), (10, -11)])
@pytest.mark.parametrize("inverse", [False, True])
def test_slices(
    backend: Target,
    layout: str,
    rotary_dim: int,
    rotary_offset: int,
    inverse: bool,
    rng: np.random.Generator,
) -> None:
    x = sample(rng, (3, 9, 2, 11), "float32")
    rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=rotary_offset)
    turn = rope.unrotate if inverse else rope.rotate
    expected = truth(turn, x, POSITIONS)
    got = backend.back(backend.run(lambda x: turn(x, POSITIONS), backend.make(x)))
    start = rotary_offset % 11
    inside = slice(start, start + rotary_dim)
    outside = np.r_[0:start, start + rotary_dim : 11]
    np.testing.assert_array_equal(got[..., outside], x[..., outside])
    if backend.ulps == 0:
        np.testing.assert_array_equal(got, expected)
    else:
        distance = np.abs(got.astype(float) - expected)[..., inside].max(axis=-1)
        unit = np.spacing(np.abs(x[..., inside]).max(axis=-1))
        assert (distance <= FUSED * unit).all()


AXES = [
    ("bshd", (2, 9, 3, 8), (2, 9, 1, 8)),
    ("bhsd", (2, 3, 9, 8), (2, 1, 9, 8)),
    ("sbhd", (9, 2, 3, 8), (9, 2, 1, 8)),
    ("hsd", (3, 9, 8), (1, 9, 8)),
    ("shd", (9, 3, 8), (9, 1, 8)),
    ("bsd", (2, 9, 8), (2, 9, 8)),
    ("sd", (9, 8), (9, 8)),
    ("hbsd", (3, 2, 9, 8), (1, 2, 9, 8)),
    ("sxhbd", (9, 4, 3, 2, 8), (9, 4, 1, 2, 8)),
    ("xbshd", (4, 2, 9, 3, 8), (4, 2, 9, 1, 8)),
    ("bscd", (2, 9, 4, 8), (2, 9, 4, 8)),
    ("bschd", (2, 9, 4, 3, 8), (2, 9, 4, 1, 8)),
    (None, (4, 2, 9, 3, 8), (4, 2, 9, 1, 8)),
    (None, (9, 8), (9, 8)),
]


@pytest.mark.covering
@pytest.mark.parametrize(("axes", "q_shape", "k_shape"), AXES, ids=lambda a: str(a))
@pytest.mark.parametrize("batched", [False, True])
def test_axes(
    backend: Target,
    axes: str | None,
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    batched: bool,
    rng: np.random.Generator,
) -> None:
    """Each token is what rotating it alone gives, wherever its axis lies."""
    names = axes or {5: "xbshd", 2: "sd"}[len(q_shape)]
    batch = [q_shape[i] for i, n in enumerate(names) if n not in "shd"]
    positions = rng.integers(0, 1 << 20, (*batch, 9)) if batched else POSITIONS
    q, k = sample(rng, q_shape, "float32"), sample(rng, k_shape, "float32")
    rope = RoPE(layout="half")
    got = backend.run(
        lambda q, k: rope.apply(q, k, positions, axes=axes), backend.make(q), backend.make(k)
    )
    full = np.broadcast_to(positions, (*batch, 9))
    order = [i for i, n in enumerate(names) if n not in "shd"] + [names.index("s")]
    for x, g in zip((q, k), got, strict=True):
        result = backend.back(g)
        moved = np.moveaxis(x, order, range(len(order)))
        moved_result = np.moveaxis(result, order, range(len(order)))
        for at in np.ndindex(full.shape):
            row = np.atleast_2d(moved[at])[:, None]
            one = truth(rope.rotate, row, [int(full[at])], axes="bsd")[:, 0]
            distance = np.abs(one - np.atleast_2d(moved_result[at]))
            unit = np.spacing(np.abs(one).max(initial=0.0, axis=-1, keepdims=True) * 1.5)
            assert (distance <= backend.ulps * unit).all()


def test_keys_have_positions_of_their_own(backend: Target, rng: np.random.Generator) -> None:
    q, k = sample(rng, (2, 3, 4, 8), "float32"), sample(rng, (2, 7, 2, 8), "float32")
    p, kp = np.array([100, 101, 102]), np.arange(96, 103)
    got_q, got_k = backend.run(
        lambda q, k: rope_xp.apply(q, k, p, k_positions=kp), backend.make(q), backend.make(k)
    )
    same(backend, got_q, truth(RoPE().rotate, q, p), q, "interleaved", 8)
    same(backend, got_k, truth(RoPE().rotate, k, kp), k, "interleaved", 8)


def test_queries_and_keys_of_two_dtypes(backend: Target, rng: np.random.Generator) -> None:
    for low, high in list(zip(backend.floats[:-1], backend.floats[1:], strict=True))[-2:]:
        q, k = sample(rng, (1, 9, 2, 8), low), sample(rng, (1, 9, 2, 8), high)
        got = backend.run(
            lambda q, k: rope_xp.apply(q, k, POSITIONS), backend.make(q), backend.make(k)
        )
        for g, x in zip(got, (q, k), strict=True):
            same(backend, g, truth(RoPE().rotate, x, POSITIONS), x, "interleaved", 8)


@pytest.mark.parametrize("old_layout", LAYOUTS)
def test_rerotation(backend: Target, old_layout: str, rng: np.random.Generator) -> None:
    x = sample(rng, (2, 9, 3, 12), "float32")
    new = POSITIONS[::-1] // 2
    rope = RoPE(layout=old_layout, rotary_dim=8, rotary_offset=2)
    to = RoPE(
        layout=old_layout,
        rotary_dim=8,
        rotary_offset=2,
        base=5e5,
        scaling=rope_xp.scaling.Linear(4.0),
    )
    for target in (None, to):
        cached = truth(rope.rotate, x, POSITIONS)
        got = backend.run(
            lambda c, target=target: rope.rerotate(c, POSITIONS, new, to=target),
            backend.make(cached),
        )
        # Two tables of 3.4e-7, one composition, the rounding of two rotations, |x| up to 4.
        expected = truth((target or rope).rotate, x, new)
        np.testing.assert_allclose(backend.back(got), expected, rtol=0, atol=4e-6)


def test_strided_views_need_no_copy_by_the_caller(rng: np.random.Generator) -> None:
    qkv = sample(rng, (2, 9, 3, 4, 8), "float32")
    expected = RoPE().rotate(qkv[:, :, 0].copy(), POSITIONS)
    for x in (qkv[:, :, 0], np.asfortranarray(qkv[:, :, 0])):
        np.testing.assert_array_equal(RoPE().rotate(x, POSITIONS), expected)
    backwards = RoPE().rotate(qkv[:, ::-1, 0], POSITIONS[::-1])
    np.testing.assert_array_equal(backwards[:, ::-1], expected)
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(qkv)
    np.testing.assert_array_equal(RoPE().rotate(t[:, :, 0], POSITIONS).numpy(), expected)
    heads_first = t[:, :, 0].transpose(1, 2)
    got = RoPE().rotate(heads_first, POSITIONS, axes="bhsd")
    np.testing.assert_array_equal(got.transpose(1, 2).numpy(), expected)


def test_inputs_are_left_alone(backend: Target, rng: np.random.Generator) -> None:
    q, k = sample(rng, (2, 9, 4, 8), "float32"), sample(rng, (2, 9, 2, 8), "float32")
    made_q, made_k, p = backend.make(q), backend.make(k), backend.make(POSITIONS)
    rope_xp.apply(made_q, made_k, p)
    np.testing.assert_array_equal(backend.back(made_q), q)
    np.testing.assert_array_equal(backend.back(made_k), k)
    np.testing.assert_array_equal(backend.back(p), POSITIONS)


def test_tables_of_the_caller(backend: Target, rng: np.random.Generator) -> None:
    x = sample(rng, (2, 9, 3, 12), "float32")
    rope = RoPE(rotary_dim=8)
    cos, sin = rope.cos_sin(POSITIONS, 12)
    for inverse in (False, True):
        expected = truth(rope.unrotate if inverse else rope.rotate, x, POSITIONS)
        got = backend.run(
            lambda x, c, s, inverse=inverse: rope_xp.apply_tables(x, c, s, inverse=inverse),
            *map(backend.make, (x, cos, sin)),
        )
        same(backend, got, expected, x, "interleaved", 8)
        moved = rope_xp.apply_tables(backend.make(x), cos, sin, inverse=inverse)  # numpy tables
        same(backend, moved, expected, x, "interleaved", 8)


def test_weights_permuted_to_the_other_layout(backend: Target, rng: np.random.Generator) -> None:
    """Scores under either layout are the same once the projections are permuted."""
    heads, d, width = 3, 8, 5
    w, x = sample(rng, (heads * d, width), "float32"), sample(rng, (9, width), "float32")
    permuted = backend.back(rope_xp.permute_weights(backend.make(w), heads, to="half"))
    np.testing.assert_array_equal(rope_xp.permute_weights(permuted, heads, to="interleaved"), w)
    bias = rope_xp.permute_weights(backend.make(w[:, 0].copy()), heads, to="half")
    np.testing.assert_array_equal(backend.back(bias), permuted[:, 0])
    scores = []
    for weights, layout in ((w, "interleaved"), (permuted, "half")):
        projected = (x @ weights.T).reshape(9, heads, d)
        rotated = truth(RoPE(layout=layout).rotate, projected, POSITIONS)
        scores.append(np.einsum("ihd,jhd->hij", rotated, rotated))
    np.testing.assert_allclose(*scores, rtol=0, atol=2e-5)
