"""The layer of torch with learned frequencies: they start from the RoPE, and stay float32."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from support.layers import FRAMEWORKS, ROPES, assert_same, inputs

from rope_xp import RoPE, RopeError, apply_frequencies

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402  # needs torch

from rope_xp.layers.torch import Rotary  # noqa: E402  # needs torch

TORCH = FRAMEWORKS[0]
SIZES: dict[str, dict[str, int]] = {
    "shared": {"head_dim": 16},
    "head": {"head_dim": 16, "heads": 2},
}
LEARNT = ("plain", "half", "llama3", "sections", "axial")


def learner(rope: RoPE = ROPES["half"], learn: Any = "head", **options: Any) -> Any:
    return Rotary(rope, learn=learn, **{**SIZES[learn], **options})


def initial(rope: RoPE, learn: str) -> np.ndarray:
    """Return the initial frequencies, (components, heads, r/2) or less, by plain loops."""
    frequencies = rope.frequencies(16)
    heads = 2 if learn == "head" else 1
    if rope.position_axes is None:
        return frequencies if heads == 1 else np.stack([frequencies] * heads)
    spread = np.zeros((max(rope.position_axes) + 1, heads, 8))
    for pair, component in enumerate(rope.position_axes):
        spread[component, :, pair] = frequencies[pair]
    return spread


@pytest.mark.parametrize("learn", SIZES)
@pytest.mark.parametrize("name", LEARNT)
def test_it_starts_from_its_rope(name: str, learn: str) -> None:
    rope = ROPES[name]
    layer = learner(rope, learn)
    q, k, positions = inputs(TORCH, rope)
    (key,) = layer.state_dict()
    assert key == "frequencies"
    assert layer.frequencies.dtype == torch.float32
    assert layer.frequencies.requires_grad
    expected = torch.from_numpy(initial(rope, learn)).float()
    assert torch.equal(layer.frequencies, expected)
    assert_same(
        layer(q, k, positions), apply_frequencies(q, k, positions, expected, layout=rope.layout)
    )
    near = torch.arange(5) if rope.position_axes is None else torch.arange(5).expand(3, 5)
    near = near[: max(rope.position_axes) + 1] if rope.position_axes else near
    for ours, theirs in zip(layer(q, k, near), rope.apply(q, k, near), strict=True):
        # 2**-24 of a frequency of 1 at most, which float32 rounds, times a position of 4.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=4 * (2 * 3.2e-7 + 4 * 2.0**-24))


def test_a_rope_with_a_slice_and_other_axes() -> None:
    rope = RoPE(layout="interleaved", rotary_dim=8)
    layer = learner(rope, axes="bhsd")
    q, k, positions = inputs(TORCH, rope)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    rotated = layer(q, k, positions)
    assert layer.frequencies.shape == (2, 4)
    assert torch.equal(rotated[0][..., 8:], q[..., 8:])
    assert_same([y.transpose(1, 2) for y in rotated], learner(rope)(*inputs(TORCH, rope)))


# --- casts, devices, checkpoints -----------------------------------------------------------------

ROUND_TRIPS = {
    "bfloat16": lambda m: m.bfloat16(),
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "both at once": lambda m: m.to("cpu", torch.bfloat16),
    "back again": lambda m: m.bfloat16().float(),
    "meta": lambda m: empty_and_reset(m.to("meta", torch.float16)),
    "meta from the start": lambda m: empty_and_reset(m.bfloat16()),
    "share": lambda m: m.share_memory(),
    "state": lambda m: (m.load_state_dict(m.state_dict(), strict=True), m)[1],
    "assigned": lambda m: (m.load_state_dict(m.state_dict(), assign=True), m)[1],
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
}


def empty_and_reset(model: Any) -> Any:
    assert model[0].frequencies.device.type == "meta"
    model.to_empty(device="cpu")
    with torch.no_grad():
        model[0].frequencies.fill_(7.0)  # as whatever lay in memory might be
    model[0].reset_parameters()
    return model


@pytest.mark.parametrize("trip", ROUND_TRIPS)
def test_round_trips_change_no_bit(trip: str) -> None:
    rope = ROPES["sections"]
    with torch.device("meta" if trip == "meta from the start" else "cpu"):
        model = torch.nn.Sequential(learner(rope))
    if "meta" not in trip:  # a reset starts again
        with torch.no_grad():
            model[0].frequencies += 1e-4
    frequencies = model[0].frequencies.detach().clone()
    layer = ROUND_TRIPS[trip](model)[0]
    if frequencies.device.type == "meta":
        frequencies = learner(rope).frequencies.detach()
    assert layer.frequencies.dtype == torch.float32
    assert isinstance(layer.frequencies, torch.nn.Parameter)
    assert layer.frequencies.requires_grad
    assert torch.equal(layer.frequencies, frequencies)
    q, k, positions = inputs(TORCH, rope)
    q, k = q.bfloat16(), k.bfloat16()
    expected = apply_frequencies(q, k, positions, frequencies, layout=rope.layout)
    assert_same(layer(q, k, positions), expected)


def test_a_cast_takes_the_gradient_along() -> None:
    model = torch.nn.Sequential(learner(), torch.nn.Linear(2, 2))
    q, k, positions = inputs(TORCH, ROPES["half"])
    model[0](q, k, positions)[0].square().sum().backward()
    model.bfloat16()
    assert model[0].frequencies.grad.dtype == torch.float32
    assert model[1].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("learn", SIZES)
@pytest.mark.parametrize("name", ["half", "sections"])
def test_a_checkpoint_with_inv_freq(name: str, learn: str) -> None:
    """The frequencies of another module are those of the RoPE, from which learning starts."""
    rope = ROPES[name]
    model = torch.nn.Sequential(learner(rope, learn))
    with torch.no_grad():
        model[0].frequencies.fill_(7.0)
    saved = torch.from_numpy(rope.frequencies(16)).float()
    state = {"0.inv_freq": saved}
    assert str(model.load_state_dict(state, strict=True)) == "<All keys matched successfully>"
    assert list(state) == ["0.inv_freq"]  # the caller's dictionary is unchanged
    expected = torch.from_numpy(initial(rope, learn)).float()
    assert torch.equal(model[0].frequencies, expected)
    model.load_state_dict(state | {"0.frequencies": 2 * expected}, strict=True)
    assert torch.equal(model[0].frequencies, 2 * expected)
    with pytest.raises(RuntimeError, match="inv_freq holds the frequencies"):
        model.load_state_dict({"0.inv_freq": 2 * saved})


# --- gradients and compilers ---------------------------------------------------------------------


@pytest.mark.parametrize("learn", SIZES)
def test_gradients(learn: str) -> None:
    """Against those of the plain formula in float64, at positions where it is exact enough."""
    rope = ROPES["half"]
    layer = learner(rope, learn)
    q, k, _ = inputs(TORCH, rope)
    positions = torch.arange(3, 8)
    weights = torch.randn(2, generator=torch.Generator().manual_seed(0))
    rotated = layer(q, k, positions)
    sum((y.sin() * w).sum() for y, w in zip(rotated, weights, strict=True)).backward()
    f = layer.frequencies.detach().double().requires_grad_()
    loss = 0
    for x, w in zip((q.double(), k.double()), weights, strict=True):
        angles = positions[:, None, None] * f.reshape(-1, 8)
        angles = angles.repeat_interleave(x.shape[2] // angles.shape[1], 1)
        z = torch.polar(torch.ones_like(angles), angles) * torch.complex(*x.chunk(2, -1))
        loss = loss + (torch.cat([z.real, z.imag], -1).sin() * w).sum()
    loss.backward()
    torch.testing.assert_close(layer.frequencies.grad.double(), f.grad, rtol=1e-5, atol=1e-4)
    assert layer.frequencies.grad.abs().max() > 1


def test_a_step_of_an_optimiser_moves_what_is_rotated() -> None:
    model = torch.nn.Sequential(learner()).bfloat16()
    q, k, positions = inputs(TORCH, ROPES["half"])
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)
    before = model[0](q, k, positions)[0]
    before.square().mul(q).sum().backward()
    optimiser.step()
    moved = model[0].frequencies.detach()
    assert not torch.equal(moved, learner().frequencies)
    assert (model[0](q, k, positions)[0] - before).abs().max() > 1e-3
    assert_same(model[0](q, k, positions), apply_frequencies(q, k, positions, moved, layout="half"))


def test_two_graphs_serve_all_lengths() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    layer = learner()
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for tokens in (5, 65):
        q, k, positions = inputs(TORCH, ROPES["half"], tokens)
        assert_same(compiled(q, k, positions), layer(q, k, positions))
    assert counter.frame_count <= 2
    compiled(q, k, positions)[0].square().mul(q).sum().backward()
    grad, layer.frequencies.grad = layer.frequencies.grad, None
    layer(q, k, positions)[0].square().mul(q).sum().backward()
    assert torch.equal(grad, layer.frequencies.grad)


# --- arguments ------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "learn='shared' needs head_dim=, components of a head": ({"learn": "shared"}, RopeError),
    "learn='head' needs head_dim=": ({"learn": "head", "heads": 2}, RopeError),
    "learn='head' needs heads=, heads of k": ({"learn": "head", "head_dim": 16}, RopeError),
    "heads=2 was given, and learn='shared'": (
        {"learn": "shared", "head_dim": 16, "heads": 2},
        RopeError,
    ),
    "head_dim=16 was given, and learn=None": ({"head_dim": 16}, RopeError),
    "learn must be one of 'shared', 'head'; got True": ({"learn": True}, RopeError),
    "heads must be positive": ({"learn": "head", "head_dim": 16, "heads": 0}, RopeError),
    "head_dim must be an integer": ({"learn": "shared", "head_dim": 16.0}, TypeError),
    "head_dim is 15, an odd number": ({"learn": "shared", "head_dim": 15}, RopeError),
}


@pytest.mark.parametrize("words", WRONG)
def test_sizes(words: str) -> None:
    options, kind = WRONG[words]
    with pytest.raises(kind, match=re.escape(words)):
        Rotary(RoPE(), **options)


@pytest.mark.parametrize("rope", [ROPES["yarn"], ROPES["slice"]])
def test_ropes_that_have_more_than_frequencies(rope: Any) -> None:
    with pytest.raises(RopeError, match="without a factor on cos and sin"):
        learner(rope)


def test_it_has_no_angles_for_all_layers() -> None:
    layer = learner()
    q, k, positions = inputs(TORCH, ROPES["half"])
    with pytest.raises(RopeError, match="each layer that learns its frequencies has its own"):
        layer.at(positions, like=q)
    with pytest.raises(RopeError, match="k_positions was given to a layer that learns"):
        layer(q, k, positions, k_positions=positions)
    with pytest.raises(RopeError, match=r"frequencies has 2 heads, q 4 and k 4"):
        layer(q, q, positions)


def test_repr() -> None:
    assert repr(learner(RoPE(), "shared")) == "Rotary(learn='shared')"
    shown = repr(learner(RoPE(layout="half"), axes="bhsd"))
    assert shown == "Rotary(learn='head', layout='half', axes='bhsd')"
