"""The layer of torch: casts, checkpoints, compilers, learned frequencies, sharded models."""

import copy
import pickle
import re

import pytest
from support.cases import slow
from support.layers import LONGROPE, ROPES, assert_same, inputs
from support.lazily import Lazily

from rope_xp import RoPE, RopeError, apply_frequencies

torch = pytest.importorskip("torch")

from rope_xp.layers.torch import Rotary  # noqa: E402  # needs torch

dynamo = Lazily("torch._dynamo.testing")

SIZES = {"shared": {"head_dim": 16}, "head": {"head_dim": 16, "heads": 2}}


def learner(rope=ROPES["half"], learn="head", **options):
    return Rotary(rope, learn=learn, **{**SIZES[learn], **options})


def empty(model):
    """Return a model with whatever lay in memory, and its parameters as they start."""
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(7.0)
    for layer in model:
        layer.reset_parameters()
    return model


ROUND_TRIPS = {
    "bfloat16": lambda m: m.to("cpu", torch.bfloat16),
    "back again": lambda m: m.half().float(),
    "meta": lambda m: empty(m.to("meta", torch.float16)),
    "meta from the start": lambda m: empty(m.bfloat16()),
    "assigned": lambda m: (m.load_state_dict(m.state_dict(), assign=True), m)[1],
    "copied": lambda m: pickle.loads(pickle.dumps(copy.deepcopy(m))),
}


@pytest.mark.parametrize("trip", ROUND_TRIPS)
def test_learned_frequencies_keep_their_bits_when_a_model_is_cast_copied_or_loaded(trip):
    rope = ROPES["sections"]
    start = learner(rope).frequencies.detach()
    with torch.device("meta" if trip == "meta from the start" else "cpu"):
        model = torch.nn.Sequential(learner(rope), Rotary(rope))
    if "meta" not in trip:  # a reset starts again
        with torch.no_grad():
            start = model[0].frequencies.add_(1e-4).clone()
    layer, fixed = ROUND_TRIPS[trip](model)
    assert layer.frequencies.dtype == torch.float32
    assert torch.equal(layer.frequencies, start)
    q, k, positions = inputs("torch", rope)
    q, k = q.bfloat16(), k.bfloat16()
    assert_same(fixed(q, k, positions), rope.apply(q, k, positions))
    rotated = layer(q, k, positions)
    assert_same(rotated, apply_frequencies(q, k, positions, start, layout=rope.layout))
    rotated[0].float().square().sum().backward()
    torch.nn.Sequential(layer).bfloat16()  # which takes the gradient along
    assert layer.frequencies.grad.dtype == torch.float32


def load(rope, frequencies, **options):
    state = {"rotary.inv_freq": torch.as_tensor(frequencies)}
    model = torch.nn.ModuleDict({"rotary": Rotary(rope)})
    assert str(model.load_state_dict(state, **options)) == "<All keys matched successfully>"
    assert list(state) == ["rotary.inv_freq"]  # the caller's dictionary is unchanged


@pytest.mark.parametrize("name", ["half", "slice", "yarn", "llama3", "dynamic", "axial"])
def test_frequencies_of_a_checkpoint_that_differ_are_refused(name):
    rope = ROPES[name]
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        saved = torch.from_numpy(rope.frequencies(16)).to(dtype)
        load(rope, saved)
        saved[-1] *= 1.05  # more than bfloat16 rounds
        for strict in (True, False):
            with pytest.raises(RuntimeError, match="rotary.inv_freq holds the frequencies"):
                load(rope, saved, strict=strict)
    load(rope, torch.empty(8, device="meta"))  # which has no values


def test_frequencies_of_a_checkpoint_fit_any_regime_or_are_refused():
    rope, plain = RoPE(scaling=LONGROPE), RoPE().frequencies(16)
    for n in (1, 5000):  # either regime fits
        load(rope, rope.for_length(n).frequencies(16))
    load(RoPE(base=5e5), 1 / 5e5 ** (torch.arange(0, 16, 2).float() / 16))  # as transformers does
    for wrong, frequencies, message in (
        (rope, plain / 3, "holds the frequencies"),
        (RoPE(rotary_dim=8), plain, r"\(8\), but the RoPE of this Rotary has .* \(4\)"),
        (RoPE(), torch.empty(0), r"has shape \(0,\), which does not fit the RoPE"),
    ):
        with pytest.raises(RuntimeError, match=message):
            load(wrong, frequencies)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Rotary(RoPE()).load_state_dict({"scale": torch.ones(1)}, strict=True)


def initial(rope, learn):
    """Return the initial frequencies, (components, heads, r/2) or less."""
    frequencies, heads = torch.from_numpy(rope.frequencies(16)).float(), SIZES[learn].get("heads")
    if rope.position_axes is None:
        return frequencies.expand(heads, 8).clone() if heads else frequencies
    axes = torch.tensor(rope.position_axes)
    of_components = [torch.where(axes == i, frequencies, 0.0) for i in range(max(axes) + 1)]
    return torch.stack(of_components)[:, None].repeat(1, heads or 1, 1)


@pytest.mark.parametrize("learn", SIZES)
@pytest.mark.parametrize("name", ["half", "llama3", "sections", "axial"])
def test_learned_frequencies_start_from_the_rope_and_load_from_other_modules(name, learn):
    rope = ROPES[name]
    layer, expected = learner(rope, learn), initial(rope, learn)
    assert list(layer.state_dict()) == ["frequencies"]
    assert torch.equal(layer.frequencies, expected)
    q, k, _ = inputs("torch", rope)
    near = torch.arange(5)
    near = near if rope.position_axes is None else near.expand(max(rope.position_axes) + 1, 5)
    for ours, theirs in zip(layer(q, k, near), rope.apply(q, k, near), strict=True):
        # 2**-24 of a frequency of 1 at most, which float32 rounds, times a position of 4.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=4 * (2 * 3.2e-7 + 4 * 2.0**-24))
    model = torch.nn.Sequential(layer)
    with torch.no_grad():
        layer.frequencies.fill_(7.0)
    saved = torch.from_numpy(rope.frequencies(16)).float()
    assert "All keys matched" in str(model.load_state_dict({"0.inv_freq": saved}, strict=True))
    assert torch.equal(layer.frequencies, expected)
    model.load_state_dict({"0.inv_freq": saved, "0.frequencies": 2 * expected}, strict=True)
    assert torch.equal(layer.frequencies, 2 * expected)
    with pytest.raises(RuntimeError, match="inv_freq holds the frequencies"):
        model.load_state_dict({"0.inv_freq": 2 * saved})


@pytest.mark.parametrize("learn", [None, slow("head")])
def test_compiled_layer_serves_all_lengths_after_one_recompilation(learn):
    torch._dynamo.reset()
    rope, counter = ROPES["yarn"], dynamo.CompileCounter()
    layer = learner(learn=learn) if learn else Rotary(rope)
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for tokens in (5, 6, 700):
        q, k, positions = inputs("torch", rope, tokens)
        assert_same(compiled(q, k, positions), layer(q, k, positions))
    assert counter.frame_count <= 2


WRONG = {
    "learn='shared' needs head_dim=, components of a head": {"learn": "shared"},
    "learn='head' needs heads=, heads of k": {"learn": "head", "head_dim": 16},
    "heads=2 was given, but learn='shared'": {"learn": "shared", **SIZES["head"]},
    "head_dim=16 was given, but learn=None": {"head_dim": 16},
    "learn must be one of 'shared', 'head'; got True": {"learn": True},
    "head_dim must be an integer": {"learn": "shared", "head_dim": 16.0},
    "attention_factor = 1;": {"learn": "shared", "head_dim": 16, "rope": ROPES["yarn"]},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_of_learned_frequencies_are_refused(message):
    with pytest.raises((RopeError, TypeError), match=re.escape(message)):
        Rotary(**{"rope": RoPE(), **WRONG[message]})


def test_layer_that_learns_refuses_what_it_cannot_do_and_takes_out():
    layer = learner()
    q, k, positions = inputs("torch", ROPES["half"])
    with pytest.raises(RopeError, match="a layer that learns its frequencies has its own"):
        layer.at(positions, like=q)
    for option in ("k_positions", "slots", "norm"):
        with pytest.raises(RopeError, match="k_positions, slots or norm was given"):
            layer(q, k, positions, **{option: positions})
    with pytest.raises(RopeError, match=r"frequencies has 2 heads, q 4 and k 4"):
        layer(q, q, positions)
    outs = torch.empty_like(q), torch.empty_like(k)
    assert layer(q, k, positions, out=outs)[0] is outs[0]
    assert_same(outs, layer(q, k, positions))


@pytest.fixture
def _one_process():
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch was built without distributed or gloo")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
def test_learned_frequencies_sharded_by_fsdp_start_from_the_rope_and_learn():
    from torch.distributed.fsdp import fully_shard

    rope, start = ROPES["half"], initial(ROPES["half"], "head")
    with torch.device("meta"):
        layer = learner(rope)
    fully_shard(layer, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    layer.to_empty(device="cpu")
    for begin in (layer.reset_parameters, lambda: layer.load_state_dict({"inv_freq": start[0]})):
        with torch.no_grad():
            layer.frequencies.fill_(7.0)
        begin()
        assert torch.equal(layer.frequencies.full_tensor(), start)
    q, k, positions = inputs("torch", rope)
    frequencies = start.clone().requires_grad_()
    results = layer(q, k, positions), apply_frequencies(q, k, positions, frequencies, layout="half")
    assert_same(*results)
    for pair in results:
        sum(y.sin().sum() for y in pair).backward()
    assert torch.equal(layer.frequencies.grad.full_tensor(), frequencies.grad)
