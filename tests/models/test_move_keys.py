"""Keys that move: a chunk prefilled at one position and moved is the chunk prefilled elsewhere."""

import contextlib
import copy

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import lmcache_rope
import torch
import transformers
from support import small_models
from support.cases import slow
from transformers import DynamicCache, StaticCache, cache_utils

import rope_xp
from rope_xp import RopeError
from rope_xp.integrations.transformers import drop, join, move_keys, patch, rescale, unpatch
from rope_xp.scaling import YaRN

TOKENS = torch.randint(7, 60, (2, 20), generator=torch.Generator().manual_seed(3))
LONG = np.arange(20)
# Partial, two bases and windows, latent and indexers, linear attention, complex numbers, LongRoPE.
SHORT = ["llama", "glm", "gemma3_text", "deepseek_v32", "olmo_hybrid", "llama4_text", "phi3"]
SINGLE = ("llama4_text", "dots3_note_text", "flint")  # code that computes in float32 always
OTHERS = sorted(small_models.FAMILIES.keys() - {*SHORT, "hunyuan_v1_dense"})


def make(name, dtype=torch.float64, **more):
    """Return a small model whose rotary tables are exact."""
    model = small_models.make(name, _experts_implementation="eager", **more)
    return patch(model.to(dtype))


def run(model, cache, tokens, positions):
    positions = torch.as_tensor(positions).expand(*np.shape(positions)[:-2], *tokens.shape)
    with torch.no_grad():
        return model(tokens, position_ids=positions, **{small_models.CACHE: cache})


def fill(model, start=0, kind="dynamic", tokens=TOKENS):
    """Return the cache of a chunk that was prefilled at a position."""
    cache = DynamicCache(config=None if kind == "all" else model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=64)
    run(model, cache, tokens, start + torch.arange(tokens.shape[1]))
    return cache


def arrays(cache):
    names = ("keys", "values", "indexer_keys")
    found = [getattr(layer, name, None) for layer in cache.layers for name in names]
    return [x for x in found if x is not None]


def error(ours, theirs):
    """Return the largest difference of two caches, of the largest entry of its array."""
    pairs = list(zip(arrays(ours), arrays(theirs), strict=True))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


@contextlib.contextmanager
def refused(cache, message):
    """Require an error, and that nothing was written."""
    before = copy.deepcopy(arrays(cache))
    with pytest.raises(RopeError, match=message):
        yield
    assert all(map(torch.equal, before, arrays(cache)))


# --- the same in every layer ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SHORT, *map(slow, OTHERS)])
def test_move_keys_makes_the_chunk_that_is_prefilled_there(name):
    model = make(name)
    old, new = 40 + LONG, 900 + LONG  # LongRoPE has long factors from 32 on
    exact = 1e-6 if name in SINGLE else 1e-12
    for kind in ("dynamic", "static"):
        cache, start, there = fill(model, 40, kind), fill(model, 40, kind), fill(model, 900, kind)
        assert error(cache, there) > 1e-3  # else nothing here could fail
        move_keys(cache, model, old, new)
        assert error(cache, there) < exact, kind
        move_keys(cache, model, new, old)
        assert error(cache, start) < exact, kind
    model = patch(unpatch(model).float())
    cache = fill(model, 40)
    move_keys(cache, model, old, new)
    assert error(cache, fill(model, 900)) < 2e-5


def test_move_keys_takes_the_factors_for_the_new_context():
    model = make("phi3", num_hidden_layers=1)  # deeper layers attend with other scores there
    cache = fill(model, 3)
    move_keys(cache, model, 3 + LONG, 900 + LONG)
    assert error(cache, fill(model, 900)) < 1e-12


@pytest.mark.parametrize("name", ["qwen2_vl_text", slow("qwen3_vl_text")])
def test_move_keys_moves_by_each_of_several_components(name):
    model = patch(small_models.multimodal_text(name).double())
    old = torch.arange(20) + torch.tensor([0, 3, 5])[:, None, None].expand(3, 2, 1)
    new = 2 * old + torch.tensor([400, 50, 6])[:, None, None]
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    for cache, positions in zip(caches, (old, new), strict=True):
        run(model, cache, TOKENS, positions)
    move_keys(caches[0], model, old, new)
    first, there = (cache.layers[0].keys for cache in caches)  # deeper ones have other inputs
    torch.testing.assert_close(first, there, rtol=0, atol=1e-12)
    chunk = fill(model, 3)
    move_keys(chunk, model, 3 + LONG, 50 + LONG)  # text, the same for all
    assert error(chunk, fill(model, 50)) < 1e-12


def test_move_keys_rounds_bfloat16_once():
    model = make("llama", torch.bfloat16)
    cache, exact = fill(model, 3), fill(model, 3)
    for layer in exact.layers:
        layer.keys = layer.keys.double()
    for moved in (cache, exact):
        move_keys(moved, model, 3 + LONG, 900 + LONG)
    for ours, right in zip(cache.layers, exact.layers, strict=True):
        half_a_unit = right.keys.abs() * 2**-8
        assert ((ours.keys - right.keys).abs() <= half_a_unit + 1e-6).all()


def test_move_keys_moves_rows_of_a_batch_and_single_layers_alone():
    model = make("llama", torch.float32)
    cache, before, there = fill(model), fill(model), fill(model, 50)
    move_keys(cache, model, None, torch.tensor(LONG + np.array([[0], [50]])), layers=[1])
    assert torch.equal(cache.layers[0].keys, before.layers[0].keys)
    assert torch.equal(cache.layers[1].keys[0], before.layers[1].keys[0])  # its positions stay
    torch.testing.assert_close(cache.layers[1].keys[1], there.layers[1].keys[1], rtol=0, atol=1e-4)


# --- tokens that go and come, in one layer, whose keys depend on their own token alone ------------

NAMES = [(n, k) for n in ("llama", "gemma3_text", "deepseek_v32") for k in ("dynamic", "static")]
NAMES += [("gemma3_text", "all")]


def assert_goes_on_alike(model, cache, right, start):
    """Require the same logits of the next tokens."""
    next_tokens = TOKENS[:, :3], start + torch.arange(3)
    ours, theirs = (run(model, c, *next_tokens).logits for c in (cache, right))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_drop_leaves_the_cache_of_the_rest(name, kind):
    model = make(name, num_hidden_layers=1, layer_types=None)
    spans, rest = [(2, 7), (1, 4), (10, 11)], [0, 7, 8, 9, *range(11, 20)]
    cache, right = fill(model, kind=kind), fill(model, kind=kind, tokens=TOKENS[:, rest])
    drop(cache, model, spans)
    assert cache.get_seq_length() == 13
    assert error(cache, right) < 1e-12
    assert_goes_on_alike(model, cache, right, 13)
    if name == "llama":  # the end, after which a window would need earlier tokens
        drop(cache, model, [(12, 16)])
        assert error(cache, fill(model, kind=kind, tokens=TOKENS[:, rest[:12]])) < 1e-12


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_drop_keeps_what_a_window_needs(kind):
    model = make("gemma3_text", num_hidden_layers=6)  # windows of 8 in layers 0 to 4
    cache = fill(model, kind=kind)
    with refused(cache, "layer 0 holds the tokens from 1[23] on"):
        drop(cache, model, [(2, 15)])
    drop(cache, model, [(2, 12)])
    assert [int(layer.get_seq_length()) for layer in cache.layers] == [10] * 6
    assert run(model, cache, TOKENS[:, :3], 10 + torch.arange(3)).logits.isfinite().all()


@pytest.mark.parametrize(("name", "kind"), NAMES)
@pytest.mark.parametrize("cut", [3, 9])
def test_join_makes_the_cache_of_all_tokens(name, kind, cut):
    model = make(name, num_hidden_layers=1, layer_types=None)
    prefix = fill(model, kind=kind, tokens=TOKENS[:, :cut])
    chunk = fill(model, kind=kind, tokens=TOKENS[:, cut:])
    before = copy.deepcopy(arrays(chunk))
    join(prefix, chunk, model)
    assert all(map(torch.equal, before, arrays(chunk)))
    assert prefix.get_seq_length() == 20
    assert_goes_on_alike(model, prefix, fill(model, kind=kind), 20)


def test_join_puts_the_chunk_at_an_offset():
    model = make("llama", num_hidden_layers=1)
    cache, there = fill(model), fill(model, 50)
    join(cache, fill(model), model, offset=50)
    torch.testing.assert_close(cache.layers[0].keys[..., 20:, :], there.layers[0].keys)


def test_join_needs_the_factors_of_longrope_to_stay_the_same():
    model = make("phi3", num_hidden_layers=1)  # trained on 32 tokens
    prefix, chunk = fill(model, tokens=TOKENS[:, :9]), fill(model, tokens=TOKENS[:, 9:])
    join(prefix, chunk, model)
    assert error(prefix, fill(model)) < 1e-12
    with refused(prefix, "layer 0 has other frequencies for 40 tokens than for the 20 of prefix"):
        join(prefix, fill(model), model)


def test_rescale_makes_keys_of_the_other_scaling():
    model = make("llama", num_hidden_layers=1)
    rule = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    rule["rope_theta"] = 10000.0
    scaled = make("llama", num_hidden_layers=1, rope_parameters=rule)
    scaling = YaRN(4.0, original_max_position_embeddings=64)
    for to in (scaling, scaled, scaled.config, rope_xp.plan(scaled.config)[0].rope):
        cache = fill(model, 5)
        rescale(cache, model, to, positions=5 + LONG)
        assert error(cache, fill(scaled, 5)) < 1e-12
    with refused(cache, "to must rotate the same pairs; layer 0 has"):
        rescale(cache, model, rope_xp.RoPE(layout="half", rotary_dim=8))


# --- other ways to store keys --------------------------------------------------------------------


class Rounded(cache_utils.QuantizedLayer):
    """Quantized to float16, in place of packages that transformers calls."""

    def _quantize(self, tensor, axis):
        return tensor.half(), axis

    def _dequantize(self, q_tensor):
        return q_tensor[0].float()


@pytest.mark.parametrize(
    ("layer", "tolerance"), [(Rounded, 2**-9), (cache_utils.Fp8QuantizedLayer, 0.15)]
)
def test_move_keys_and_drop_quantize_again(layer, tolerance):
    model = make("llama", torch.float32, num_hidden_layers=1)

    def fill_both(start, tokens):
        cache, positions = cache_utils.Cache(layers=[layer()]), start + LONG[: tokens.shape[1]]
        for part in (np.s_[:14], np.s_[14:]):  # what is quantized, and what is not yet
            run(model, cache, tokens[:, part], positions[part])
        return cache

    def read(cache):
        (found,) = cache.layers
        rest = [found.keys] if found.keys.ndim == 4 else []
        return torch.cat([found._dequantize(found._quantized_keys), *rest], -2)

    def assert_near(cache, right):
        difference = (read(cache) - read(right)).abs().max()
        assert difference < tolerance * read(right).abs().max()

    cache = fill_both(3, TOKENS)
    move_keys(cache, model, 3 + LONG, 90 + LONG)
    assert_near(cache, fill_both(90, TOKENS))
    drop(cache, model, [(2, 7)], positions=90 + LONG)
    assert_near(cache, fill_both(90, TOKENS[:, [0, 1, *range(7, 20)]]))
    assert cache.get_seq_length() == 15


def test_lmcache_fused_rope_moves_keys_of_a_slice_in_place():
    """In place of a class of LMCache that moves full rotations alone."""
    rope = rope_xp.RoPE(rotary_dim=16, rotary_offset=-16)
    old, new = torch.arange(3, 23), torch.arange(900, 920)
    raw = torch.randn(20, 2, 64, generator=torch.Generator().manual_seed(0))
    keys = rope.rotate(raw, old).flatten(1)
    assert lmcache_rope.FusedRope(rope, 64)(old, new, keys) is keys
    torch.testing.assert_close(keys, rope.rotate(raw, new).flatten(1))


# --- nothing is written before all is checked ----------------------------------------------------

LLAMA, WIDE = (
    transformers.AutoConfig.for_model("llama", **{**small_models.SMALL, **more})
    for more in ({}, {"head_dim": 32, "num_hidden_layers": 6})
)
WRONG = {
    r"shape \(20,\) or \(2, 20\)": lambda m, c: move_keys(c, m, None, LONG[1:]),
    r"got \(3, 20\)": lambda m, c: move_keys(c, m, None, np.ones((3, 20))),
    "must lie between": lambda m, c: move_keys(c, m, None, np.full(20, 2**31)),
    "to must have 6 layers, as model has; got 2": lambda m, c: rescale(c, m, LLAMA),
    "layers must be >= 0 and below 6; got": lambda m, c: move_keys(c, m, None, None, layers=[6]),
    "cache has 6 layers, and the configuration 2": lambda _, c: move_keys(c, LLAMA, None, None),
    "its keys have 16 components, not 32": lambda _, c: move_keys(c, WIDE, None, LONG),
    "spans must be pairs 0 <= start < stop <= 20": lambda m, c: drop(c, m, [(2, 21)]),
    "spans must leave at least one token": lambda m, c: drop(c, m, [(0, 20)]),
    "layer 0 of both caches must fit": lambda m, c: join(c, fill(m, tokens=TOKENS[:1]), m),
    "layer 0 of chunk_cache holds the tokens from": lambda m, c: join(fill(m, kind="all"), c, m),
    "prefix_cache stores at most 64 tokens; got 80": lambda m, c: join(
        c, fill(m, kind="static", tokens=TOKENS.repeat(1, 3)), m
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_move_keys_drop_and_join_refuse_a_wrong_argument(message):
    model = make("gemma3_text")
    cache = fill(model, kind="static")
    with refused(cache, message):
        WRONG[message](model, cache)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "deepseek_v4",
            move_keys,
            r"layer 0 of cache \(DeepseekV4HCACache\): rope_xp does not know",
        ),
        ("hunyuan_v1_dense", move_keys, "multiplies keys by the weights of a norm after their rot"),
        ("olmo_hybrid", drop, r"layer 0 of cache \(LinearAttentionLayer\): its state"),
        ("olmo_hybrid", join, "layer 0 of prefix_cache"),
    ],
)
def test_move_keys_drop_and_join_refuse_layers_that_they_cannot_change(name, change, message):
    model = make(name)
    cache = fill(model)
    given = {
        move_keys: (model, None, 1 + LONG),
        drop: (model, [(2, 5)]),
        join: (fill(model), model),
    }
    with refused(cache, message):
        change(cache, *given[change])


def test_move_keys_refuses_what_is_no_cache():
    with pytest.raises(TypeError, match="must be a cache of transformers 5.*got tuple"):
        move_keys((), LLAMA, None, None)
