"""Keys that move: a chunk prefilled at one position and moved is the chunk prefilled elsewhere."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

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
# Partial, two bases and windows, latent and indexers, linear attention, complex numbers, LongRoPE.
SHORT = ["llama", "glm", "gemma3_text", "deepseek_v32", "olmo_hybrid", "llama4_text", "phi3"]
_WEIGHTS = "multiplies keys by the weights of a norm after their rotation"
REFUSED = {
    "deepseek_v4": r"layer 0 of cache \(DeepseekV4HCACache\): rope_xp does not know how",
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), _WEIGHTS),
}
SINGLE = ("llama4_text", "dots3_note_text", "flint")  # code that computes in float32 always
MOVED = [
    *SHORT,
    *(slow(name) for name in small_models.DISTINCT if name not in {*SHORT, *REFUSED}),
    *(slow(name) for name in small_models.FAMILIES if name not in small_models.DISTINCT),
]


def make(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """Return a small model whose rotary tables are exact."""
    more = small_models.FAMILIES[name] | more | {"_experts_implementation": "eager"}
    return patch(small_models.make(name, **more).to(dtype))


def fill(model: Any, start: int = 0, kind: str = "dynamic", tokens: Any = TOKENS) -> Any:
    """Return the cache of a chunk that was prefilled at a position."""
    cache = DynamicCache(config=None if kind == "all" else model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=64)
    positions = (start + torch.arange(tokens.shape[1])).expand(tokens.shape)
    with torch.no_grad():
        model(tokens, position_ids=positions, **{small_models.CACHE: cache})
    return cache


def arrays(cache: Any) -> list[torch.Tensor]:
    names = ("keys", "values", "indexer_keys")
    found = [getattr(layer, name, None) for layer in cache.layers for name in names]
    return [x for x in found if x is not None]


def error(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two caches, of the largest entry of its array."""
    pairs = list(zip(arrays(ours), arrays(theirs), strict=True))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


@contextlib.contextmanager
def refused(cache: Any, message: str) -> Iterator[None]:
    """Require an error, and that nothing was written."""
    before = copy.deepcopy(arrays(cache))
    with pytest.raises(RopeError, match=message):
        yield
    assert all(map(torch.equal, before, arrays(cache)))


# --- the same in every layer ---------------------------------------------------------------------


@pytest.mark.parametrize("name", MOVED)
def test_moved_chunk_is_the_chunk_prefilled_there(name: str) -> None:
    model = make(name)
    old, new = np.arange(40, 60), np.arange(900, 920)  # LongRoPE has long factors from 32 on
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


def test_keys_move_onto_the_factors_for_their_new_context() -> None:
    model = make("phi3", num_hidden_layers=1)  # deeper layers attend with other scores there
    cache = fill(model, 3)
    move_keys(cache, model, np.arange(3, 23), np.arange(900, 920))
    assert error(cache, fill(model, 900)) < 1e-12


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_cannot_be_moved_are_refused_with_the_reason(name: str) -> None:
    model = small_models.make(name, **small_models.FAMILIES.get(name, {}))
    cache = fill(model)
    with refused(cache, REFUSED[name]):
        move_keys(cache, model, None, np.arange(20) + 1)


@pytest.mark.parametrize("name", ["qwen2_vl_text", slow("qwen3_vl_text")])
def test_keys_of_several_components_move_by_each(name: str) -> None:
    model = patch(small_models.multimodal_text(name).double())
    old = torch.arange(20) + torch.tensor([0, 3, 5])[:, None, None].expand(3, 2, 1)
    new = 2 * old + torch.tensor([400, 50, 6])[:, None, None]
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    for positions, cache in zip((old, new), caches, strict=True):
        with torch.no_grad():
            model(TOKENS, position_ids=positions, **{small_models.CACHE: cache})
    move_keys(caches[0], model, old, new)
    first = [[x.layers[0].keys] for x in caches]  # other differences of positions, so one layer
    assert max(float((a - b).abs().max()) for a, b in zip(*first, strict=True)) < 1e-12
    chunk = fill(model, 3)
    move_keys(chunk, model, np.arange(3, 23), np.arange(50, 70))  # text, the same for all
    assert error(chunk, fill(model, 50)) < 1e-12


def test_bfloat16_keys_are_rounded_once_a_move() -> None:
    model = make("llama", torch.bfloat16)
    cache, exact, there = fill(model, 3), fill(model, 3), fill(model, 900)
    for layer in exact.layers:
        layer.keys = layer.keys.double()
    for moved in (cache, exact):
        move_keys(moved, model, np.arange(3, 23), np.arange(900, 920))

    def roundings(ours: Any, right: Any) -> float:
        """Return the error in halves of a unit of the 8 bits of a pair."""
        ours, right = (x.keys.double().unflatten(-1, (2, -1)) for x in (ours, right))
        return float(((ours - right).abs() / (right.norm(dim=-2, keepdim=True) * 2**-8)).max())

    assert max(map(roundings, cache.layers, exact.layers)) < 1.001
    # Only keys of the first layer have the same inputs at both places. The rounding of each
    # component at the old one turns into both: the root of 2, and one at either end.
    assert roundings(cache.layers[0], there.layers[0]) < 2 + 2**0.5


def test_a_thousand_moves_add_up_to_their_sum() -> None:
    model = make("llama", torch.float32, num_hidden_layers=1)
    cache, rng = fill(model), np.random.default_rng(0)
    start = 0
    for _ in range(1000):
        shift = int(rng.integers(1, 1000))
        move_keys(cache, model, start + np.arange(20), start + shift + np.arange(20))
        start += shift
    assert error(cache, fill(model, start)) < 2e-5  # a walk of roundings of 6e-8


def test_rows_of_a_batch_and_single_layers_move_alone() -> None:
    model = make("llama", torch.float32)
    cache, before, there = fill(model), fill(model), fill(model, 50)
    new = np.arange(20) + np.array([[0], [50]])
    move_keys(cache, model, None, torch.tensor(new), layers=[1])
    assert torch.equal(cache.layers[0].keys, before.layers[0].keys)
    assert torch.equal(cache.layers[1].keys[0], before.layers[1].keys[0])  # its positions stay
    torch.testing.assert_close(cache.layers[1].keys[1], there.layers[1].keys[1], rtol=0, atol=1e-4)


# --- tokens that go and come, in one layer, whose keys depend on their own token alone ------------

ONE = {"num_hidden_layers": 1}
NAMES = [(n, k) for n in ("llama", "gemma3_text", "deepseek_v32") for k in ("dynamic", "static")]
NAMES += [("gemma3_text", "all")]


def step(model: Any, cache: Any, start: int) -> torch.Tensor:
    """Return the logits of the next tokens."""
    positions = (start + torch.arange(3)).expand(2, 3)
    with torch.no_grad():
        return model(TOKENS[:, :3], position_ids=positions, **{small_models.CACHE: cache}).logits


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_after_a_drop_the_cache_is_that_of_the_rest(name: str, kind: str) -> None:
    model = make(name, num_hidden_layers=1, layer_types=None)
    spans, rest = [(2, 7), (1, 4), (10, 11)], [0, 7, 8, 9, *range(11, 20)]
    cache, right = fill(model, kind=kind), fill(model, kind=kind, tokens=TOKENS[:, rest])
    drop(cache, model, spans)
    assert cache.get_seq_length() == 13
    assert error(cache, right) < 1e-12
    torch.testing.assert_close(step(model, cache, 13), step(model, right, 13), rtol=0, atol=1e-10)
    if name == "llama":  # the end, after which a window would need earlier tokens
        drop(cache, model, [(12, 16)])
        assert error(cache, fill(model, kind=kind, tokens=TOKENS[:, rest[:12]])) < 1e-12


def test_a_window_keeps_what_it_needs() -> None:
    model = make("gemma3_text", num_hidden_layers=6)  # windows of 8 in layers 0 to 4
    for kind in ("dynamic", "static"):
        cache = fill(model, kind=kind)
        with refused(cache, "layer 0 holds the tokens from 1[23] on"):
            drop(cache, model, [(2, 15)])
        drop(cache, model, [(2, 12)])
        assert [int(layer.get_seq_length()) for layer in cache.layers] == [10] * 6
        assert step(model, cache, 10).isfinite().all()


@pytest.mark.parametrize(("name", "kind"), NAMES)
@pytest.mark.parametrize("cut", [3, 9])
def test_joined_caches_are_that_of_all_tokens(name: str, kind: str, cut: int) -> None:
    model = make(name, num_hidden_layers=1, layer_types=None)
    prefix = fill(model, kind=kind, tokens=TOKENS[:, :cut])
    chunk = fill(model, kind=kind, tokens=TOKENS[:, cut:])
    before, right = copy.deepcopy(arrays(chunk)), fill(model, kind=kind)
    join(prefix, chunk, model)
    assert all(map(torch.equal, before, arrays(chunk)))
    assert prefix.get_seq_length() == 20
    torch.testing.assert_close(step(model, prefix, 20), step(model, right, 20), rtol=0, atol=1e-10)


def test_caches_join_where_the_factors_of_longrope_stay_the_same() -> None:
    model = make("phi3", num_hidden_layers=1)  # trained on 32 tokens
    prefix, chunk = fill(model, tokens=TOKENS[:, :9]), fill(model, tokens=TOKENS[:, 9:])
    join(prefix, chunk, model)
    right = fill(model)
    torch.testing.assert_close(step(model, prefix, 20), step(model, right, 20), rtol=0, atol=1e-10)
    with refused(prefix, "layer 0 has other frequencies for 43 tokens than for the 23 of prefix"):
        join(prefix, fill(model), model)


def test_rescaled_keys_are_those_of_the_other_scaling() -> None:
    model = make("llama", **ONE)
    rule = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    scaled = make("llama", **ONE, rope_parameters={**rule, "rope_theta": 10000.0})
    scaling = YaRN(4.0, original_max_position_embeddings=64)
    for to in (scaling, scaled, scaled.config, rope_xp.plan(scaled.config)[0].rope):
        cache = fill(model, 5)
        rescale(cache, model, to, positions=np.arange(5, 25))
        assert error(cache, fill(scaled, 5)) < 1e-12
    with pytest.raises(RopeError, match="to must rotate the same pairs; layer 0 has"):
        rescale(cache, model, rope_xp.RoPE(layout="half", rotary_dim=8))


# --- other ways to store keys --------------------------------------------------------------------


class Rounded(cache_utils.QuantizedLayer):  # type: ignore[misc]  # torch has no types here
    """Quantized to float16, in place of packages that transformers calls."""

    def _quantize(self, tensor: Any, axis: int) -> Any:
        return tensor.half(), axis

    def _dequantize(self, q_tensor: Any) -> Any:
        return q_tensor[0].float()


@pytest.mark.parametrize(
    ("layer", "tolerance"), [(Rounded, 2**-9), (cache_utils.Fp8QuantizedLayer, 0.15)]
)
def test_quantized_keys_are_quantized_again(layer: Any, tolerance: float) -> None:
    model = make("llama", torch.float32, **ONE)

    def fill_both(start: int, tokens: Any) -> Any:
        cache = cache_utils.Cache(layers=[layer()])
        for i in (slice(0, 14), slice(14, None)):
            positions = (start + torch.arange(tokens.shape[1])[i]).expand(2, -1)
            with torch.no_grad():
                model(tokens[:, i], position_ids=positions, **{small_models.CACHE: cache})
        return cache

    def read(cache: Any) -> torch.Tensor:
        (found,) = cache.layers
        rest = [found.keys] if found.keys.ndim == 4 else []
        return torch.cat([found._dequantize(found._quantized_keys), *rest], -2)

    cache, there = fill_both(3, TOKENS), fill_both(90, TOKENS)
    move_keys(cache, model, np.arange(3, 23), np.arange(90, 110))
    assert (read(cache) - read(there)).abs().max() < tolerance * read(there).abs().max()
    drop(cache, model, [(2, 7)], positions=np.arange(90, 110))
    rest = fill_both(90, TOKENS[:, [0, 1, *range(7, 20)]])
    assert (read(cache) - read(rest)).abs().max() < tolerance * read(rest).abs().max()
    assert cache.get_seq_length() == 15


# --- nothing is written before all is checked ----------------------------------------------------

WRONG: dict[str, Any] = {
    r"shape \(20,\) or \(2, 20\)": lambda m, c: move_keys(c, m, None, np.arange(19)),
    r"got \(3, 20\)": lambda m, c: move_keys(c, m, None, np.ones((3, 20))),
    "must lie between": lambda m, c: move_keys(c, m, None, np.full(20, 2**31)),
    "to must have 6 layers, as model has; got 2": lambda m, c: rescale(c, m, LLAMA),
    "layers must be >= 0 and below 6; got": lambda m, c: move_keys(c, m, None, None, layers=[6]),
    "cache has 6 layers, and the configuration 2": lambda _, c: move_keys(c, LLAMA, None, None),
    "its keys have 16 components, not 32": lambda _, c: move_keys(c, WIDE, None, np.ones(20)),
    "spans must be pairs 0 <= start < stop <= 20": lambda m, c: drop(c, m, [(2, 21)]),
    "spans must leave at least one token": lambda m, c: drop(c, m, [(0, 20)]),
    "prefix_cache stores at most 64 tokens; got 80": lambda m, c: join(c, fill(m), m),
}
LLAMA = transformers.AutoConfig.for_model("llama", **small_models.SMALL)
WIDE = transformers.AutoConfig.for_model(
    "llama", **{**small_models.SMALL, "head_dim": 32, "num_hidden_layers": 6}
)


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_an_error_before_anything_is_written(message: str) -> None:
    model = make("gemma3_text")
    cache = fill(model, kind="static")
    if "at most" in message:
        for _ in range(2):
            join(cache, fill(model, kind="static"), model)
    with refused(cache, message):
        WRONG[message](model, cache)


def test_a_state_of_all_tokens_cannot_lose_any() -> None:
    model = make("olmo_hybrid")
    cache = fill(model)
    with pytest.raises(RopeError, match=r"layer 0 of cache \(LinearAttentionLayer\): its state"):
        drop(cache, model, [(2, 5)])
    with pytest.raises(RopeError, match="layer 0 of prefix_cache"):
        join(cache, fill(model), model)
    with pytest.raises(TypeError, match="must be a cache of transformers 5.*got tuple"):
        move_keys((), model, None, None)
