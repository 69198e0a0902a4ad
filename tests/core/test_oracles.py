"""Other people's implementations give the same numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
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


def test_onnx_ships_eight_cases() -> None:
    assert len(CASES) == 8


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_onnx_node_tests(backend: Target, case: object) -> None:
    attributes = {a.name: a.i for a in case.model.graph.node[0].attribute}
    (x, cos, sin, *ids), (expected,) = case.data_sets[0]
    if ids:
        cos, sin = cos[ids[0]], sin[ids[0]]
    heads = attributes.get("num_heads")
    layout = "interleaved" if attributes.get("interleaved") else "half"
    shape, axes = x.shape, "bhsd"
    if heads:
        x, axes = x.reshape(*x.shape[:2], heads, -1), "bshd"
    got = backend.run(
        lambda x, c, s: rope_xp.apply_tables(x, c, s, layout=layout, axes=axes),
        *map(backend.make, (x, cos, sin)),
    )
    got = backend.back(got).reshape(shape)
    if backend.ulps == 0:
        np.testing.assert_array_equal(got, expected)  # the same operations in the same order
    else:
        np.testing.assert_allclose(got, expected, rtol=0, atol=3e-7)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_onnx_reference_operator(layout: str) -> None:
    oracle = pytest.importorskip("onnx.reference.ops.op_rotary_embedding")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 50, 16)).astype(np.float32)
    cos, sin = RoPE().cos_sin(np.arange(50) + 1_000_000, 16)
    tables = [np.broadcast_to(t, (2, 50, 8)) for t in (cos, sin)]
    expected = oracle.rotary_embedding(x, *tables, interleaved=layout == "interleaved")
    got = rope_xp.apply_tables(x, cos, sin, layout=layout, axes="bhsd")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_torch_onnx_operator(layout: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.standard_normal((2, 3, 50, 16)), dtype=torch.float32)
    cos, sin = RoPE().cos_sin(torch.arange(50) + 1_000_000, 16)
    expected = torch.onnx.ops.rotary_embedding(
        x, cos.expand(2, 50, 8), sin.expand(2, 50, 8), interleaved=layout == "interleaved"
    )
    got = rope_xp.apply_tables(x, cos, sin, layout=layout, axes="bhsd")
    torch.testing.assert_close(got, expected, rtol=0, atol=5e-7)


# --- transformers --------------------------------------------------------------------------------

# Its float32 angles are the reason for a loose bound that grows with the position: half an ulp of
# the angle from the product, and half from the frequency.
TOKENS = 64


def _angle_error(positions: np.ndarray, x: np.ndarray) -> float:
    return float(np.abs(positions).max() * 2.0**-23 * 1.5 * np.abs(x).max() * 2 + 1e-6)


def _llama(layer_type: str | None = None):
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as module

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    return module.LlamaRotaryEmbedding(config), module.apply_rotary_pos_emb, "half", {"base": 5e5}


def _deepseek():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

    return _llama()[0], apply_rotary_pos_emb_interleave, "interleaved_to_half", {"base": 5e5}


def _glm():
    from transformers import GlmConfig
    from transformers.models.glm import modeling_glm as module

    config = GlmConfig(head_dim=64, hidden_size=256, num_attention_heads=4)
    embedding = module.GlmRotaryEmbedding(config)
    options = {"base": 1e4, "rotary_dim": 2 * embedding.inv_freq.shape[0]}
    return embedding, module.apply_rotary_pos_emb, "interleaved", options


@pytest.mark.parametrize("model", [_llama, _deepseek, _glm], ids=["llama", "deepseek", "glm"])
@pytest.mark.parametrize("start", [0, 4000])
def test_transformers_apply_functions(model, start: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    embedding, apply, layout, options = model()
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, TOKENS, 64, generator=generator)
    k = torch.randn(2, 2, TOKENS, 64, generator=generator)
    positions = start + torch.arange(TOKENS)[None].expand(2, -1)
    expected = apply(q, k, *embedding(q, positions))
    got = rope_xp.apply(q, k, positions, layout=layout, axes="bhsd", **options)
    for g, e, x in zip(got, expected, (q, k), strict=True):
        np.testing.assert_allclose(g, e, rtol=0, atol=_angle_error(positions.numpy(), x.numpy()))
    # Given the same tables, only the order of operations is left.
    cos, sin = (t[..., : t.shape[-1] // 2] for t in embedding(q, positions))
    got_q = rope_xp.apply_tables(q, cos, sin, layout=layout, axes="bhsd")
    torch.testing.assert_close(got_q, expected[0], rtol=0, atol=1e-6)


# --- several position components -----------------------------------------------------------------


def contiguous(sections: tuple[int, ...]) -> tuple[int, ...]:
    """Return position_axes for M-RoPE as in Qwen2-VL: sections one after the other."""
    return tuple(axis for axis, n in enumerate(sections) for _ in range(n))


def interleaved(sections: tuple[int, ...]) -> tuple[int, ...]:
    """Return position_axes for M-RoPE as in Qwen3-VL: t h w t h w ... t t."""
    axes = [0] * sum(sections)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = [axis] * len(axes[axis : 3 * sections[axis] : 3])
    return tuple(axes)


def _qwen2_vl(sections):
    from transformers.models.qwen2_vl import modeling_qwen2_vl as module
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig

    return module, module.Qwen2VLRotaryEmbedding, Qwen2VLTextConfig, contiguous(sections)


def _qwen3_vl(sections):
    from transformers.models.qwen3_vl import modeling_qwen3_vl as module
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

    return module, module.Qwen3VLTextRotaryEmbedding, Qwen3VLTextConfig, interleaved(sections)


@pytest.mark.parametrize(
    ("model", "sections"),
    [(_qwen2_vl, (16, 24, 24)), (_qwen3_vl, (24, 20, 20))],
    ids=["qwen2-vl", "qwen3-vl"],
)
def test_transformers_mrope(model, sections: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    module, embedding, config_class, position_axes = model(sections)
    config = config_class(
        hidden_size=256,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=128,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": list(sections),
        },
    )
    config.head_dim = 128
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 2, TOKENS, 128, generator=generator)
    positions = torch.randint(0, 3000, (3, 2, TOKENS), generator=generator)
    expected, _ = module.apply_rotary_pos_emb(q, q, *embedding(config)(q, positions))
    rope = RoPE(base=1e6, layout="half", position_axes=position_axes)
    got = rope.rotate(q, positions, axes="bhsd")
    np.testing.assert_allclose(
        got, expected, rtol=0, atol=_angle_error(positions.numpy(), q.numpy())
    )


def test_components_on_every_backend(backend: Target) -> None:
    """Each pair turns by its own component, and by nothing of the others."""
    rng = np.random.default_rng(0)
    axes = interleaved((4, 2, 2))
    x = rng.standard_normal((2, 9, 3, 16)).astype(np.float32)
    positions = rng.integers(-1_000_000, 1_000_000, (3, 2, 9))
    rope = RoPE(position_axes=axes)
    expected = np.empty_like(x)
    for component in range(3):
        alone = truth(RoPE().rotate, x, positions[component])
        mine = np.repeat(np.array(axes) == component, 2)
        expected[..., mine] = alone[..., mine]
    got = backend.back(backend.run(rope.rotate, backend.make(x), backend.make(positions)))
    if backend.ulps == 0:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    counted = backend.back(rope.rotate(backend.make(x)))
    np.testing.assert_allclose(counted, truth(RoPE().rotate, x), rtol=0, atol=1e-6)
    if "float64" in backend.floats:
        wide = backend.back(rope.rotate(backend.make(x.astype(float)), positions))
        np.testing.assert_allclose(wide, expected, rtol=0, atol=3e-6)


def test_scalar_components_for_one_token(backend: Target) -> None:
    rope = RoPE(position_axes=(0, 1, 2, 0))
    x = np.ones((1, 2, 8), np.float32)
    got = rope.rotate(backend.make(x), [5, 6, 7])
    expected = truth(rope.rotate, x, [[5], [6], [7]])
    np.testing.assert_allclose(backend.back(got), expected, rtol=0, atol=3e-7)
