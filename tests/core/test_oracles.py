"""Other people's implementations give the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.equality import check
from support.targets import Target, truth

import rope_xp
from rope_xp import RoPE


def onnx_cases() -> list[object]:
    """Return the node tests of RotaryEmbedding-23 that ONNX ships."""
    node = pytest.importorskip("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it makes the cases of every operator, some of which warn
        cases = node.collect_testcases("RotaryEmbedding")
    return [case for case in cases if not case.name.endswith("_expanded")]


CASES = onnx_cases()


@pytest.mark.covering
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_onnx_node_tests(backend: Target, case: Any) -> None:
    assert len(CASES) == 8
    attributes = {a.name: a.i for a in case.model.graph.node[0].attribute}
    (x, cos, sin, *ids), (expected,) = case.data_sets[0]
    if ids:
        cos, sin = cos[ids[0]], sin[ids[0]]
    heads = attributes.get("num_heads")
    layout = "interleaved" if attributes.get("interleaved") else "half"
    shape, axes = x.shape, "bhsd"
    if heads:
        x, axes = x.reshape(*x.shape[:2], heads, -1), "bshd"
    rotated = backend.run(
        lambda x, c, s: rope_xp.apply_tables(x, c, s, layout=layout, axes=axes),
        *map(backend.make, (x, cos, sin)),
    )
    bound = 3e-7 if backend.ulps else 0  # the same operations in the same order
    np.testing.assert_allclose(backend.back(rotated).reshape(shape), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("library", ["onnx", "torch"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_onnx_operators(layout: str, library: str) -> None:
    """The reference of ONNX has the same operations in the same order; torch's own has not."""
    x = np.random.default_rng(0).standard_normal((2, 3, 50, 16), np.float32)
    cos, sin = RoPE().cos_sin(np.arange(50) + 1_000_000, 16)
    arrays = [x, *(np.broadcast_to(t, (2, 50, 8)).copy() for t in (cos, sin))]
    if library == "onnx":
        rotate = pytest.importorskip("onnx.reference.ops.op_rotary_embedding").rotary_embedding
    else:
        torch = pytest.importorskip("torch")
        rotate, arrays = torch.onnx.ops.rotary_embedding, [torch.from_numpy(t) for t in arrays]
    expected = rotate(*arrays, interleaved=layout == "interleaved")
    rotated = rope_xp.apply_tables(x, cos, sin, layout=layout, axes="bhsd")
    bound = 0 if library == "onnx" else 5e-7
    np.testing.assert_allclose(rotated, np.asarray(expected), rtol=0, atol=bound)


# --- transformers --------------------------------------------------------------------------------

# Its float32 angles are the reason for a loose bound that grows with the position: half an ulp of
# the angle from the product, and half from the frequency.
TOKENS = 64


def _angle_error(positions: Any, x: Any) -> float:
    return float(abs(positions).max() * 2.0**-23 * 1.5 * abs(x).max() * 2 + 1e-6)


def _llama() -> tuple[Any, ...]:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as module

    parameters = {"rope_type": "default", "rope_theta": 500000.0}
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=parameters
    )
    return module.LlamaRotaryEmbedding(config), module.apply_rotary_pos_emb, "half", {"base": 5e5}


def _deepseek() -> tuple[Any, ...]:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

    return _llama()[0], apply_rotary_pos_emb_interleave, "interleaved_to_half", {"base": 5e5}


def _glm() -> tuple[Any, ...]:
    from transformers import GlmConfig
    from transformers.models.glm import modeling_glm as module

    embedding = module.GlmRotaryEmbedding(
        GlmConfig(head_dim=64, hidden_size=256, num_attention_heads=4)
    )
    options = {"base": 1e4, "rotary_dim": 2 * embedding.inv_freq.shape[0]}
    return embedding, module.apply_rotary_pos_emb, "interleaved", options


@pytest.mark.parametrize("model", [_llama, _deepseek, _glm])
@pytest.mark.parametrize("start", [0, 4000])
def test_transformers_apply_functions(model: Callable[[], Any], start: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    embedding, apply, layout, options = model()
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, TOKENS, 64, generator=generator) for heads in (4, 2))
    positions = start + torch.arange(TOKENS)[None].expand(2, -1)
    expected = apply(q, k, *embedding(q, positions))
    rotated = rope_xp.apply(q, k, positions, layout=layout, axes="bhsd", **options)
    for y, theirs, x in zip(rotated, expected, (q, k), strict=True):
        np.testing.assert_allclose(y, theirs, rtol=0, atol=_angle_error(positions, x))
    # Given the same tables, only the order of operations is left.
    cos, sin = (t[..., : t.shape[-1] // 2] for t in embedding(q, positions))
    by_tables = rope_xp.apply_tables(q, cos, sin, layout=layout, axes="bhsd")
    torch.testing.assert_close(by_tables, expected[0], rtol=0, atol=1e-6)


# --- several position components -----------------------------------------------------------------


def interleave(sections: tuple[int, ...]) -> tuple[int, ...]:
    """Return position_axes for M-RoPE as in Qwen3-VL: t h w t h w ... t t."""
    axes = [0] * sum(sections)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = [axis] * len(axes[axis : 3 * sections[axis] : 3])
    return tuple(axes)


def _qwen2_vl() -> tuple[Any, ...]:
    from transformers.models.qwen2_vl import modeling_qwen2_vl as module
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig

    axes = (0,) * 16 + (1,) * 24 + (2,) * 24  # sections one after the other
    return module, module.Qwen2VLRotaryEmbedding, Qwen2VLTextConfig, (16, 24, 24), axes


def _qwen3_vl() -> tuple[Any, ...]:
    from transformers.models.qwen3_vl import modeling_qwen3_vl as module
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

    sections = (24, 20, 20)
    embedding = module.Qwen3VLTextRotaryEmbedding
    return module, embedding, Qwen3VLTextConfig, sections, interleave(sections)


@pytest.mark.parametrize("model", [_qwen2_vl, _qwen3_vl])
def test_transformers_mrope(model: Callable[[], Any]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    module, embedding, config_class, sections, position_axes = model()
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)}
    config = config_class(hidden_size=256, num_attention_heads=2, rope_parameters=parameters)
    config.head_dim = 128
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 2, TOKENS, 128, generator=generator)
    positions = torch.randint(0, 3000, (3, 2, TOKENS), generator=generator)
    expected, _ = module.apply_rotary_pos_emb(q, q, *embedding(config)(q, positions))
    rope = RoPE(base=1e6, layout="half", position_axes=position_axes)
    rotated = rope.rotate(q, positions, axes="bhsd")
    np.testing.assert_allclose(rotated, expected, rtol=0, atol=_angle_error(positions, q))


def test_components_on_every_backend(backend: Target) -> None:
    """Each pair turns by its own component, and by nothing of the others."""
    rng = np.random.default_rng(0)
    axes = interleave((4, 2, 2))
    x = rng.standard_normal((2, 9, 3, 16), np.float32)
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
