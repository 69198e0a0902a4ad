"""No false alarm over the rotations of other libraries: their code, or their formulae."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from support.peers import PEERS, ROWS, Peer

from rope_xp import RoPE, scaling
from rope_xp.testing import Identified, assert_rotates, identify
from rope_xp.testing._compare import list_differences


def right(found: Identified, rope: RoPE, head_dim: int, refuses: bool = False) -> None:
    """Check that a RoPE was found, without a fault and as exact as products in float32 are."""
    expected = replace(rope, rotary_dim=rope.rotary_dim or head_dim)
    assert list_differences(replace(found.rope, scaling=rope.scaling), expected, head_dim) == []
    assert type(found.rope.scaling) is type(rope.scaling)
    assert found.frequencies == pytest.approx(expected.frequencies(head_dim), rel=1e-6)
    assert found.faults == ()
    assert found.error[4096] < 5e-3
    assert bool([n for n in found.notes if "are refused" in n]) == refuses


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_formulae(peer: Peer) -> None:
    module = pytest.importorskip(peer.library)
    found = identify(
        peer.function,
        peer.head_dim,
        axes=peer.axes,
        tables=peer.tables,
        like=module.zeros(1, dtype=module.float32),
    )
    right(found, peer.rope, peer.head_dim, peer.refuses)
    last = ROWS - 1 if peer.refuses else 2 * ROWS
    assert_rotates(
        peer.function, peer.rope, peer.head_dim, axes=peer.axes, tables=peer.tables,
        positions=(0, 5, 4097, last), like=module.zeros(1, dtype=module.float32),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "rope"),
    [
        ({"theta": 5e5}, RoPE(base=5e5)),
        ({"theta_rescale_factor": 8.0}, RoPE(scaling=scaling.NTK(8.0))),
        ({"learned_freq": True}, RoPE()),  # as they are before they learn
    ],
    ids=str,
)
def test_rotary_embedding_torch(given: dict[str, Any], rope: RoPE) -> None:
    theirs = pytest.importorskip("rotary_embedding_torch")
    module = theirs.RotaryEmbedding(64, cache_if_possible=False, **given)

    def function(x: Any, positions: Any) -> Any:
        return theirs.apply_rotary_emb(module.forward(positions.float()), x)

    right(identify(function, 64, like=torch.zeros(1)), rope, 64)


def test_rotary_embedding_torch_with_xpos() -> None:
    """Its factor is relative to the middle of a call, and so it is no RoPE."""
    theirs = pytest.importorskip("rotary_embedding_torch")
    module = theirs.RotaryEmbedding(64, use_xpos=True, cache_if_possible=False)

    def function(x: Any, positions: Any) -> Any:
        angles = module.forward(positions.float())
        return theirs.apply_rotary_emb(angles, x, scale=module.get_scale(positions.float()))

    with pytest.raises(ValueError, match="turned otherwise alone in a call"):
        identify(function, 64, like=torch.zeros(1))


@pytest.mark.parametrize("interleaved", [0, 1])
def test_onnx(interleaved: int) -> None:
    onnx = pytest.importorskip("onnx")
    reference = importlib.import_module("onnx.reference")
    helper = onnx.helper
    node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin"], ["y"], interleaved=interleaved)
    values = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None)
        for n in ["x", "cos", "sin", "y"]
    ]
    graph = helper.make_graph([node], "rotation", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    session = reference.ReferenceEvaluator(model)

    def tables(positions: Any) -> Any:
        angles = positions[..., None] * 10000.0 ** (-np.arange(16) / 16)
        return tuple(f(angles).astype(np.float32) for f in (np.cos, np.sin))

    def function(x: Any, cos: Any, sin: Any) -> Any:
        each = (len(x), *cos.shape[-2:])
        given = {"x": x, "cos": np.broadcast_to(cos, each), "sin": np.broadcast_to(sin, each)}
        return session.run(None, given)[0]

    rope = RoPE(layout="interleaved" if interleaved else "half")
    found = identify(function, 32, tables=tables, like=np.zeros(1, np.float32))
    right(found, rope, 32)
