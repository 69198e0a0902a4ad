"""Encodings that RoFormer reviews: against mpmath, and the code of transformers."""

import numpy as np
import pytest
from support.oracles import true_cos_sin
from support.targets import rows

from rope_xp.papers import encodings

LIBRARIES = ("numpy", "array-api-strict", "array-api-strict:device1", "torch", "jax-jit", "dask")


@pytest.mark.parametrize("backend", rows(LIBRARIES))
def test_sinusoidal_is_that_of_mpmath(backend):
    positions, dim = [0, 7, 1_000_000], 10
    cos, sin = true_cos_sin(positions, 10000.0, dim)
    exact = np.stack([sin, cos], axis=-1).reshape(3, dim)
    array = backend.make(np.array(positions, np.int32))
    result = backend.run(lambda p: encodings.sinusoidal(p, dim), array)
    assert type(result) is type(backend.make(np.zeros(1, np.float32)))
    # The bound that RoPE.cos_sin states below position 2**22.
    np.testing.assert_allclose(backend.back(result), exact, rtol=0, atol=2.4e-7)
    wide = encodings.sinusoidal(positions, dim, dtype=np.float64)
    # float64 angles of 10**6 radians are off by 10**6 * 2**-52.
    np.testing.assert_allclose(wide, exact, rtol=0, atol=2.3e-10)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (8, 20), (33, 100), (4, 3), (64, 1000), (320, 800)]
)
def test_t5_buckets_are_those_of_transformers(buckets, max_distance, bidirectional):
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = torch.arange(-1500, 1501)
    options = {"num_buckets": buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    expected = t5.T5Attention._relative_position_bucket(relative, **options)
    result = encodings.t5_buckets(relative, **options)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    swapped = encodings.t5_buckets(relative.numpy().astype(">i4"), **options)
    np.testing.assert_array_equal(swapped, result)


def test_deberta_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    heads, d, n, span = 2, 4, 9, 5
    relative = {"relative_attention": True, "max_relative_positions": span, "share_att_key": True}
    config = deberta.DebertaV2Config(
        hidden_size=heads * d, num_attention_heads=heads, pos_att_type=["c2p", "p2c"], **relative
    )
    torch.manual_seed(20211104)
    layer = deberta.DisentangledSelfAttention(config).eval()
    hidden, embedded = torch.randn(1, n, heads * d), torch.randn(2 * span, heads * d)
    q, k, table_q, table_k = (
        project(x).unflatten(-1, (heads, d))
        for x in (hidden, embedded)
        for project in (layer.query_proj, layer.key_proj)
    )
    result = encodings.deberta(q, k, table_q, table_k, scale=(3 * d) ** -0.5)
    options = {"output_attentions": True, "relative_pos": None, "rel_embeddings": embedded}
    with torch.no_grad():
        _, attention = layer(hidden, torch.ones(1, 1, n, n), **options)
    # Both are float32 softmaxes of sums of 12 products: some 2**-24 each.
    torch.testing.assert_close(torch.softmax(result, -1)[0], attention[0], rtol=0, atol=2e-6)
