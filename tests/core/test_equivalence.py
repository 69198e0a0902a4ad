"""Every backend gives numpy's numbers: each layout, dtype, slice, order of axes, positions."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from support.bits import sample
from support.equality import LAYOUTS, POSITIONS, check, check_result
from support.kinds import KINDS
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import YaRN


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_dtype_equals_numpy(backend, layout, rng):
    rope = RoPE(layout=layout)
    for dtype in backend.floats[1:3] if backend.compiles else backend.floats:
        q, k = (sample(rng, 2, 9, heads, 16, dtype=dtype) for heads in (4, 2))
        check(backend, lambda q, k: rope.apply(q, k, POSITIONS), q, k, rope=rope)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "rotary_offset"), [(6, 0), (6, 5), (6, -6), (10, -11)])
@pytest.mark.parametrize("inverse", [False, True])
def test_every_slice_equals_numpy_and_leaves_the_rest(
    backend, layout, rotary_dim, rotary_offset, inverse, rng
):
    x = sample(rng, 3, 9, 2, 11)
    rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=rotary_offset)
    rotate = rope.unrotate if inverse else rope.rotate
    expected = truth(rotate, x, POSITIONS)
    rotated = np.arange(rotary_offset % 11, rotary_offset % 11 + rotary_dim)
    np.testing.assert_array_equal(np.delete(expected, rotated, -1), np.delete(x, rotated, -1))
    check(backend, lambda x: rotate(x, POSITIONS), x, rope=rope, inverse=inverse)


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


@pytest.mark.parametrize(("axes", "q_shape", "k_shape"), AXES, ids=str)
@pytest.mark.parametrize("batched", [False, True])
def test_every_order_of_axes_rotates_each_token_as_alone(
    backend, axes, q_shape, k_shape, batched, rng
):
    names = axes or {5: "xbshd", 2: "sd"}[len(q_shape)]
    batch = [q_shape[i] for i, n in enumerate(names) if n not in "shd"]
    positions = rng.integers(0, 1 << 20, (*batch, 9)) if batched else POSITIONS
    rope = RoPE(layout="half")
    order = [i for i, n in enumerate(names) if n not in "shd"] + [names.index("s")]
    pair = sample(rng, *q_shape), sample(rng, *k_shape)
    expected, every = tuple(map(np.empty_like, pair)), np.broadcast_to(positions, (*batch, 9))
    for x, y in zip(pair, expected, strict=True):
        tokens, rotated = (np.moveaxis(z, order, range(len(order))) for z in (x, y))
        for at in np.ndindex(*batch, 9):
            token = np.atleast_2d(tokens[at])[:, None]
            alone = truth(rope.rotate, token, [int(every[at])], axes="bsd")
            rotated[at] = alone.reshape(rotated[at].shape)
    apply = partial(rope.apply, positions=positions, axes=axes)
    check(backend, lambda q, k: apply(q, k), *pair, rope=rope, expected=expected)


def test_keys_turn_by_positions_of_their_own(backend, rng):
    q, k = sample(rng, 2, 3, 4, 8), sample(rng, 2, 7, 2, 8)
    p, kp = np.array([100, 101, 102]), np.arange(96, 103)
    expected = truth(RoPE().rotate, q, p), truth(RoPE().rotate, k, kp)
    check(backend, lambda q, k: rope_xp.apply(q, k, p, k_positions=kp), q, k, expected=expected)


def test_queries_and_keys_of_two_dtypes_keep_each_its_own(backend, rng):
    pairs = list(zip(backend.floats[:-1], backend.floats[1:], strict=True))
    for dtypes in pairs[-1 if backend.compiles else -2 :]:
        pair = [sample(rng, 1, 9, 2, 8, dtype=dtype) for dtype in dtypes]
        expected = tuple(truth(RoPE().rotate, x, POSITIONS) for x in pair)
        check(backend, lambda q, k: rope_xp.apply(q, k, POSITIONS), *pair, expected=expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rerotated_keys_equal_rotated_ones(backend, layout, rng):
    x, new = sample(rng, 2, 9, 3, 12), POSITIONS[::-1] // 2
    fields: dict[str, Any] = {"layout": layout, "rotary_dim": 8, "rotary_offset": 2}
    rope = RoPE(**fields, scaling=YaRN(4.0, 64))  # which has an attention factor
    other = RoPE(**fields, base=5e5, scaling=YaRN(8.0, 64, attention_factor=0.5))
    for target in (other,) if backend.compiles else (None, other):
        rerotate = partial(rope.rerotate, old_positions=POSITIONS, new_positions=new, to=target)
        cached = truth(rope.rotate, x, POSITIONS)
        rotated = backend.run(lambda x, rerotate=rerotate: rerotate(x), backend.make(cached))
        # Two tables of 3.4e-7, one composition, the rounding of two rotations, |x| up to 4.
        expected = truth((target or rope).rotate, x, new)
        np.testing.assert_allclose(backend.back(rotated), expected, rtol=0, atol=5e-6)


def test_tables_of_the_caller_equal_positions(backend, rng):
    x, rope = sample(rng, 2, 9, 3, 12), RoPE(rotary_dim=8)
    cos, sin = rope.cos_sin(POSITIONS, 12)
    for inverse in (False, True):
        expected = truth(rope.unrotate if inverse else rope.rotate, x, POSITIONS)
        rotate = partial(rope_xp.apply_tables, inverse=inverse)
        check(backend, rotate, x, cos, sin, rope=rope, expected=expected)
        # numpy's tables
        check_result(backend, rotate(backend.make(x), cos, sin), expected, x, rope)


def test_permuted_weights_give_equal_scores(backend, rng):

    heads, d, width = 3, 8, 5
    w, x = sample(rng, heads * d, width), sample(rng, 9, width)
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


# --- positions of every dtype, shape and kind ----------------------------------------------------


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("sign", ["", "u"])
def test_device_positions_of_every_integer_dtype_equal_int64(backend, kind, sign, rng):

    top = min(np.iinfo(sign + kind).max, (1 << 31) - 1)
    positions = np.array([0 if sign else -top, 1, top // 3, top - 1, top]).astype(sign + kind)
    x = sample(rng, 5, 2, 8)
    expected = truth(RoPE().rotate, x, positions.astype(np.int64))
    check(backend, RoPE().rotate, x, positions, expected=expected)


SHAPES = [((9,), 9), ((2, 9), 9), ((2, 1), 1), ((2, 1), 9), ((1, 1), 9), ((1, 9), 9), ((1,), 1)]
SHAPES += [((), 1), ((4, 2, 9), 9), ((1, 2, 9), 9), ((4, 1, 9), 9), ((4, 2, 1), 9)]


@pytest.mark.parametrize(("shape", "tokens"), SHAPES)
def test_positions_of_every_shape_broadcast_over_batch_and_tokens(backend, shape, tokens, rng):
    batch = (4, 2) if len(shape) == 3 else (2,)
    positions, x = rng.integers(0, 10_000, shape), sample(rng, *batch, tokens, 3, 8)
    expected = truth(RoPE().rotate, x, np.broadcast_to(positions, (*batch, tokens)).copy())
    for given in (positions, positions.tolist(), backend.make(positions)):
        check_result(backend, RoPE().rotate(backend.make(x), given), expected, x)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_host_positions_and_tables_in_any_memory_equal_plain_ones(backend, kind, tokens, rng):
    """Also of one token, whose stride numpy keeps though it means nothing."""
    x, place = sample(rng, tokens, 3, 8), KINDS[kind]
    for dtype in ("i4", "f8"):
        positions = np.arange(6)[:tokens]
        expected = truth(RoPE().rotate, x, positions)
        given = place(np.arange(6).astype(dtype))[:tokens]
        check_result(backend, RoPE().rotate(backend.make(x), given), expected, x)
    for dtype in ("f4", "f8"):
        tables = [t.astype(dtype) for t in RoPE().cos_sin(np.arange(6), 8)]
        cos, sin = (place(t)[:tokens] for t in tables)
        check_result(backend, rope_xp.apply_tables(backend.make(x), cos, sin), expected, x)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("components", [0, 2])
def test_one_position_for_many_tokens_is_refused(backend, shape, components):
    """It could be that of each or of the first, whether in a list or not."""
    rope = RoPE(position_axes=(0, 1, 0, 1)) if components else RoPE()
    positions = np.full((components, *shape) if components else shape, 5)
    x = backend.make(np.ones((2, 9, 3, 8), np.float32))
    for given in (positions, positions.tolist(), backend.make(positions)):
        with pytest.raises(RopeError, match=r"number for 9 tokens; write .*offset \+ arange"):
            rope.rotate(x, given)


@pytest.mark.parametrize("shape", [(0, 5, 2, 8), (2, 0, 2, 8), (2, 5, 0, 8), (0, 0, 0, 8)])
def test_empty_axes_give_empty_results(backend, shape):
    x, positions = backend.make(np.zeros(shape, np.float32)), np.arange(shape[1])
    for p in (None, positions, backend.make(positions)):
        for y in (RoPE(rotary_dim=4).rotate(x, p), *rope_xp.apply(x, x, p)):
            assert backend.back(y).shape == shape


def test_each_pair_turns_by_its_own_position_component(backend, rng):
    axes = (0, 1, 2, 0, 1, 2, 0, 0)  # as in Qwen3-VL
    x = sample(rng, 2, 9, 3, 16)
    positions = rng.integers(-1_000_000, 1_000_000, (3, 2, 9))
    rope = RoPE(position_axes=axes)
    expected = np.empty_like(x)
    for component in range(3):
        columns = np.repeat(np.array(axes) == component, 2)
        expected[..., columns] = truth(RoPE().rotate, x, positions[component])[..., columns]
    check(backend, rope.rotate, x, positions, expected=expected)
    counted = backend.back(rope.rotate(backend.make(x)))
    np.testing.assert_allclose(counted, truth(RoPE().rotate, x), rtol=0, atol=1e-6)
    if "float64" in backend.floats:
        wide = backend.back(rope.rotate(backend.make(x.astype(float)), positions))
        np.testing.assert_allclose(wide, expected, rtol=0, atol=3e-6)
    # One position of each component, for one token.
    token, short = x[:1, :1, :, :8], RoPE(position_axes=(0, 1, 2, 0))
    rotated = backend.back(short.rotate(backend.make(token), [5, 6, 7]))
    expected = truth(short.rotate, token, [[5], [6], [7]])
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=1e-6)
