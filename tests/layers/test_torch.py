"""The layer of torch: casts, devices, checkpoints, compilers, and sharded models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.layers import FRAMEWORKS, ROPES, assert_same, inputs
from support.programs import HERE, ROOT, environment

import rope_xp
from rope_xp import RoPE
from rope_xp.scaling import LongRoPE

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402  # needs torch

from rope_xp.layers.torch import Rotary  # noqa: E402  # needs torch

ROPE = ROPES["yarn"]
TORCH = FRAMEWORKS[0]


class Block(torch.nn.Module):
    """Projections, a rotation, and attention scores."""

    def __init__(self, rope: RoPE) -> None:
        super().__init__()
        self.q = torch.nn.Linear(32, 64)
        self.k = torch.nn.Linear(32, 32)
        self.rotary = Rotary(rope)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k = (layer(x).unflatten(-1, (-1, 16)) for layer in (self.q, self.k))
        q, k = self.rotary(q, k, positions)
        return torch.einsum("bshd,bthd->bhst", q, k.repeat_interleave(2, 2))


def block_and_input(rope: RoPE = ROPE, tokens: int = 6) -> tuple[Block, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return Block(rope), torch.randn(2, tokens, 32), 1_000_000 + torch.arange(tokens)


ROUND_TRIPS = {
    "bfloat16": lambda m: m.bfloat16(),
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "back again": lambda m: m.bfloat16().float(),
    "meta": lambda m: m.to("meta").to_empty(device="cpu"),
    "meta from the start": lambda m: m.to_empty(device="cpu"),
    "apply": lambda m: m._apply(torch.zeros_like),
    "share": lambda m: m.share_memory(),
    "state": lambda m: (m.load_state_dict(m.state_dict(), strict=True), m)[1],
    "assigned": lambda m: (m.load_state_dict(m.state_dict(), assign=True), m)[1],
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


def test_repr() -> None:
    assert repr(Rotary(RoPE())) == "Rotary()"
    shown = repr(Rotary(RoPE(layout="half", scaling=rope_xp.scaling.Linear(2.0)), axes="bhsd"))
    assert shown == "Rotary(layout='half', scaling=Linear(factor=2.0), axes='bhsd')"


# --- checkpoints ---------------------------------------------------------------------------------


def with_frequencies(block: Block, frequencies: Any) -> dict[str, Any]:
    return block.state_dict() | {"rotary.inv_freq": torch.as_tensor(frequencies)}


@pytest.mark.parametrize("name", ["half", "slice", "yarn", "llama3", "dynamic", "axial"])
def test_frequencies_of_a_checkpoint_are_compared(name: str) -> None:
    rope = ROPES[name]
    block = Block(rope)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        saved = torch.from_numpy(rope.frequencies(16)).to(dtype)
        state = with_frequencies(block, saved)
        assert str(block.load_state_dict(state, strict=True)) == "<All keys matched successfully>"
        assert "rotary.inv_freq" in state  # the caller's dictionary is unchanged
        saved[-1] *= 1.05  # more than bfloat16 rounds
        for strict in (True, False):
            with pytest.raises(RuntimeError, match="rotary.inv_freq holds the frequencies"):
                block.load_state_dict(with_frequencies(block, saved), strict=strict)


def test_frequencies_that_transformers_saved() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(head_dim=16)
    saved = LlamaRotaryEmbedding(config).inv_freq
    block = Block(rope_xp.from_hf_config(config))
    block.load_state_dict(with_frequencies(block, saved), strict=True)


def test_either_regime_of_longrope_fits() -> None:
    rope = RoPE(scaling=LongRoPE((1.0,) * 8, (2.5,) * 8, 4096, factor=8.0))
    block = Block(rope)
    for n in (1, 5000):
        saved = rope.for_length(n).frequencies(16)
        block.load_state_dict(with_frequencies(block, saved), strict=True)
    with pytest.raises(RuntimeError, match="holds the frequencies"):
        block.load_state_dict(with_frequencies(block, RoPE().frequencies(16) / 3))


def test_frequencies_of_another_shape() -> None:
    block = Block(RoPE(rotary_dim=8))
    with pytest.raises(RuntimeError, match=r"\(8\), and the RoPE of this Rotary has .* \(4\)"):
        block.load_state_dict(with_frequencies(block, RoPE().frequencies(16)))
    with pytest.raises(RuntimeError, match=r"has shape \(0,\), for which the RoPE has no freq"):
        Rotary(RoPE()).load_state_dict({"inv_freq": torch.empty(0)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        block.load_state_dict(block.state_dict() | {"rotary.scale": torch.ones(1)}, strict=True)


def test_frequencies_on_meta_are_none() -> None:
    block = Block(ROPE)
    saved = torch.empty(8, device="meta")
    block.load_state_dict(with_frequencies(block, saved), strict=True)


# --- gradients and compilers ---------------------------------------------------------------------


def test_activation_checkpointing() -> None:
    gradients = []
    for use_checkpoint in (False, True):
        block, x, positions = block_and_input()
        if use_checkpoint:
            out = torch.utils.checkpoint.checkpoint(block, x, positions, use_reentrant=False)
        else:
            out = block(x, positions)
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


# --- processes -----------------------------------------------------------------------------------


@pytest.mark.exhaustive  # calls on DTensors are in tests/backends/torch, and it holds nothing
def test_fsdp_and_dtensor(tmp_path: Path) -> None:
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
