"""What DTensors promise, tested by four processes at once: see test_dtensor.py, which starts them.

Meshes are pairs of processes, and two by two.
"""

import contextlib
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError
from support.torch_op import TORCH, recording, sample

BOTH = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
PAIR = BOTH["b"]
R, (BATCH, SEQ, HEADS, LAST) = Replicate(), map(Shard, range(4))
TOKENS = 3  # parts are uneven: 2 and 1; 1, 1, 1 and none
ROPE = RoPE(layout="half", rotary_dim=12)
POSITIONS = torch.tensor([5, 1_000_000, 2047])
AXIAL = RoPE(position_axes=(0, 1, 0, 1, 2, 2, 0, 1))
BATCHED = torch.stack([POSITIONS, POSITIONS + 1, POSITIONS * 2, POSITIONS // 2])
THREE = torch.stack([POSITIONS, POSITIONS + 7, POSITIONS // 3])
Q, K = sample(4, TOKENS, 4, 16), sample(4, TOKENS, 1, 16).flip(0)
GRADIENTS = Q.flip(1), K.flip(1)

PLACEMENTS = [[R], [BATCH], [SEQ], [HEADS]]
PLACEMENTS += [[BATCH, SEQ], [SEQ, HEADS], [HEADS, R], [SEQ, SEQ], [R, BATCH]]
every_placement = pytest.mark.parametrize("placements", PLACEMENTS, ids=str)


@pytest.fixture(scope="module", autouse=True)
def _processes():
    yield
    dist.destroy_process_group()


def spread(x, placements):
    return distribute_tensor(x, PAIR if len(placements) == 1 else BOTH, placements)


def same(got, expected, placements, **tolerances):
    assert tuple(got.placements) == tuple(placements), got.placements
    assert got.shape == expected.shape
    torch.testing.assert_close(got.full_tensor(), expected, **tolerances or {"rtol": 0, "atol": 0})


@contextlib.contextmanager
def collectives(number):
    with contextlib.nullcontext() if number is None else CommDebugMode() as mode:
        yield
    assert number is None or mode.get_total_counts() == number, mode.get_comm_counts()


def apply(q, k, positions, rope=ROPE):
    return rope.apply(q, k, positions)


def check(placements, call, whole, there=None, *, k=None, dtype=torch.float32, moved=(0, 0)):
    """Compare results, gradients and their placements with those of tensors in one process.

    A call is of q, k and what is whole, in place of which DTensors may get what is there; moved
    are the numbers of collectives forward and backward.
    """
    both, there = (placements, k or placements), whole if there is None else there
    arrays = [x.to(dtype, copy=True).requires_grad_() for x in (Q, K)]
    learned = [x for x in whole if isinstance(x, torch.Tensor) and x.requires_grad]
    expected, weights = call(*arrays, *whole), [x.to(dtype) for x in GRADIENTS]
    gradients = torch.autograd.grad(expected, [*arrays, *learned], weights)
    shards = [spread(x.detach(), p).requires_grad_() for x, p in zip(arrays, both, strict=True)]
    with collectives(moved[0]):
        results = call(*shards, *there)
    sharded_weights = [spread(w, p) for w, p in zip(weights, both, strict=True)]
    # Before torch 2.12 its own backward gathers gradients.
    with collectives(None if learned or TORCH < (2, 12) else moved[1]):
        torch.autograd.backward(results, sharded_weights)
    for x, y, value, gradient, p in zip(shards, results, expected, gradients, both, strict=False):
        same(y.detach(), value.detach(), p)
        assert y.stride() == value.stride()
        same(x.grad, gradient, p if TORCH >= (2, 12) else list(x.grad.placements))
    learning = [x for x in there if isinstance(x, torch.Tensor) and x.requires_grad]
    for x, gradient in zip(learning, gradients[2:], strict=True):
        # Each is a sum of products, in another order.
        got = x.grad.full_tensor() if isinstance(x, DTensor) else x.grad
        torch.testing.assert_close(got, gradient, rtol=1e-4, atol=1e-5)


def test_rotate_of_plain_tensors_imports_no_dtensor():
    """It comes first, as all others import it."""
    ROPE.rotate(Q)
    assert "rope_xp_backends.torch" in sys.modules
    assert "rope_xp_backends.torch.dtensor" not in sys.modules


PLAIN = [POSITIONS, None, BATCHED, BATCHED[:, :1], POSITIONS + 0.5]


@every_placement
@pytest.mark.parametrize("positions", [*PLAIN, POSITIONS.tolist(), POSITIONS.numpy()])
def test_apply_moves_no_positions_that_lie_whole_or_as_q(positions, placements):
    check(placements, apply, [positions])
    if isinstance(positions, torch.Tensor) and 1 not in positions.shape:
        missing = 2 - positions.ndim  # axes of q, by which positions are replicated
        shards = [p.dim - missing if p in (BATCH, SEQ) else -1 for p in placements]
        for given in ([R if n < 0 else Shard(n) for n in shards], [R] * len(placements)):
            check(placements, apply, [positions], [spread(positions, given)])


ONCE, TWICE = {"moved": (1, 0)}, {"moved": (2, 2)}  # for q and k; there and back
OVER_TOKENS = spread(POSITIONS, [Shard(0)])
SUMS = DTensor.from_local(POSITIONS // 2, PAIR, [Partial()])


@pytest.mark.parametrize(
    ("placements", "whole", "there", "options"),
    [
        *(([p], [POSITIONS], [OVER_TOKENS], ONCE) for p in (R, BATCH, HEADS)),
        ([SEQ], [BATCHED], [spread(BATCHED, [Shard(0)])], ONCE),
        ([HEADS], [POSITIONS // 2 * 2], [SUMS], ONCE),
        *(([p], [x, AXIAL], None, {}) for p in (BATCH, SEQ, HEADS) for x in (THREE, None)),
        ([SEQ], [THREE, AXIAL], [spread(THREE, [Shard(1)]), AXIAL], {}),
        ([SEQ], [THREE, AXIAL], [spread(THREE, [Shard(0)]), AXIAL], ONCE),
        *(([SEQ], [None], None, {"dtype": dtype}) for dtype in (torch.float64, torch.bfloat16)),
        ([HEADS], [POSITIONS], None, {"k": [R]}),
        ([BATCH], [POSITIONS], None, {"k": [SEQ]}),
        ([HEADS, R], [POSITIONS], None, {"k": [R, R]}),
        ([LAST], [POSITIONS, RoPE()], None, TWICE),
        ([SEQ, LAST], [POSITIONS, RoPE()], None, TWICE),
    ],
)
def test_apply_moves_what_lies_otherwise_and_no_more(placements, whole, there, options):
    check(placements, apply, whole, there, **options)


@pytest.mark.parametrize("lead", [([], []), ([4], [1])], ids=["one", "one a head"])
@pytest.mark.parametrize(
    "placements", [*PLACEMENTS, [LAST], [R, LAST], [LAST, SEQ], [HEADS, LAST]], ids=str
)
def test_qk_norm_weights_have_whole_gradients(placements, lead):
    weights = [sample(*x, 16, grad=True) for x in lead]
    sharded = [spread(x.detach(), [Shard(0)] * len(placements)).requires_grad_() for x in weights]
    for there in ([x.detach().clone().requires_grad_() for x in weights], sharded):
        moved = None if LAST in placements or there is sharded else 0
        check(placements, normalize, weights, there, moved=(moved, None))


def normalize(q, k, *weights):
    return ROPE.apply(q, k, POSITIONS, norm=QKNorm(*weights))


@every_placement
def test_positions_that_learn_have_whole_gradients(placements):
    positions = torch.linspace(0.25, 50.25, TOKENS, dtype=torch.float64, requires_grad=True)
    replicated = [R] * len(placements)
    for k in (None, replicated):
        plain = positions.detach().clone().requires_grad_()
        known = spread(positions.detach(), replicated).requires_grad_()
        for there in (plain, known):
            check(placements, apply, [positions], [there], k=k, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["sum", "avg"])
def test_rotate_keeps_partial_sums(kind):
    mine = Q * (1 + PAIR.get_local_rank())
    x = DTensor.from_local(mine, PAIR, [Partial(kind)]).detach().requires_grad_()
    gradient = spread(Q, [R])
    with collectives(0):
        y = ROPE.rotate(x, POSITIONS)
        y.backward(gradient)
    # Two roundings more than in one process: of each part, and of their sum.
    expected = ROPE.rotate(x.full_tensor().detach(), POSITIONS)
    same(y.detach(), expected, [Partial(kind)], rtol=0, atol=4e-6)
    same(x.grad, ROPE.unrotate(Q, POSITIONS), [R])


OTHER = RoPE(base=5e5, layout="half", rotary_dim=12)
TABLES = [ROPE.cos_sin(positions, 16) for positions in (POSITIONS, BATCHED)]
THERE = [[spread(t, [R]) for t in tables] for tables in TABLES]
by_tables = partial(rope_xp.apply_tables, layout="half")
CALLS = {
    "unrotate": lambda x: ROPE.unrotate(x, POSITIONS),
    "rerotate": lambda x: ROPE.rerotate(x, POSITIONS, POSITIONS + 3, to=OTHER),
    "heads first": lambda x: ROPE.rotate(x.transpose(1, 2), POSITIONS, axes="bhsd").transpose(1, 2),
    "tables": lambda x: by_tables(x, *TABLES[0]),
    "tables of batches": lambda x: by_tables(x, *TABLES[1]),
    "distributed tables": lambda x: by_tables(x, *(THERE if isinstance(x, DTensor) else TABLES)[1]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("placement", [R, BATCH, SEQ, HEADS], ids=str)
def test_functions_of_distributed_arrays_equal_those_of_whole_arrays(call, placement):
    x, expected = spread(Q, [placement]), CALLS[call](Q)
    with collectives(0):
        y = CALLS[call](x)
    same(y, expected, [placement])
    assert y.stride() == expected.stride()


SPLIT = RoPE(position_axes=(0, 1, 0, 1, 0, 1))


@pytest.mark.parametrize(
    ("rope", "placements", "lie"),
    [
        *((ROPE, p, p) for p in ([SEQ], [BATCH], [R], [SEQ, BATCH], [R, BATCH])),
        (SPLIT, [Shard(1), Shard(1)], [Shard(0), Shard(0)]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64}, {"xp": torch}])
def test_cos_sin_is_distributed_as_the_tokens_of_positions(rope, placements, lie, options):
    whole = BATCHED if rope is ROPE else BATCHED[:2]
    head_dim = 16 if rope is ROPE else 12
    positions = spread(whole, placements)
    with collectives(0):
        got = rope.cos_sin(positions, head_dim, **options)
    for table, expected in zip(got, rope.cos_sin(whole, head_dim, **options), strict=True):
        same(table, expected, lie)


@pytest.mark.parametrize("placement", [R, SEQ, HEADS], ids=str)
def test_out_takes_dtensors_and_autograd_notices(placement):
    q, k = (spread(x.clone(), [placement]) for x in (Q, K))
    empty = torch.empty_like(q)
    assert ROPE.rotate(q, POSITIONS, out=empty) is empty
    same(empty, ROPE.rotate(Q, POSITIONS), [placement])
    product = spread(Q, [placement]).requires_grad_() * q
    with torch.no_grad():
        results = ROPE.apply(q, k, POSITIONS, out=(q, k))
    assert results[0] is q
    assert results[1] is k
    for got, expected in zip((q, k), ROPE.apply(Q, K, POSITIONS), strict=True):
        same(got, expected, [placement])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize(("placement", "cached"), [(R, R), (HEADS, Shard(1))])
def test_slots_take_local_shards_and_no_dtensors(placement, cached):
    q, k, moved, whole = Q[:1], Q[:1, :, :2], POSITIONS + 1, sample(8, 2, 16)
    cache, there = spread(whole.clone(), [cached]), [spread(x, [placement]) for x in (q, k)]
    write = partial(ROPE.apply, slots=[4, 2, 3])
    refused = r"slots= takes no torch DTensor arrays.*to_local\(\)"
    for out in (cache, whole):
        with pytest.raises(RopeError, match=refused):
            write(*there, moved, out=(None, out))
    with pytest.raises(RopeError, match=refused):
        ROPE.rerotate(cache, moved, moved + 1, axes="shd", slots=[4, 2, 3], out=cache)
    with pytest.raises(TypeError, match=r"out\[1\] a torch DTensor array"):
        write(q, k, moved, out=(None, cache))
    same(cache, whole, [cached])
    write(*(x.to_local() for x in there), moved, out=(None, cache.to_local()))
    same(cache, write(q, k, moved, out=(None, whole))[1], [cached])


Q_THERE, Q_CUT, FAR = spread(Q, [SEQ]), spread(Q, [LAST]), spread(POSITIONS, [R, R])
FAR_WEIGHT = spread(sample(16), [R, R])
LEARNED, NEW = spread(Q, [SEQ]).requires_grad_(), torch.empty_like(Q_THERE)
COS, SIN = ROPE.cos_sin(POSITIONS, 16)


def of_sums(kind, **options):
    return ROPE.rotate(DTensor.from_local(Q, PAIR, [Partial(kind)]), **options)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("positions a torch DTensor array", lambda: ROPE.rotate(Q, OVER_TOKENS)),
        ("k lies on", lambda: ROPE.apply(Q_THERE, spread(K, [SEQ, R]))),
        ("k_positions lies on", lambda: ROPE.apply(Q_THERE, Q_THERE, POSITIONS, k_positions=FAR)),
        ("norm.q_weight lies on", lambda: ROPE.rotate(Q_THERE, norm=(FAR_WEIGHT, 1e-6))),
        ("sin lies on", lambda: rope_xp.apply_tables(Q_THERE, COS, spread(SIN, [R, R]))),
        ("out must be an array of torch DTensor", lambda: ROPE.rotate(Q_THERE, out=Q.clone())),
        ("out has the placements", lambda: ROPE.rotate(Q_THERE, out=spread(Q, [R]))),
        (r"out\[1\] overlaps q", lambda: ROPE.apply(Q_THERE, NEW, out=(NEW.clone(), Q_THERE))),
        ("out: x is sharded over head_dim", lambda: ROPE.rotate(Q_CUT, out=Q_CUT)),
        ("out: autograd cannot follow", lambda: ROPE.rotate(LEARNED, out=NEW)),
        ("x has the placement .*max.* x.redistribute", lambda: of_sums("max")),
        ("x has the placement .*product.* x.redistribute", lambda: of_sums("product")),
        ("x has the placement .*norms are not linear", lambda: of_sums("sum", norm=(None, 1e-6))),
    ],
)
def test_dtensors_that_do_not_fit_are_refused(message, call):
    with pytest.raises((RopeError, TypeError), match=message):
        call()


def test_explain_communicates_nothing_and_names_the_path_of_shards():
    k, weight = spread(K, [SEQ]), spread(sample(16), [Shard(0)])
    if dist.get_rank() == 0:  # the others are not waited for
        assert rope_xp.explain(Q_THERE, k, norm=QKNorm(weight, weight)).path == "native"
        size = {"shape": (TOKENS,), "stride": (1,)}
        alone = DTensor.from_local(POSITIONS[:2], PAIR, [Shard(0)], **size)
        assert rope_xp.explain(Q_CUT, Q_CUT, alone).path
    with rope_xp.use_path("portable"):
        assert rope_xp.explain(Q_THERE, k).path == "portable"
        check([SEQ], apply, [POSITIONS])


def test_processes_outside_the_mesh_have_empty_shards():
    half = DeviceMesh("cpu", [0, 1])
    y = ROPE.rotate(distribute_tensor(Q, half, [SEQ]), POSITIONS)
    cos, _ = ROPE.cos_sin(distribute_tensor(POSITIONS, half, [Shard(0)]), 16)
    assert (y.shape, y.placements) == (Q.shape, (SEQ,))
    assert (cos.shape, cos.placements) == ((TOKENS, 6), (Shard(0),))
    if dist.get_rank() < 2:
        same(y, ROPE.rotate(Q, POSITIONS), [SEQ])
        same(cos, COS, [Shard(0)])
    else:
        assert y.to_local().numel() == cos.to_local().numel() == 0


@pytest.mark.parametrize(
    ("placement", "positions", "moved"),
    [(SEQ, POSITIONS, False), (HEADS, OVER_TOKENS, True)],
)
def test_compiled_apply_is_one_graph_and_moves_what_eager_moves(placement, positions, moved):
    graphs = []
    torch._dynamo.reset()
    compiled = torch.compile(ROPE.apply, fullgraph=True, backend=recording(graphs))
    check([placement], compiled, [POSITIONS], [positions], moved=(None, None))
    assert len(graphs) == 4  # forward and backward, of tensors and of DTensors
    assert any("_c10d_functional" in name for graph in graphs for name in graph) == moved


def test_compiled_out_of_dtensors_is_refused():
    compiled = torch.compile(lambda x: ROPE.rotate(x, out=x), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="a compiler cannot follow out= of DTensors"):
        compiled(Q_THERE)
