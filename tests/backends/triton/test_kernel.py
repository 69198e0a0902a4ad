"""The kernel for GPUs beside the portable path, on a GPU or in Triton's interpreter:

TRITON_INTERPRET=1 pytest -n 0 tests/backends/triton/test_kernel.py
"""

from functools import partial

import pytest
from rope_xp_backends.torch import gpu
from rope_xp_backends.torch.library import Torch
from support.equality import LAYOUTS, list_caches
from support.rules import Temperature
from support.targets import truth
from support.tensors import (
    DTYPES,
    ON_A_GPU,
    POSITIONS,
    anywhere,
    check,
    right,
    rotation,
    same,
    sample,
    tensor,
)

import rope_xp
from rope_xp import RoPE

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


pytestmark = [pytest.mark.usefixtures("_by_the_kernel"), *ON_A_GPU]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [2, 6, 80])
def test_heads_of_every_width_equal_the_portable_path(head_dim, layout):
    for dtype in DTYPES:
        q, k = (sample(2, 5, n, head_dim, dtype=dtype, seed=n) for n in (3, 1))
        check(rotation(RoPE(layout=layout), POSITIONS), q, k)


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "offset"), [(8, 16), (6, 5), (2, -2)])
def test_slices_equal_the_portable_path(rotary_dim, offset, layout):
    for head_dim in (24, 37):
        rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
        for turn in (rope.rotate, rope.unrotate):
            x = sample(2, 5, 3, head_dim, dtype=torch.float32 if head_dim == 37 else torch.bfloat16)
            check(lambda x, out=None, turn=turn: turn(x, POSITIONS, out=out), x)


# Rotated slice, its offset, and length of weights.
NORMS = [(24, 0, 24), (8, 4, 24), (8, 4, 8), (8, -8, None)]


def pair_sizes(y, layout, rotary_dim, offset):
    """Return the larger modulus of each pair, and of each other component."""
    size = y.abs().clone()
    shape = (-1, 2) if layout == "interleaved" else (2, -1)
    pairs = size[..., offset % 24 :][..., :rotary_dim].unflatten(-1, shape)
    pairs[...] = pairs.amax(shape.index(2) - 2, keepdim=True)
    return size


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "offset", "count"), NORMS)
def test_norms_are_within_two_ulp(rotary_dim, offset, count, layout):
    """Also of calls that are cached: new, again, in place, by weights anywhere."""
    rope = RoPE(layout=layout, rotary_dim=rotary_dim, rotary_offset=offset)
    for i, dtype in enumerate(DTYPES):
        arrays = tuple(sample(2, 5, n, 24, dtype=dtype, seed=n) for n in (3, 1))
        weights = sample(2 * (count or 1) + 1, dtype=DTYPES[-i])[1:].unflatten(0, (2, -1))
        norm = rope_xp.QKNorm(*(weights if count else ()), offset=float(i % 2))
        wide = [x.float() if dtype.itemsize == 2 else x.clone() for x in arrays]
        expected = truth(rope.apply, *wide, POSITIONS, norm=norm)
        for out in (None, None, None, arrays):
            got = rope.apply(*arrays, POSITIONS, norm=norm, out=out)
            for x, y in zip(got, expected, strict=True):
                # Sums in another order move the factor by an ulp at most, and each product rounds.
                bound = 2 * torch.finfo(y.dtype).eps * pair_sizes(y, layout, rotary_dim, offset)
                if dtype.itemsize == 2:  # rounded, which the interpreter does not do to bfloat16
                    bound += torch.finfo(dtype).eps * y.abs() + torch.finfo(dtype).tiny
                assert x.dtype == dtype
                assert ((x.to(y.dtype) - y).abs() <= bound).all()


@pytest.fixture
def launches(monkeypatch):
    """Programs of each launch. No value of a position or slot may be read, as on a GPU."""
    monkeypatch.setattr(Torch, "host_view", lambda *_: None)
    launch, seen = gpu.TritonLaunch.__call__, []

    def count(self, *arguments):
        seen.append(self.plan.grid[0])
        return launch(self, *arguments)

    monkeypatch.setattr(gpu.TritonLaunch, "__call__", count)
    return seen


def widened(x):
    """Return numbers in a dtype that the interpreter does not truncate."""
    return x.float() if x.dtype is torch.bfloat16 else x


CACHES = list_caches(24)


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("names", CACHES)
@pytest.mark.parametrize("axes", ["bshd", "bhsd"])
def test_keys_go_to_slots_in_the_same_launch(names, axes, launches, monkeypatch):
    """To padding, beyond the cache and below zero nothing goes."""
    of_sequences = names is not None and "b" in names
    chosen = [[5, -1, 2, 0, 7], [3, 8, -1, 1, 4]]
    if not of_sequences:
        chosen = [[5, -1, 2, 0, 7], [3, 8, -1, 15, 4]]
    for i, dtype in enumerate(DTYPES):
        rope = RoPE(
            layout=LAYOUTS[i % 3], rotary_dim=(24, 16)[i % 2], rotary_offset=-(24, 16)[i % 2]
        )
        q, k = (sample(2, 5, n, 24, dtype=dtype, seed=n) for n in (4, 2))
        if axes == "bhsd":
            q, k = (x.transpose(1, 2).contiguous() for x in (q, k))
        cache = sample(*CACHES[names], dtype=dtype)
        slots = tensor(chosen, (torch.int32, torch.int64)[i % 2])
        call = partial(rope.apply, q, k, tensor(POSITIONS), axes=axes, cache_axes=names)
        expected, wide = widened(cache).clone(), (widened(q), widened(k))
        options = {"slots": slots, "out": (None, expected), "cache_axes": names}
        rotated, _ = truth(rope.apply, *wide, POSITIONS, axes=axes, **options)
        outside = slots.clone()
        outside[slots < 0] = tensor([-7, 1 << 20], slots.dtype)
        for n, given in enumerate((slots, slots, outside, outside)):
            keys, q_out = cache.clone(), q.clone() if n == 1 else None
            with monkeypatch.context() as patch:
                if n > 1 and dtype is not torch.float64:  # a call like the first
                    patch.setattr(gpu, "plan_launch", lambda *_: pytest.fail("planned again"))
                got = call(slots=given, out=(q_out, keys))
            same(got[0], rotated)
            assert got[1] is keys
            same(keys, expected)
            assert q_out is None or got[0] is q_out
    assert len(launches) == 4 * len(DTYPES)


def test_slots_of_all_sequences_keys_in_the_cache_and_norms_equal_the_portable_path(launches):
    q, k, cache = sample(2, 5, 4, 24), sample(2, 5, 2, 24), sample(2, 9, 2, 24)
    slots, weight = tensor([5, 0, 8, 2, 7], torch.int32), sample(24).abs() + 1
    positions = tensor(POSITIONS)
    calls = (
        {"cache_axes": "bshd", "slots": slots},
        {"cache_axes": "bshd", "slots": slots, "norm": rope_xp.QKNorm(weight, weight)},
        {"cache_axes": "bshd", "slots": slots, "k_positions": positions - 3},
    )
    for options in calls:
        ours, theirs = cache.clone(), cache.clone()
        expected = truth(RoPE().apply, q, k, positions, out=(None, theirs), **options)
        got = RoPE().apply(q, k, positions, out=(None, ours), **options)
        for x, y in zip((got[0], ours), (expected[0], theirs), strict=True):
            torch.testing.assert_close(x, y, rtol=2e-6 if "norm" in options else 0, atol=0)
    assert len(launches) == len(calls)
    options = {"cache_axes": "bshd", "slots": slots, "k_positions": [p // 2 for p in POSITIONS]}
    for more in ({}, {"norm": rope_xp.QKNorm(weight, weight)}):  # of 64 and of 32 bits: two
        ours, theirs = cache.clone(), cache.clone()
        expected = truth(RoPE().apply, q, k, positions, out=(None, theirs), **options, **more)
        got = RoPE().apply(q, k, positions, out=(None, ours), **options, **more)
        for x, y in zip((got[0], ours), (expected[0], theirs), strict=True):
            torch.testing.assert_close(x, y, rtol=2e-6 if more else 0, atol=0)
    assert len(launches) == len(calls) + 4
    ours, theirs = cache.clone(), cache.clone()
    truth(RoPE().apply, q, theirs[:, 2:7].clone(), POSITIONS, out=(None, theirs), **calls[0])
    RoPE().apply(q, ours[:, 2:7], POSITIONS, out=(None, ours), **calls[0])
    same(ours, theirs)


@pytest.mark.usefixtures("_offsets")
@pytest.mark.parametrize("tokens", [5, 1, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_keys_with_positions_of_their_own_take_the_same_launch(layout, tokens, launches):
    rope, images = RoPE(layout=layout), RoPE(layout=layout, position_axes=(0, 1, 2, 1, 0, 0) * 2)
    for i, dtype in enumerate(DTYPES):
        q, k = sample(2, 5, 3, 24, dtype=dtype), sample(2, tokens, 2, 24, dtype=dtype)
        own = anywhere((2, tokens) if i % 2 else (tokens,))
        calls = [partial(rope.apply, positions=tensor(POSITIONS), k_positions=own)]
        if dtype is not torch.float64:
            three = anywhere((3, 2, 5)), anywhere((3, 2, tokens))
            calls += [partial(images.apply, positions=three[0], k_positions=three[1])]
        angles, k_angles = (anywhere((x.shape[1], 12)).to(torch.float32) for x in (q, k))
        given = {"angles": angles, "k_angles": k_angles, "layout": layout}
        for call in [*calls, partial(rope_xp.apply_angles, **given)]:
            launches.clear()
            expected = truth(call, widened(q), widened(k))
            out = torch.empty_like(q), torch.empty_like(k)
            for options in ({}, {"out": out}, {"out": out}):
                for x, y in zip(call(q, k, **options), expected, strict=True):
                    same(x, y)
            # New results of angles are rotated one by one, as on CPUs.
            one_by_one = call not in calls and dtype is not torch.float64
            assert len(launches) == 3 + one_by_one


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_of_16_bits_are_read_as_they_lie(layout, launches, monkeypatch):
    for dtype in (torch.float16, torch.bfloat16):
        for x in (sample(2, 5, 3, 24, dtype=dtype), sample(2, 5, 3, 24)):
            cos, sin = (t.to(dtype) for t in RoPE().cos_sin(tensor(POSITIONS), 24))
            angles = RoPE(layout=layout).with_tables(cos, sin)
            for call in (angles.rotate, angles.unrotate):
                for _ in range(3):
                    same(call(x), truth(call, widened(x)))
    assert len(launches) == 24
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "plan_launch", lambda *_: pytest.fail("it was planned again"))
        angles.rotate(x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zeros_have_the_sign_of_the_portable_path(layout):
    """Also where the angle is zero, and turned back; Triton takes -x for 0 - x."""
    numbers = tensor([0.0, -0.0, 1.0, -1.0], torch.float32)
    x = torch.cartesian_prod(numbers, numbers).reshape(4, 1, 1, 8).expand(-1, 3, -1, -1)
    rope = RoPE(layout=layout)
    for turn in (rope.rotate, rope.unrotate):
        for dtype in DTYPES:
            expected = truth(turn, x.to(dtype), [0, -3, 70_000])
            got = turn(x.to(dtype).contiguous(), tensor([0, -3, 70_000]))
            assert (expected == 0).any()
            assert torch.equal(got.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [1, 2, 4])
def test_rows_at_any_address_leave_their_neighbours(start, dtype):
    """Which no access of 16 bytes can read."""
    for layout in LAYOUTS:
        memory = sample(start + 2 * 5 * 3 * 19, dtype=dtype)
        after, before = (m[start:].unflatten(0, (2, 5, 3, 19)) for m in (memory, memory.clone()))
        first = memory[:start].clone()
        check(rotation(RoPE(layout=layout), POSITIONS), after[..., :16])
        assert torch.equal(after[..., 16:], before[..., 16:])
        assert torch.equal(memory[:start], first)


def test_positions_out_of_range_give_nan(monkeypatch):
    """As on a GPU, where nobody reads them before the kernel does."""
    monkeypatch.setattr(Torch, "host_view", lambda *_: None)
    top = 1 << 31
    outside = tensor([top, -top, top << 20, (1 << 63) - 1, -(1 << 63)])
    x = sample(5, 3, 8)
    assert RoPE().rotate(x, outside).isnan().all()
    assert not RoPE().rotate(x, outside.sign() * (top - 1)).isnan().any()
    assert RoPE().rotate(x, tensor([-top] * 5, torch.int32)).isnan().all()
    check(rotation(RoPE(), tensor([0, top, 5, -top, 7]), "shd"), x)


def test_components_under_vmap_gradients_and_factors_equal_the_portable_path():
    images, x = anywhere((3, 4, 2, 5)), sample(4, 2, 5, 3, 12)
    rope = RoPE(position_axes=(0, 1, 2, 2, 1, 0))
    check(rotation(rope, images, "xbshd"), x)
    check(rotation(rope, images.transpose(1, 2), "bxshd"), x.transpose(0, 1))
    own = torch.func.vmap(rope.rotate, (0, 1))
    same(own(x, images), right(rotation(rope, images, "xbshd"), x))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(rope.rotate(x, images, axes="xbshd"), x, x.detach())
    same(gradient, truth(rope.unrotate, x.detach(), images, axes="xbshd"))
    scaled = RoPE(position_axes=rope.position_axes, scaling=Temperature(3.0))
    expected = truth(scaled.rotate, x.detach(), images, axes="xbshd")
    same(scaled.rotate(x, images, axes="xbshd").detach(), expected)
