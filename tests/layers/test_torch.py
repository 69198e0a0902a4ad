"""The layer of torch: casts, checkpoints, compilers, learned frequencies, sharded models."""

import copy
import pickle
import re
from functools import partial

import numpy as np
import pytest
from support.cases import slow
from support.layers import LONGROPE, ROPES, TORCH, assert_same, inputs
from support.lazily import Lazily

from rope_xp import QKNorm, RoPE, RopeError, apply_frequencies

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402  # needs torch

from rope_xp.layers.torch import Rotary  # noqa: E402  # needs torch

dynamo = Lazily("torch._dynamo.testing")

ROPE = ROPES["yarn"]
SIZES = {"shared": {"head_dim": 16}, "head": {"head_dim": 16, "heads": 2}}


def learner(rope=ROPES["half"], learn="head", **options):
    return Rotary(rope, learn=learn, **{**SIZES[learn], **options})


# --- casts and devices ---------------------------------------------------------------------------


def empty(model):
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


@pytest.mark.parametrize("learn", [None, "head"])
@pytest.mark.parametrize("trip", ROUND_TRIPS)
def test_casts_copies_and_checkpoints_change_no_bit(trip, learn):
    rope = ROPES["sections" if learn else "yarn"]
    start = learner(rope).frequencies.detach() if learn else None
    with torch.device("meta" if trip == "meta from the start" else "cpu"):
        model = torch.nn.Sequential(learner(rope) if learn else Rotary(rope))
    if learn and "meta" not in trip:  # a reset starts again
        with torch.no_grad():
            start = model[0].frequencies.add_(1e-4).clone()
    layer = ROUND_TRIPS[trip](model)[0]
    q, k, positions = inputs(TORCH, rope)
    q, k = q.bfloat16(), k.bfloat16()
    if learn is None:
        assert_same(layer(q, k, positions), rope.apply(q, k, positions))
        return
    assert layer.frequencies.dtype == torch.float32
    assert isinstance(layer.frequencies, torch.nn.Parameter)
    assert layer.frequencies.requires_grad
    assert torch.equal(layer.frequencies, start)
    expected = apply_frequencies(q, k, positions, start, layout=rope.layout)
    rotated = layer(q, k, positions)
    assert_same(rotated, expected)
    rotated[0].float().square().sum().backward()
    torch.nn.Sequential(layer).bfloat16()  # which takes the gradient along
    assert layer.frequencies.grad.dtype == torch.float32


# --- checkpoints ---------------------------------------------------------------------------------


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
    rope = RoPE(scaling=LONGROPE)
    for n in (1, 5000):  # either regime fits
        load(rope, rope.for_length(n).frequencies(16))
    load(RoPE(base=5e5), 1 / 5e5 ** (torch.arange(0, 16, 2).float() / 16))  # as transformers does
    plain, narrow = RoPE(), RoPE(rotary_dim=8)
    for wrong, frequencies, message in (
        (rope, plain.frequencies(16) / 3, "holds the frequencies"),
        (narrow, plain.frequencies(16), r"\(8\), but the RoPE of this Rotary has .* \(4\)"),
        (plain, torch.empty(0), r"has shape \(0,\), which does not fit the RoPE"),
    ):
        with pytest.raises(RuntimeError, match=message):
            load(wrong, frequencies)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Rotary(RoPE()).load_state_dict({"scale": torch.ones(1)}, strict=True)


# --- learned frequencies --------------------------------------------------------------------------


def initial(rope, learn):
    """Return the initial frequencies, (components, heads, r/2) or less, by plain loops."""
    frequencies, axes = rope.frequencies(16), np.array(rope.position_axes or [0] * 8)
    spread = np.zeros((max(axes) + 1, SIZES[learn].get("heads", 1), 8))
    for pair, component in enumerate(axes):
        spread[component, :, pair] = frequencies[pair]
    if rope.position_axes is None:
        spread = spread[0] if learn == "head" else spread[0, 0]
    return torch.from_numpy(spread).float()


@pytest.mark.parametrize("learn", SIZES)
@pytest.mark.parametrize("name", ["plain", "half", "llama3", "sections", "axial"])
def test_learned_frequencies_start_from_the_rope(name, learn):
    rope = ROPES[name]
    layer, expected = learner(rope, learn), initial(rope, learn)
    q, k, positions = inputs(TORCH, rope)
    assert list(layer.state_dict()) == ["frequencies"]
    assert layer.frequencies.dtype == torch.float32
    assert torch.equal(layer.frequencies, expected)
    rotated = apply_frequencies(q, k, positions, expected, layout=rope.layout)
    assert_same(layer(q, k, positions), rotated)
    near = torch.arange(5)
    near = near if rope.position_axes is None else near.expand(max(rope.position_axes) + 1, 5)
    for ours, theirs in zip(layer(q, k, near), rope.apply(q, k, near), strict=True):
        # 2**-24 of a frequency of 1 at most, which float32 rounds, times a position of 4.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=4 * (2 * 3.2e-7 + 4 * 2.0**-24))
    model = torch.nn.Sequential(layer)  # and from the checkpoint of another module
    with torch.no_grad():
        layer.frequencies.fill_(7.0)
    saved = torch.from_numpy(rope.frequencies(16)).float()
    state = {"0.inv_freq": saved}
    assert str(model.load_state_dict(state, strict=True)) == "<All keys matched successfully>"
    assert list(state) == ["0.inv_freq"]  # the caller's dictionary is unchanged
    assert torch.equal(layer.frequencies, expected)
    model.load_state_dict(state | {"0.frequencies": 2 * expected}, strict=True)
    assert torch.equal(layer.frequencies, 2 * expected)
    with pytest.raises(RuntimeError, match="inv_freq holds the frequencies"):
        model.load_state_dict({"0.inv_freq": 2 * saved})


# --- gradients and compilers ---------------------------------------------------------------------


@pytest.mark.parametrize("use_checkpoint", [False, True])
@pytest.mark.parametrize("learn", [None, *SIZES])
def test_gradients_are_the_same_under_activation_checkpointing(learn, use_checkpoint):
    rope = ROPES["half"]
    layer = learner(rope, learn) if learn else Rotary(rope)
    call = partial(checkpoint, layer, use_reentrant=False) if use_checkpoint else layer
    *arrays, positions = inputs(TORCH, rope)
    ours, theirs = ([x.clone().requires_grad_() for x in arrays] for _ in range(2))
    if learn:
        frequencies = initial(rope, learn).requires_grad_()
        expected = apply_frequencies(*theirs, positions, frequencies, layout="half")
    else:
        expected = rope.apply(*theirs, positions)
    for rotated in (call(*ours, positions), expected):
        sum(y.sin().sum() for y in rotated).backward()
    assert_same([x.grad for x in ours], [x.grad for x in theirs])
    assert all(x.grad.abs().max() > 0.1 for x in ours)
    if learn:
        assert torch.equal(layer.frequencies.grad, frequencies.grad)
        assert frequencies.grad.abs().max() > 1


@pytest.mark.parametrize("learn", [None, slow("head")])
def test_compiled_layer_serves_all_lengths_after_one_recompilation(learn):
    torch._dynamo.reset()
    counter, layer = dynamo.CompileCounter(), learner(learn=learn) if learn else Rotary(ROPE)
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for tokens in (5, 6, 700):
        q, k, positions = inputs(TORCH, ROPE, tokens)
        assert_same(compiled(q, k, positions), layer(q, k, positions))
    assert counter.frame_count <= 2


class Normalize(torch.nn.Module):
    """Normalizes q and k by the formula, or by a QKNorm of each call."""

    def __init__(self, by_formula):
        super().__init__()
        self.weights, self.rotary = torch.nn.Parameter(torch.ones(2, 16)), Rotary(ROPES["half"])
        self.by_formula = by_formula

    def forward(self, q, k, positions):
        q_weight, k_weight = self.weights
        if not self.by_formula:
            return self.rotary(q, k, positions, norm=QKNorm(q_weight, k_weight))
        q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) for x in (q, k))
        return self.rotary(q * q_weight, k * k_weight, positions)


@pytest.mark.slow
def test_qk_norm_built_in_forward_costs_no_graph_more_than_the_formula():
    """Which takes one graph for a length and one for all."""
    torch._dynamo.reset()
    formula, model, counter = Normalize(True), Normalize(False), dynamo.CompileCounter()
    model(*inputs(TORCH, ROPES["half"]))  # the first call of a process sets up the library
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    calls = [inputs(TORCH, ROPES["half"], n) for n in (5, 5, 6, 7, 5)]
    results = [compiled(*call) for call in calls]
    assert counter.frame_count == 2
    torch.testing.assert_close(results, [formula(*call) for call in calls], rtol=0, atol=2e-6)


# --- arguments ------------------------------------------------------------------------------------

WRONG = {
    "learn='shared' needs head_dim=, components of a head": {"learn": "shared"},
    "learn='head' needs head_dim=": {"learn": "head", "heads": 2},
    "learn='head' needs heads=, heads of k": {"learn": "head", "head_dim": 16},
    "heads=2 was given, but learn='shared'": {"learn": "shared", **SIZES["head"]},
    "head_dim=16 was given, but learn=None": {"head_dim": 16},
    "learn must be one of 'shared', 'head'; got True": {"learn": True},
    "heads must be positive": {"learn": "head", "head_dim": 16, "heads": 0},
    "head_dim must be an integer": {"learn": "shared", "head_dim": 16.0},
    "head_dim is 15, an odd number": {"learn": "shared", "head_dim": 15},
    "attention_factor = 1;": {"learn": "shared", "head_dim": 16, "rope": ROPES["yarn"]},
    "need rotary_offset = 0": {"learn": "head", **SIZES["head"], "rope": ROPES["slice"]},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_of_learned_frequencies_are_refused(message):
    kind = TypeError if "must be an integer" in message else RopeError
    with pytest.raises(kind, match=re.escape(message)):
        Rotary(**{"rope": RoPE(), **WRONG[message]})


def test_learned_frequencies_have_no_angles_for_all_layers():
    layer = learner()
    q, k, positions = inputs(TORCH, ROPES["half"])
    with pytest.raises(RopeError, match="a layer that learns its frequencies has its own"):
        layer.at(positions, like=q)
    with pytest.raises(RopeError, match="k_positions, slots or norm was given"):
        layer(q, k, positions, k_positions=positions)
    outs = torch.empty_like(q), torch.empty_like(k)
    assert_same(layer(q, k, positions, out=outs), layer(q, k, positions))
    with pytest.raises(RopeError, match=r"frequencies has 2 heads, q 4 and k 4"):
        layer(q, q, positions)


# --- shards ---------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(32, 32, bias=False)
        self.rotary = learner()

    def forward(self, x):
        q = self.project(x).unflatten(-1, (-1, 16))
        return self.rotary(q, q, 1_000_000 + torch.arange(6))


@pytest.fixture
def mesh():
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch was built without distributed or gloo")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_learned_frequencies_sharded_by_fsdp_keep_float32(mesh):
    """Sharded apart from a layer in bfloat16, and initialized after they were on meta."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    torch.manual_seed(0)
    x, start = torch.randn(2, 6, 32), initial(ROPES["half"], "head")
    with torch.device("meta"):
        model = Block()
    fsdp.fully_shard(model.rotary, mesh=mesh)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cpu")
    torch.nn.init.normal_(model.project.weight.to_local())
    model.rotary.reset_parameters()
    assert torch.equal(model.rotary.frequencies.full_tensor(), start)
    with torch.no_grad():
        model.rotary.frequencies.fill_(7.0)
    model.rotary.load_state_dict({"inv_freq": start[0]}, strict=True)
    assert torch.equal(model.rotary.frequencies.full_tensor(), start)
    whole = Block()
    whole.project.weight.data.copy_(model.project.weight.full_tensor())
    whole.project.bfloat16()
    results = model(x), whole(x.bfloat16())
    assert_same(*results)
    for pair in results:
        sum(y.float().square().mul(y.sign()).sum() for y in pair).backward()
    grad = model.rotary.frequencies.grad.full_tensor()
    assert torch.equal(grad, whole.rotary.frequencies.grad)
    assert grad.abs().max() > 0
