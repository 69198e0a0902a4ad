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


AXES = ["bshd", "bhsd", "sbhd", "hsd", "shd", "bsd", "sd", "hbsd", "sxhbd", "bscd", "bschd"]
NAMED = [*((axes, axes) for axes in AXES), ("xbshd", None), ("sd", None)]


@pytest.mark.parametrize(("names", "axes"), NAMED, ids=str)
@pytest.mark.parametrize("batched", [False, True])
def test_apply_with_any_axes_rotates_each_sequence_as_alone(backend, names, axes, batched, rng):
    sizes, rope = {"b": 2, "x": 4, "c": 4, "s": 9, "h": 3, "d": 8}, RoPE(layout="half")
    others = [a for a in names if a not in "shd"]
    batch, order = [sizes[a] for a in others], [names.index(a) for a in (*others, "s")]
    positions = rng.integers(0, 1 << 20, (*batch, 9)) if batched else POSITIONS
    pair = [sample(rng, *((sizes | {"h": heads})[a] for a in names)) for heads in (3, 1)]
    expected, every = tuple(map(np.empty_like, pair)), np.broadcast_to(positions, (*batch, 9))
    for x, y in zip(pair, expected, strict=True):
        sequences, rotated = (np.moveaxis(z, order, range(len(order))) for z in (x, y))
        for at in np.ndindex(*batch):
            alone = sequences[at].reshape(9, -1, 8)
            rotated[at] = truth(rope.rotate, alone, every[at]).reshape(rotated[at].shape)
    apply = partial(rope.apply, positions=positions, axes=axes)
    check(backend, lambda q, k: apply(q, k), *pair, rope=rope, expected=expected)


def test_apply_turns_keys_of_another_dtype_by_positions_of_their_own(backend, rng):
    one, two = backend.floats[-2:]
    p, kp = np.array([100, 101, 102]), np.arange(96, 103)
    q, k = sample(rng, 2, 3, 4, 8, dtype=one), sample(rng, 2, 7, 2, 8, dtype=two)
    expected = truth(RoPE().rotate, q, p), truth(RoPE().rotate, k, kp)
    check(backend, lambda q, k: rope_xp.apply(q, k, p, k_positions=kp), q, k, expected=expected)


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


def test_permute_weights_keeps_scores(backend, rng):
    w, x = sample(rng, 24, 5), sample(rng, 9, 5)
    permuted = backend.back(rope_xp.permute_weights(backend.make(w), 3, to="half"))
    np.testing.assert_array_equal(rope_xp.permute_weights(permuted, 3, to="interleaved"), w)
    bias = rope_xp.permute_weights(backend.make(w[:, 0].copy()), 3, to="half")
    np.testing.assert_array_equal(backend.back(bias), permuted[:, 0])
    scores = []
    for weights, layout in ((w, "interleaved"), (permuted, "half")):
        projected = (x @ weights.T).reshape(9, 3, 8)
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


SHAPES = [((9,), 9), ((2, 9), 9), ((2, 1), 1), ((2, 1), 9), ((1, 1), 9), ((1,), 1), ((), 1)]
SHAPES += [((4, 2, 9), 9), ((1, 2, 9), 9), ((4, 1, 9), 9)]


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
    expected = truth(RoPE().rotate, x)
    for dtype in ("i4", "f8"):
        given = place(np.arange(6).astype(dtype))[:tokens]
        check_result(backend, RoPE().rotate(backend.make(x), given), expected, x)
    for dtype in ("f4", "f8"):
        tables = [place(t.astype(dtype))[:tokens] for t in RoPE().cos_sin(np.arange(6), 8)]
        check_result(backend, rope_xp.apply_tables(backend.make(x), *tables), expected, x)


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
    rope = RoPE(position_axes=axes)
    positions = rng.integers(-1_000_000, 1_000_000, (3, 2, 9))
    for dtype in ("float32",) if backend.compiles else {"float32", "float64"} & {*backend.floats}:
        x = sample(rng, 2, 9, 3, 16, dtype=dtype)
        expected = np.empty_like(x)
        for component in range(3):
            columns = np.repeat(np.array(axes) == component, 2)
            expected[..., columns] = truth(RoPE().rotate, x, positions[component])[..., columns]
        check(backend, rope.rotate, x, positions, expected=expected)
        check(backend, lambda x: rope.rotate(x), x, expected=truth(RoPE().rotate, x))
        # One position of each component, for one token.
        expected = truth(rope.rotate, x[:1, :1], [[5], [6], [7]])
        check(backend, lambda x: rope.rotate(x, [5, 6, 7]), x[:1, :1], expected=expected)


# --- the strictest reading of the array API standard ---------------------------------------------


@pytest.mark.parametrize("version", ["2022.12", "2025.12"])
def test_every_version_of_the_standard_with_every_flag_off_is_enough(version, rng):
    """No boolean indexing, no shapes that depend on data, no extension."""
    xp, x = pytest.importorskip("array_api_strict"), sample(rng, 2, 9, 3, 10)
    rope = RoPE(rotary_dim=6, rotary_offset=2, position_axes=(0, 0, 0))
    flags = {"boolean_indexing": False, "data_dependent_shapes": False, "enabled_extensions": ()}
    with xp.ArrayAPIStrictFlags(api_version=version, **flags):
        there, p = (xp.asarray(y, device=xp.Device("device1")) for y in (x, POSITIONS[None]))
        rotated = rope.rotate(there, p)
        assert rotated.device == there.device
        rotated = np.asarray(rotated.to_device(xp.Device("CPU_DEVICE")))
        np.testing.assert_array_equal(rotated, rope.rotate(x, POSITIONS[None]))
        rope.unrotate(there)
        rope.rotate(there, xp.astype(p, xp.float64) / 2)
        rope.rerotate(there, p, POSITIONS[None])
        rope.apply(there, there, p, axes="bshd", out=(there, xp.empty_like(there)))
        assert rope.rotate(xp.astype(there, xp.float64), p).dtype == xp.float64
        rope_xp.apply_tables(there, *RoPE().cos_sin(p[0, ...], 10))
        rope_xp.permute_weights(there, 1, to="half")
    for device in ("no_float64", "no_x64"):
        x = xp.ones((3, 2, 8), dtype=xp.float32, device=xp.Device(device))
        on_device = xp.asarray([5, 6, 7], dtype=xp.int32, device=x.device)
        for positions in (None, [0, 1, 5], [0.5, 1.0, 2.0], on_device):
            assert RoPE().rotate(x, positions).device == x.device
