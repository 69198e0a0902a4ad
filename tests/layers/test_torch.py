"""The layer of torch: casts, checkpoints, compilers, learned frequencies, sharded models."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.layers import ROPES, TORCH, assert_same, inputs
from support.programs import HERE, ROOT, environment

import rope_xp
from rope_xp import RoPE, RopeError, apply_frequencies
from rope_xp.scaling import LongRoPE

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402  # needs torch

from rope_xp.layers.torch import Rotary  # noqa: E402  # needs torch

ROPE = ROPES["yarn"]
SIZES: dict[str, dict[str, int]] = {
    "shared": {"head_dim": 16},
    "head": {"head_dim": 16, "heads": 2},
}


def learner(rope: RoPE = ROPES["half"], learn: Any = "head", **options: Any) -> Any:
    return Rotary(rope, learn=learn, **{**SIZES[learn], **options})


# --- casts and devices ---------------------------------------------------------------------------


def empty(model: Any) -> Any:
    """Return a model with whatever lay in memory, and its parameters as they start."""
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(7.0)
    model[0].reset_parameters()
    return model


ROUND_TRIPS = {
    "bfloat16": lambda m: m.bfloat16(),
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "both at once": lambda m: m.to("cpu", torch.bfloat16),
    "back again": lambda m: m.bfloat16().float(),
    "meta": lambda m: empty(m.to("meta", torch.float16)),
    "meta from the start": lambda m: empty(m.bfloat16()),
    "share": lambda m: m.share_memory(),
    "state": lambda m: (m.load_state_dict(m.state_dict(), strict=True), m)[1],
    "assigned": lambda m: (m.load_state_dict(m.state_dict(), assign=True), m)[1],
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
}


@pytest.mark.parametrize("trip", ROUND_TRIPS)
def test_round_trips_change_no_bit(trip: str) -> None:
    for name, dtype in (("yarn", torch.bfloat16), ("sections", torch.float32)):
        rope = ROPES[name]
        with torch.device("meta" if trip == "meta from the start" else "cpu"):
            model = torch.nn.Sequential(Rotary(rope))
        layer = ROUND_TRIPS[trip](model)[0]
        q, k, positions = inputs(TORCH, rope)
        q, k = q.to(dtype), k.to(dtype)
        assert_same(layer(q, k, positions), rope.apply(q, k, positions))


@pytest.mark.parametrize("trip", ROUND_TRIPS)
def test_round_trips_change_no_learned_frequency(trip: str) -> None:
    rope = ROPES["sections"]
    frequencies = learner(rope).frequencies.detach()
    with torch.device("meta" if trip == "meta from the start" else "cpu"):
        model = torch.nn.Sequential(learner(rope))
    if "meta" not in trip:  # a reset starts again
        with torch.no_grad():
            frequencies = model[0].frequencies.add_(1e-4).clone()
    layer = ROUND_TRIPS[trip](model)[0]
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


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (Rotary(RoPE()), "Rotary()"),
        (
            Rotary(RoPE(layout="half", scaling=rope_xp.scaling.Linear(2.0)), axes="bhsd"),
            "Rotary(layout='half', scaling=Linear(factor=2.0), axes='bhsd')",
        ),
        (learner(RoPE(), "shared"), "Rotary(learn='shared')"),
        (learner(axes="bhsd"), "Rotary(learn='head', base=500000.0, layout='half', axes='bhsd')"),
    ],
)
def test_repr(layer: Any, shown: str) -> None:
    assert repr(layer) == shown


# --- checkpoints ---------------------------------------------------------------------------------


def load(rope: RoPE, frequencies: Any, **options: Any) -> None:
    """Load a checkpoint of another module, which has inv_freq, into a layer of a model."""
    state = {"rotary.inv_freq": torch.as_tensor(frequencies)}
    model = torch.nn.ModuleDict({"rotary": Rotary(rope)})
    assert str(model.load_state_dict(state, **options)) == "<All keys matched successfully>"
    assert list(state) == ["rotary.inv_freq"]  # the caller's dictionary is unchanged


@pytest.mark.parametrize("name", ["half", "slice", "yarn", "llama3", "dynamic", "axial"])
def test_frequencies_of_a_checkpoint_are_compared(name: str) -> None:
    rope = ROPES[name]
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        saved = torch.from_numpy(rope.frequencies(16)).to(dtype)
        load(rope, saved)
        saved[-1] *= 1.05  # more than bfloat16 rounds
        for strict in (True, False):
            with pytest.raises(RuntimeError, match="rotary.inv_freq holds the frequencies"):
                load(rope, saved, strict=strict)
    load(rope, torch.empty(8, device="meta"))  # which has no values


def test_frequencies_that_transformers_saved() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(head_dim=16)
    load(rope_xp.from_hf_config(config), LlamaRotaryEmbedding(config).inv_freq)


def test_either_regime_of_longrope_fits() -> None:
    rope = RoPE(scaling=LongRoPE((1.0,) * 8, (2.5,) * 8, 4096, factor=8.0))
    for n in (1, 5000):
        load(rope, rope.for_length(n).frequencies(16))
    with pytest.raises(RuntimeError, match="holds the frequencies"):
        load(rope, RoPE().frequencies(16) / 3)


def test_frequencies_of_another_shape() -> None:
    with pytest.raises(RuntimeError, match=r"\(8\), and the RoPE of this Rotary has .* \(4\)"):
        load(RoPE(rotary_dim=8), RoPE().frequencies(16))
    with pytest.raises(RuntimeError, match=r"has shape \(0,\), for which the RoPE has no freq"):
        load(RoPE(), torch.empty(0))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Rotary(RoPE()).load_state_dict({"scale": torch.ones(1)}, strict=True)


# --- learned frequencies --------------------------------------------------------------------------


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
@pytest.mark.parametrize("name", ["plain", "half", "llama3", "sections", "axial"])
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


@pytest.mark.parametrize("learn", SIZES)
@pytest.mark.parametrize("name", ["half", "sections"])
def test_learning_starts_from_a_checkpoint_with_inv_freq(name: str, learn: str) -> None:
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


def block_and_input() -> tuple[Any, torch.Tensor]:
    """Return projections, a rotation and attention scores, and their input."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = torch.nn.Linear(32, 64), torch.nn.Linear(32, 32)
            self.rotary = Rotary(ROPE)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k = (layer(x).unflatten(-1, (-1, 16)) for layer in (self.q, self.k))
            q, k = self.rotary(q, k, 1_000_000 + torch.arange(6))
            return torch.einsum("bshd,bthd->bhst", q, k.repeat_interleave(2, 2))

    torch.manual_seed(0)
    return Block(), torch.randn(2, 6, 32)


def test_activation_checkpointing() -> None:
    gradients = []
    for use_checkpoint in (False, True):
        block, x = block_and_input()
        if use_checkpoint:
            out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        else:
            out = block(x)
        out.square().sum().backward()
        gradients.append([p.grad for p in block.parameters()])
    assert_same(*gradients)
    assert all(g.abs().max() > 0 for g in gradients[0])


def test_one_recompilation_serves_all_lengths() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(Rotary(ROPE), fullgraph=True, backend=counter)
    for tokens in (5, 6, 64, 700):
        q, k, positions = inputs(TORCH, ROPE, tokens)
        assert_same(compiled(q, k, positions), ROPE.apply(q, k, positions))
    assert counter.frame_count <= 2


@pytest.mark.exhaustive
def test_layers_of_one_class_share_no_graph_by_mistake() -> None:
    torch._dynamo.reset()
    q, k, positions = inputs(TORCH, ROPE)
    for name in ("yarn", "half"):
        compiled = torch.compile(Rotary(ROPES[name]), fullgraph=True, backend="eager")
        assert_same(compiled(q, k, positions), ROPES[name].apply(q, k, positions))


def test_export() -> None:
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    shapes = {"q": {1: tokens}, "k": {1: tokens}, "positions": {1: tokens}}
    program = torch.export.export(Rotary(ROPE), inputs(TORCH, ROPE), dynamic_shapes=shapes)
    assert not program.state_dict
    q, k, positions = inputs(TORCH, ROPE, 700)
    assert_same(program.module()(q, k, positions), ROPE.apply(q, k, positions))


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
    "heads=2 was given, and learn='shared'": ({"learn": "shared", **SIZES["head"]}, RopeError),
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


# --- processes -----------------------------------------------------------------------------------


@pytest.mark.exhaustive  # calls on DTensors are in tests/backends/torch, and it holds nothing
def test_fsdp(tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch was built without distributed or gloo")
    command = [sys.executable, str(HERE / "layer_shards.py"), str(tmp_path)]
    options: Any = {"env": environment(OMP_NUM_THREADS="1"), "cwd": ROOT, "text": True}
    processes = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, **options)
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    assert sorted(p.name for p in tmp_path.glob("done*")) == ["done0", "done1"]
