"""Angles made once for all layers, and a Choice of ropes: the numbers of RoPE's own methods."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from support.bits import same, sample
from support.equality import LAYOUTS, POSITIONS, check, check_result
from support.rules import Times
from support.targets import Target, truth

import rope_xp
from rope_xp import Angles, Choice, QKNorm, RoPE, RopeError
from rope_xp.scaling import Linear, YaRN

YARN = YaRN(4.0, 4096)
ROPES = {
    "interleaved": RoPE(),
    "half": RoPE(layout="half", base=5e5),
    "interleaved_to_half": RoPE(layout="interleaved_to_half"),
    "slice": RoPE(layout="half", rotary_dim=6, rotary_offset=-8),
    **{f"factor, {layout}": RoPE(layout=layout, scaling=YARN) for layout in LAYOUTS},
}


def check_at(
    backend: Target, rope: RoPE, q: np.ndarray, k: np.ndarray, positions: Any, **options: Any
) -> None:
    """Compare two layers and what undoes one with the methods of the rope."""

    def rotate(q: Any, k: Any, *on_device: Any) -> Any:
        angles = rope.at(*on_device or (positions,), like=q)
        pair = angles.apply(q, k, **options)
        return *pair, angles.rotate(q, **options), angles.unrotate(k, **options)

    q_right, k_right = truth(rope.apply, q, k, positions, **options)
    back, inputs = truth(rope.unrotate, k, positions, **options), [backend.make(q), backend.make(k)]
    if isinstance(positions, np.ndarray) and positions.dtype == np.int32:
        inputs.append(backend.make(positions))
    *results, undone = backend.run(rotate, *inputs)
    for result, right, x in zip(results, (q_right, k_right, q_right), (q, k, q), strict=True):
        check_result(backend, result, right, x, rope)
    check_result(backend, undone, back, k, rope, inverse=True)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_angles_rotate_as_their_rope(backend, rope, rng):
    for dtype in ("float32",) if backend.compiles else backend.floats:
        q, k = (sample(rng, 2, 9, heads, 16, dtype=dtype) for heads in (4, 1))
        check_at(backend, rope, q, k, POSITIONS)


AT = np.array([[5, 1 << 20, 7], [70_000, 0, 1]])
KINDS = {
    "batched": AT,
    "one a sequence": AT[:, :1],
    "fractions": AT + 0.25,
    "token": 70_000,
    "components": np.stack([AT, AT[::-1]]),
    "on the device": AT.astype(np.int32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_at_takes_positions_of_every_kind(backend, kind, rng):
    q, k = (sample(rng, 2, h, 1 if kind == "token" else 3, 8) for h in (3, 1))
    rope = RoPE(layout="half", position_axes=(0, 1, 0, 1) if kind == "components" else None)
    check_at(backend, rope, q, k, KINDS[kind], axes="bhsd")


def test_at_like_any_array_takes_the_head_dim_that_is_given(backend, rng):
    rope, ids = RoPE(layout="half", scaling=YARN), rng.integers(0, 9, (2, 9)).astype(np.int32)
    expected = truth(rope.at, POSITIONS, like=sample(rng, 16))
    for like in (ids, sample(rng, 9, 24)):
        angles = backend.run(lambda x: rope.at(POSITIONS, like=x, head_dim=16), backend.make(like))
        np.testing.assert_array_equal(backend.back(angles.cos), expected.cos)


def test_angles_made_in_one_function_rotate_in_another(backend, rng):
    """Each may be compiled by itself."""
    rope, x = RoPE(layout="half", scaling=YARN), sample(rng, 9, 2, 8)
    made = backend.make(x)
    angles = backend.run(lambda x: rope.at(POSITIONS, like=x), made)
    assert isinstance(angles, Angles)
    assert angles.rope == rope
    results = backend.run(lambda angles, x: (angles.rotate(x), angles.unrotate(x)), angles, made)
    for result, rotate in zip(results, (rope.rotate, rope.unrotate), strict=True):
        check_result(backend, result, truth(rotate, x, POSITIONS), x, rope)


def test_with_tables_rotates_as_apply_tables(backend, rng):
    rope = RoPE(layout="interleaved_to_half", rotary_dim=6, rotary_offset=1)
    q, k, tables = sample(rng, 9, 3, 8), sample(rng, 9, 1, 8), RoPE().cos_sin(POSITIONS, 6)
    by_tables = partial(rope_xp.apply_tables, layout=rope.layout, rotary_offset=1)
    expected = tuple(truth(by_tables, x, *tables) for x in (q, k))

    def rotate(q: Any, k: Any, *tables: Any) -> Any:
        return rope.with_tables(*tables).apply(q, k)

    check(backend, rotate, q, k, *tables, rope=rope, expected=expected)
    made = backend.make(q)
    check_result(backend, rotate(made, made, *tables)[1], expected[0], q, rope)  # of numpy
    result = rope.with_tables(*map(backend.make, tables)).unrotate(made)
    back = truth(by_tables, q, *tables, inverse=True)
    check_result(backend, result, back, q, rope, inverse=True)


def test_angles_compute_each_array_in_its_own_width(backend, rng):
    if "float64" not in backend.floats:
        pytest.skip("it has no float64")
    arrays = [sample(rng, 9, 2, 8, dtype=dtype) for dtype in ("float64", "float32")]
    for x in map(backend.make, arrays):
        assert RoPE().at(POSITIONS, like=x).cos.dtype == x.dtype
    tables = RoPE().cos_sin(POSITIONS, 8, dtype=np.float64)
    wide, single = (truth(rope_xp.apply_tables, x, *tables) for x in arrays)

    def rotate(q: Any, k: Any) -> Any:
        angles = RoPE().at(POSITIONS, like=q)
        return *angles.apply(q, k), *angles.apply(k, q)[::-1]

    check(backend, rotate, *arrays, expected=(wide, single) * 2)


def test_angles_write_to_out_and_refuse_overlap():
    q, k = np.ones((9, 4, 8), np.float32), np.ones((9, 2, 8), np.float32)
    expected, angles = RoPE().apply(q, k, POSITIONS), RoPE().at(POSITIONS, like=q)
    same(angles.apply(q, k, out=(q, k)), expected)
    same((q, k), expected)
    assert angles.rotate(q, out=q) is angles.unrotate(q, out=q) is q
    np.testing.assert_allclose(q, expected[0], rtol=0, atol=1e-6)
    memory = np.zeros((9, 1, 8), np.float32)
    with pytest.raises(RopeError, match="out overlaps cos; pass an array"):
        RoPE().with_tables(memory[:, 0, :4], angles.sin).rotate(np.ones_like(memory), out=memory)


# --- Choice: each sequence of a batch has the bits of its own RoPE -------------------------------

CHOICES = tuple(
    RoPE(layout="half", rotary_dim=8, scaling=scaling)
    for scaling in (None, Linear(4.0), YaRN(8.0, 4096))
)


@pytest.mark.parametrize(("where", "axes"), [("host", "bhsd"), ("device", "sbhd")])
def test_choice_rotates_each_sequence_by_its_own_rope(backend, axes, where, rng):
    which = np.array([2, 0, 1, 2], np.int32)
    positions = np.array([[5, 6, 7], [1, 2, 3], [70_000, 4, 1_000_000], [0, 0, 1]])
    arrays, expected, order = [], [], ["bshd".index(name) for name in axes]
    for x in (sample(rng, 4, 3, 4, 12), sample(rng, 4, 3, 2, 12)):
        rows = [truth(CHOICES[j].rotate, x[[i]], positions[[i]]) for i, j in enumerate(which)]
        arrays.append(x.transpose(order).copy())
        expected.append(np.concatenate(rows).transpose(order))
    on_host = Choice(CHOICES, which)

    def rotate(q: Any, k: Any, on_device: Any) -> Any:
        choice = on_host if where == "host" else Choice(CHOICES, on_device)
        return choice.at(positions, like=q).apply(q, k, axes=axes)

    check(backend, rotate, *arrays, which, rope=CHOICES[2], expected=tuple(expected))


def test_choice_is_undone_and_has_the_options_of_a_rope(rng):
    q, k = sample(rng, 4, 3, 4, 12), sample(rng, 4, 3, 2, 12)
    choice = Choice(CHOICES, [0, 1, 2, 0])
    positions, slots = np.arange(24).reshape(2, 4, 3) % 12
    angles, norm = choice.at(positions, like=q), QKNorm(eps=1e-5)
    np.testing.assert_allclose(angles.unrotate(angles.rotate(q)), q, rtol=0, atol=2e-6)
    expected = angles.apply(q, k)
    same(choice.apply(q, k, positions), expected)
    same(choice.apply(q, k, positions, norm=norm), angles.apply(q, k, norm=norm))
    for ropes in (CHOICES, CHOICES[:1]):
        assert Choice(ropes, np.arange(0)).at(positions[:0], like=q).cos.shape == (0, 3, 4)
    for ropes in ((RoPE(), RoPE(scaling=Times(2.0))), (RoPE(scaling=Times(2.0)), RoPE())):
        mixed = Choice(ropes, [0, 1]).at([5, 6, 7], like=q).rotate(q[:2])
        same(mixed, np.stack([r.rotate(q[i], [5, 6, 7]) for i, r in enumerate(ropes)]))
    alike, x = Choice(CHOICES, [2, 2]).at([5, 6, 7], like=q), q[:2]
    assert alike.cos.shape == (2, 3, 4)
    same(alike.rotate(x), CHOICES[2].rotate(x, [5, 6, 7]))
    same(alike.unrotate(x), CHOICES[2].unrotate(x, [5, 6, 7]))
    by_size = choice.at(positions, like=slots, head_dim=12)
    same((by_size.cos, by_size.sin), (angles.cos, angles.sin))
    same(choice.apply(q, k), choice.at(np.arange(3), like=q).apply(q, k))
    cache = np.zeros((20, 2, 12), np.float32)
    choice.apply(q, k, positions, slots=slots, out=(None, cache))
    same(cache[:12].reshape(4, 3, 2, 12), expected[1])
    assert choice.apply(q, k, positions, out=(q, k))[0] is q
    same((q, k), expected)


def test_choice_has_gradients_and_gives_nan_out_of_range_where_none_are_read():
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 1, 2, 12, requires_grad=True)
    Choice(CHOICES[:2], torch.tensor([0, 1, 1])).apply(x, x, [[5], [6], [7]])[0].sum().backward()
    assert (x.grad != 0).all()
    with pytest.raises(RopeError, match="from 0 to 1; got 0 to 2"):
        Choice(CHOICES[:2], torch.tensor([0, 1, 2])).at([[5], [6], [7]], like=x)

    @torch.compile(fullgraph=True, backend="eager")
    def rotate(x, which):
        return Choice(CHOICES[:2], which).at(torch.tensor([[5], [6], [7]]), like=x).rotate(x)

    y = rotate(x.detach(), torch.tensor([0, 1, 2]))
    assert y[..., :8].isnan().flatten(1).all(dim=1).tolist() == [False, False, True]
