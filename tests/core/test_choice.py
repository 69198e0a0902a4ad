"""Choice: each sequence of a batch has the bits of its own RoPE, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.targets import Target

import rope_xp
from rope_xp import Choice, RoPE, RopeError
from rope_xp.scaling import Linear, LongRoPE, YaRN

LONG = RoPE(
    layout="half",
    scaling=LongRoPE((1.0,) * 4, (1.0, 1.5, 4.0, 30.0), 4096, max_position_embeddings=131072),
)
RULES = (None, Linear(4.0), YaRN(8.0, 4096))
ROPES = tuple(RoPE(layout="half", rotary_dim=8, scaling=rule) for rule in RULES)


def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((4, 3, 4, 12), np.float32), rng.standard_normal((4, 3, 2, 12), "f4")


@pytest.mark.parametrize(("where", "axes"), [("host", "bhsd"), ("device", "sbhd")])
def test_each_sequence_is_rotated_by_its_own_rope(
    backend: Target, axes: str, where: str, rng: np.random.Generator
) -> None:
    q, k = sample(rng)
    which = np.array([2, 0, 1, 2], np.int32)
    positions = np.array([[5, 6, 7], [1, 2, 3], [70_000, 4, 1_000_000], [0, 0, 1]])
    order = ["bshd".index(name) for name in axes]
    own = []
    for x in (q, k):
        each = [ROPES[i].rotate(x[j : j + 1], positions[j : j + 1]) for j, i in enumerate(which)]
        own.append(np.concatenate(each))
    arrays = [backend.make(x.transpose(order).copy()) for x in (q, k)]
    mine = backend.make(which) if where == "device" else which
    made = Choice(ROPES, which)
    found = backend.run(
        lambda q, k, mine: (made if where == "host" else Choice(ROPES, mine)).apply(
            q, k, positions, axes=axes
        ),
        *(*arrays, mine),
    )
    back = [backend.back(y).transpose([axes.index(name) for name in "bshd"]) for y in found]
    for y, right, x in zip(back, own, (q, k), strict=True):
        if backend.ulps:
            np.testing.assert_allclose(y, right, rtol=0, atol=3e-7 * np.abs(x).max())
        else:
            np.testing.assert_array_equal(y, right)


def test_longrope_by_the_length_of_each_request(rng: np.random.Generator) -> None:
    lengths = np.array([4096, 4097, 10, 100_000])
    choice = Choice((LONG.for_length(4096), LONG.for_length(4097)), lengths > 4096)
    x = rng.standard_normal((4, 1, 2, 8))
    found = choice.rotate(x, lengths[:, None] - 1)
    for i, n in enumerate(lengths.tolist()):
        own = LONG.for_length(n).rotate(x[i : i + 1], [[n - 1]])
        np.testing.assert_array_equal(found[i : i + 1], own)


def test_attention_factors_are_undone(rng: np.random.Generator) -> None:
    q, _ = sample(rng)
    choice = Choice(ROPES, [0, 1, 2, 0])
    for positions in (None, np.arange(12).reshape(4, 3)):
        back = choice.unrotate(choice.rotate(q, positions), positions)
        np.testing.assert_allclose(back, q, rtol=0, atol=2e-6)


def test_angles_for_all_layers(rng: np.random.Generator) -> None:
    q, k = sample(rng)
    choice = Choice(ROPES, [0, 1, 2, 0])
    angles = choice.at([1, 2, 3], like=q)
    for found, own in zip(angles.apply(q, k), choice.apply(q, k, [1, 2, 3]), strict=True):
        np.testing.assert_array_equal(found, own)
    wanted = choice.apply(q, k)
    made = choice.apply(q, k, out=(q, k))
    assert made[0] is q
    np.testing.assert_array_equal(q, wanted[0])
    np.testing.assert_array_equal(k, wanted[1])


def test_tokens_that_are_packed(rng: np.random.Generator) -> None:
    """A batch of sequences of one token, each with its own number."""
    q, _ = sample(rng)
    packed, positions, which = q.reshape(12, 4, 12), np.arange(12) ** 2, np.arange(12) % 3
    found = Choice(ROPES, which).rotate(packed[:, None], positions[:, None])[:, 0]
    for i, rope in enumerate(ROPES):
        own = rope.rotate(packed[which == i], positions[which == i])
        np.testing.assert_array_equal(found[which == i], own)


def test_gradients_and_out_of_range_on_a_device() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 1, 2, 12, requires_grad=True)
    choice = Choice(ROPES[:2], torch.tensor([0, 1, 2]))
    y = choice.rotate(x, [[5], [6], [7]])
    assert y[..., :8].isnan().flatten(1).all(dim=1).tolist() == [False, False, True]
    y[:2].sum().backward()
    assert (x.grad[:2] != 0).all()


def test_errors(rng: np.random.Generator) -> None:
    q, k = sample(rng)
    with pytest.raises(RopeError, match="which must hold numbers from 0 to 2"):
        Choice(ROPES, [0, 3])
    with pytest.raises(RopeError, match=r"must rotate the same pairs.*ropes\[1\]"):
        Choice((ROPES[0], RoPE()), [0, 1])
    with pytest.raises(TypeError, match=r"ropes\[0\] must be a rope_xp.RoPE"):
        Choice(("half",), [0])  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match="tuple of one RoPE or more"):
        Choice([*ROPES], [0])  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match="which must hold integers; got float64"):
        Choice(ROPES, [0.5])
    given: Any = Choice(ROPES, [0, 1])
    with pytest.raises(RopeError, match="must broadcast to"):
        given.apply(q, k)
    with pytest.raises(RopeError, match="length"):
        Choice((LONG,), [0]).rotate(q)
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="like is a numpy array and which a torch array"):
        Choice(ROPES, torch.tensor([0, 1, 2, 0])).rotate(q)
    assert rope_xp.Choice is Choice
