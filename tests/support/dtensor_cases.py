"""Cases of DTensors: values, gradients, collectives, out=, refusals, paths; their runner."""

import contextlib
import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError
from support.torch_op import TORCH, recording

CASES = {}
TOKENS = 7  # parts are uneven: 4 and 3; 2, 2, 2 and 1
ROPE = RoPE(layout="half", rotary_dim=12)
POSITIONS = torch.tensor([5, 70_000, 3, 1_000_000, 9, 2047, 12])
BATCHED = torch.stack([POSITIONS, POSITIONS + 1, POSITIONS * 2, POSITIONS // 2])
R = Replicate()


def case(*processes):
    def add(function):
        CASES[function.__name__] = processes, function
        return function

    return add


def run(folder, number, count):
    """Run the cases in one process of several; write failures to a file."""
    rank, processes, path = int(number), int(count), Path(folder, f"{number}.json")
    torch.set_num_threads(1)
    options = {"init_method": f"file://{folder}/store", "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", rank=rank, world_size=processes, **options)
    mesh = init_device_mesh("cpu", (2,) if processes == 2 else (2, processes // 2))
    failures = {}
    # That nothing is imported yet can only be seen first of all.
    for name in sorted(CASES, key="plain_tensors_do_not_bring_it".__ne__):
        sizes, function = CASES[name]
        if processes not in sizes:
            continue
        failures[name] = None
        try:
            function(mesh)
        except Exception:  # noqa: BLE001  # whatever it is, the test that waits is to tell
            failures[name] = traceback.format_exc()
        path.write_text(json.dumps(failures), "utf-8")
        if failures[name] is not None:
            break  # the others wait in vain, and so would every case that follows
    dist.destroy_process_group()


def sample(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Q, K = sample(4, TOKENS, 4, 16), sample(4, TOKENS, 2, 16, seed=1)


def same(got, expected, placements):
    assert tuple(got.placements) == tuple(placements), got.placements
    assert got.shape == expected.shape
    torch.testing.assert_close(got.full_tensor(), expected, rtol=0, atol=0)


@contextlib.contextmanager
def collectives(number):
    with contextlib.nullcontext() if number is None else CommDebugMode() as mode:
        yield
    if number is not None:
        assert mode.get_total_counts() == number, mode.get_comm_counts()


@contextlib.contextmanager
def refuses(error, *parts):
    with pytest.raises(error) as raised:
        yield
    assert all(part in str(raised.value) for part in parts), raised.value


def check(mesh, placements, positions, whole, *, rope=ROPE, dtype=torch.float32, **options):
    """Compare results, gradients and their placements with those of tensors in one process.

    Options are a function in place of rope.apply, k_placements, and the number of collectives
    forward and backward.
    """
    function, k_placements = options.get("function"), options.get("k_placements")
    forward, backward = options.get("forward", 0), options.get("backward", 0)
    arrays = [x.detach().clone().to(dtype).requires_grad_() for x in (Q, K)]
    weights = [sample(*x.shape, dtype=dtype, seed=2) for x in arrays]
    expected = rope.apply(*arrays, whole)
    gradients = torch.autograd.grad(expected, arrays, weights)
    both = placements, k_placements or placements
    pairs = [*zip(arrays, weights, both, strict=True)]
    shards = [distribute_tensor(x.detach(), mesh, p).requires_grad_() for x, _, p in pairs]
    sharded_weights = [distribute_tensor(w, mesh, p) for _, w, p in pairs]
    with collectives(None if function else forward):
        results = (function or rope.apply)(*shards, positions)
    # Before torch 2.12 its own backward gathers gradients.
    with collectives(None if function or TORCH < (2, 12) else backward):
        torch.autograd.backward(results, sharded_weights)
    for x, y, value, gradient, p in zip(shards, results, expected, gradients, both, strict=True):
        same(y, value.detach(), p)
        assert y.stride() == value.stride()
        same(x.grad, gradient, p if TORCH >= (2, 12) else list(x.grad.placements))


def one(mesh_dim):
    """Return the placements that a mesh of one dimension or two is tested with."""
    if mesh_dim == 1:
        return [[R], [Shard(0)], [Shard(1)], [Shard(2)]]
    a, b, c = Shard(0), Shard(1), Shard(2)
    return [[a, b], [b, c], [c, R], [b, b], [R, a]]


@case(2, 4)
def plain_tensors_do_not_bring_it(mesh):
    ROPE.rotate(Q)
    assert "rope_xp_backends.torch" in sys.modules
    assert "rope_xp_backends.torch.dtensor" not in sys.modules


@case(2, 4)
def positions_that_every_process_knows(mesh):
    for p in one(mesh.ndim):
        for positions in (POSITIONS, None, BATCHED, BATCHED[:, :1], POSITIONS + 0.5):
            check(mesh, p, positions, positions)
        for positions in (POSITIONS.tolist(), POSITIONS.numpy()):
            check(mesh, p, positions, POSITIONS)


@case(2, 4)
def positions_that_are_distributed(mesh):
    for p in one(mesh.ndim):
        # As q is: what q is sharded over and positions lack is replicated.
        axes = [R if x == Shard(2) else x for x in p]
        check(mesh, p, distribute_tensor(BATCHED, mesh, axes), BATCHED)
        check(mesh, p, distribute_tensor(BATCHED, mesh, [R] * mesh.ndim), BATCHED)
        line = [Shard(0) if x == Shard(1) else R for x in p]
        check(mesh, p, distribute_tensor(POSITIONS, mesh, line), POSITIONS)
        check(mesh, p, distribute_tensor(POSITIONS + 0.25, mesh, line), POSITIONS + 0.25)


@case(2)
def positions_sharded_otherwise_are_brought_along(mesh):
    over_tokens = distribute_tensor(POSITIONS, mesh, [Shard(0)])
    for p in (R, Shard(0), Shard(2)):
        check(mesh, [p], over_tokens, POSITIONS, forward=1)
    check(mesh, [Shard(1)], distribute_tensor(BATCHED, mesh, [Shard(0)]), BATCHED, forward=1)
    partial = DTensor.from_local(POSITIONS // 2, mesh, [Partial()])
    check(mesh, [Shard(2)], partial, POSITIONS // 2 * 2, forward=1)


@case(2, 4)
def gradients_of_weights_are_complete(mesh):
    """Of one weight or one per head, plain or DTensors, whatever q and k are sharded over."""
    arrays, grads, n = (Q, K), [sample(*x.shape, seed=2) for x in (Q, K)], mesh.ndim
    cut = [[Shard(3)], [R, Shard(3)], [Shard(3), Shard(1)], [Shard(2), Shard(3)]]
    for lead in ([], []), ([4], [2]):
        weights = [sample(*x, 16, seed=3 + i).requires_grad_() for i, x in enumerate(lead)]
        expected = ROPE.apply(*arrays, POSITIONS, norm=QKNorm(*weights))
        gradients = torch.autograd.grad(expected, weights, grads)
        for p in [*one(n), *(p for p in cut if len(p) == n)]:
            shards = [distribute_tensor(x, mesh, p) for x in arrays]
            for w in (None, Shard(0)):
                copies = [x.detach().clone() for x in weights]
                if w is not None:
                    copies = [distribute_tensor(x, mesh, [w] * n) for x in copies]
                norm = QKNorm(*(x.requires_grad_() for x in copies))
                with collectives(None if Shard(3) in p or w == Shard(0) else 0):
                    results = ROPE.apply(*shards, POSITIONS, norm=norm)
                torch.autograd.backward(results, [distribute_tensor(g, mesh, p) for g in grads])
                for y, value, x, gradient in zip(results, expected, copies, gradients, strict=True):
                    same(y.detach(), value.detach(), p)
                    got = x.grad if w is None else x.grad.full_tensor()
                    # Each is a sum of up to 4 * 7 * 4 products, in another order.
                    torch.testing.assert_close(got, gradient, rtol=1e-4, atol=1e-5)


@case(2)
def components_dtypes_and_layouts(mesh):
    axial = RoPE(position_axes=(0, 1, 0, 1, 2, 2, 0, 1))
    three = torch.stack([POSITIONS, POSITIONS + 7, POSITIONS // 3])
    for p in (Shard(0), Shard(1), Shard(2)):
        check(mesh, [p], three, three, rope=axial)
        check(mesh, [p], None, None, rope=axial)
        for dtype in (torch.float64, torch.bfloat16):
            check(mesh, [p], POSITIONS, POSITIONS, rope=RoPE(), dtype=dtype)
    check(mesh, [Shard(1)], distribute_tensor(three, mesh, [Shard(1)]), three, rope=axial)
    over_components = distribute_tensor(three, mesh, [Shard(0)])
    check(mesh, [Shard(1)], over_components, three, rope=axial, forward=1)


@case(2, 4)
def keys_sharded_otherwise_than_queries(mesh):
    more = [R] * (mesh.ndim - 1)
    for p, k in ((Shard(2), R), (Shard(0), Shard(1))):
        check(mesh, [p, *more], POSITIONS, POSITIONS, k_placements=[k, *more])


@case(2, 4)
def heads_that_are_cut_are_gathered(mesh):
    # One for q and one for k, and to take one's own part of the result is a slice.
    more = [Shard(1)] * (mesh.ndim - 1)
    check(mesh, [*more, Shard(3)], POSITIONS, POSITIONS, rope=RoPE(), forward=2, backward=2)


@case(2)
def sums_stay_sums(mesh):
    for kind in ("sum", "avg"):
        mine = sample(4, TOKENS, 4, 16, seed=dist.get_rank()).requires_grad_()
        x = DTensor.from_local(mine, mesh, [Partial(kind)]).detach().requires_grad_()
        weights = distribute_tensor(Q, mesh, [R])
        with collectives(0):
            y = ROPE.rotate(x, POSITIONS)
            y.backward(weights)
        assert y.placements == (Partial(kind),)
        # Two roundings more than in one process: of each part, and of their sum.
        expected = ROPE.rotate(x.full_tensor().detach(), POSITIONS)
        torch.testing.assert_close(y.full_tensor(), expected, rtol=0, atol=2e-6)
        same(x.grad, ROPE.unrotate(Q, POSITIONS), [R])
    for kind in ("max", "product"):
        x = DTensor.from_local(Q, mesh, [Partial(kind)])
        with refuses(RopeError, "x has the placement", kind, "x.redistribute"):
            ROPE.rotate(x)
    with refuses(RopeError, "x has the placement", "norms are not linear"):
        ROPE.rotate(DTensor.from_local(Q, mesh, [Partial()]), norm=(None, 1e-6))


@case(2)
def other_functions(mesh):
    for p in (R, Shard(0), Shard(1), Shard(2)):
        x, other = distribute_tensor(Q, mesh, [p]), POSITIONS + 3
        with collectives(0):
            back = ROPE.unrotate(x, POSITIONS)
            moved = ROPE.rerotate(x, POSITIONS, other, to=RoPE(layout="half", rotary_dim=12))
            heads_first = x.transpose(1, 2)
            turned = ROPE.rotate(heads_first, POSITIONS, axes="bhsd")
        same(back, ROPE.unrotate(Q, POSITIONS), [p])
        same(moved, ROPE.rerotate(Q, POSITIONS, other), [p])
        expected = ROPE.rotate(Q.transpose(1, 2), POSITIONS, axes="bhsd")
        same(turned, expected, heads_first.placements)
        assert turned.stride() == expected.stride()
        for positions in (POSITIONS, BATCHED):
            tables = ROPE.cos_sin(positions, 16)
            expected = rope_xp.apply_tables(Q, *tables, layout="half")
            for cos_sin in (tables, [distribute_tensor(t, mesh, [R]) for t in tables]):
                with collectives(0):
                    y = rope_xp.apply_tables(x, *cos_sin, layout="half")
                same(y, expected, [p])


@case(2, 4)
def tables_for_positions(mesh):
    for first in (Shard(1), Shard(0), R):
        p = [first, *[Shard(0)] * (mesh.ndim - 1)]
        for options in ({}, {"dtype": torch.float64}, {"xp": torch}):
            positions = distribute_tensor(BATCHED, mesh, p)
            with collectives(0):
                got = ROPE.cos_sin(positions, 16, **options)
            for table, expected in zip(got, ROPE.cos_sin(BATCHED, 16, **options), strict=True):
                same(table, expected, p)
    axial = RoPE(position_axes=(0, 1, 0, 1))
    positions = distribute_tensor(BATCHED[:2], mesh, [Shard(1)] * mesh.ndim)
    with collectives(0):
        got, _ = axial.cos_sin(positions, 8)
    same(got, axial.cos_sin(BATCHED[:2], 8)[0], [Shard(0)] * mesh.ndim)


@case(2, 4)
def gradients_of_angles_are_complete(mesh):
    where, x = torch.linspace(0.25, 50.25, TOKENS, dtype=torch.float64), Q.double()
    expected = where.clone().requires_grad_()
    (ROPE.rotate(x, expected) * x.flip(1)).sum().backward()
    for p in one(mesh.ndim):
        spread = distribute_tensor(x, mesh, p)
        weights = distribute_tensor(x.flip(1), mesh, p)
        plain = where.clone().requires_grad_()
        known = distribute_tensor(where, mesh, [R] * mesh.ndim).requires_grad_()
        for positions in (plain, known):
            ROPE.rotate(spread, positions).backward(weights)
        # Each is a sum over 4 * 4 * 6 products, in another order.
        for got in (plain.grad, known.grad.full_tensor()):
            torch.testing.assert_close(got, expected.grad, rtol=0, atol=1e-13)


@case(2)
def in_place(mesh):
    for p in (R, Shard(1), Shard(2)):
        q, k = (distribute_tensor(x.clone(), mesh, [p]) for x in (Q, K))
        empty = torch.empty_like(q)
        assert ROPE.rotate(q, POSITIONS, out=empty) is empty
        same(empty, ROPE.rotate(Q, POSITIONS), [p])
        results = ROPE.apply(q, k, POSITIONS, out=(q, k))
        assert results[0] is q
        assert results[1] is k
        for got, expected in zip((q, k), ROPE.apply(Q, K, POSITIONS), strict=True):
            same(got, expected, [p])
    x, w = distribute_tensor(Q, mesh, [Shard(1)]), distribute_tensor(Q, mesh, [Shard(1)])
    y = w.requires_grad_() * x
    with torch.no_grad():
        ROPE.rotate(x, POSITIONS, out=x)
    with refuses(RuntimeError, "modified by an inplace operation"):
        y.sum().backward()


@case(2)
def slots_take_local_shards(mesh):
    """DTensors are rejected before anything is written, as slots are those of a whole cache."""
    q, k, moved, slots = Q[:1, :3], K[:1, :3], POSITIONS[:3] + 1, [4, 2, 3]
    for p, cache_p in ((R, R), (Shard(2), Shard(1))):
        whole = sample(8, 2, 16, seed=2)
        cache = distribute_tensor(whole.clone(), mesh, [cache_p])
        spread_q, spread_k = (distribute_tensor(x, mesh, [p]) for x in (q, k))
        for out in (cache, whole):
            with refuses(RopeError, "slots= takes no torch DTensor arrays", "to_local()"):
                ROPE.apply(spread_q, spread_k, moved, out=(None, out), slots=slots)
        with refuses(RopeError, "slots= takes no torch DTensor arrays"):
            ROPE.rerotate(cache, moved, moved + 1, axes="shd", slots=slots, out=cache)
        with refuses(TypeError, "out[1] a torch DTensor array"):
            ROPE.apply(q, k, moved, out=(None, cache), slots=slots)
        same(cache, whole, [cache_p])
        local = spread_q.to_local(), spread_k.to_local(), moved
        ROPE.apply(*local, out=(None, cache.to_local()), slots=slots)
        same(cache, ROPE.apply(q, k, moved, out=(None, whole), slots=slots)[1], [cache_p])


@case(2)
def what_does_not_fit_is_refused(mesh):
    cos, sin = ROPE.cos_sin(POSITIONS, 16)
    q, other = distribute_tensor(Q, mesh, [Shard(1)]), DeviceMesh("cpu", [1, 0])
    positions = distribute_tensor(POSITIONS, mesh, [Shard(0)])
    far, cut = distribute_tensor(POSITIONS, other, [R]), distribute_tensor(Q, mesh, [Shard(3)])
    far_k, far_sin = distribute_tensor(K, other, [Shard(1)]), distribute_tensor(sin, other, [R])
    new, replica = torch.empty_like(q), distribute_tensor(Q, mesh, [R])
    weight = distribute_tensor(sample(16), init_device_mesh("cpu", (1, 2)), [R, R])
    leaf = q.detach().requires_grad_()
    for error, message, call in (
        (TypeError, "positions a torch DTensor array", lambda: ROPE.rotate(Q, positions)),
        (RopeError, "k lies on", lambda: ROPE.apply(q, far_k)),
        (RopeError, "k_positions lies on", lambda: ROPE.apply(q, q, POSITIONS, k_positions=far)),
        (RopeError, "norm.q_weight lies on", lambda: ROPE.rotate(q, norm=(weight, 1e-6))),
        (RopeError, "sin lies on", lambda: rope_xp.apply_tables(q, cos, far_sin)),
        (TypeError, "out must be an array of torch DTensor", lambda: ROPE.rotate(q, out=Q.clone())),
        (RopeError, "out has the placements", lambda: ROPE.rotate(q, out=replica)),
        (RopeError, "out[1] overlaps q", lambda: ROPE.apply(q, new, out=(q.clone(), q))),
        (RopeError, "out: x is sharded over head_dim", lambda: ROPE.rotate(cut, out=cut)),
        (RopeError, "out: autograd cannot follow", lambda: ROPE.rotate(leaf, out=new)),
    ):
        with refuses(error, message):
            call()


@case(2)
def paths(mesh):
    q, k = (distribute_tensor(x, mesh, [Shard(1)]) for x in (Q, K))
    cut = distribute_tensor(Q, mesh, [Shard(3)])
    weight = distribute_tensor(sample(16), mesh, [Shard(0)])
    if dist.get_rank() == 0:  # the others are not waited for
        assert rope_xp.explain(q, k, norm=QKNorm(weight, weight)).path == "native"
        assert rope_xp.explain(q, k, POSITIONS).library == "torch DTensor"
        size = {"shape": (TOKENS,), "stride": (1,)}
        alone = DTensor.from_local(POSITIONS[:4], mesh, [Shard(0)], **size)
        assert rope_xp.explain(cut, cut, alone).path
    with rope_xp.use_path("portable"):
        assert rope_xp.explain(q, k).path == "portable"
        check(mesh, [Shard(1)], POSITIONS, POSITIONS)


@case(4)
def parts_that_are_empty(mesh):
    line, x = init_device_mesh("cpu", (4,)), sample(2, 3, 1, 16)
    for p in (Shard(0), Shard(1), Shard(2)):
        spread = distribute_tensor(x, line, [p]).requires_grad_()
        for positions in (POSITIONS[:3], POSITIONS[None, :1], None):
            y, expected = ROPE.rotate(spread, positions), ROPE.rotate(x, positions)
            same(y, expected, [p])
            (gradient,) = torch.autograd.grad(y, spread, y.detach())
            same(gradient, ROPE.unrotate(expected, positions), [p])


@case(4)
def processes_outside_the_mesh(mesh):
    half = DeviceMesh("cpu", [0, 1])
    x = distribute_tensor(Q, half, [Shard(1)])
    y = ROPE.rotate(x, POSITIONS)
    cos, _ = ROPE.cos_sin(distribute_tensor(POSITIONS, half, [Shard(0)]), 16)
    assert (y.shape, y.placements) == (Q.shape, (Shard(1),))
    assert (cos.shape, cos.placements) == ((TOKENS, 6), (Shard(0),))
    if dist.get_rank() < 2:
        same(y, ROPE.rotate(Q, POSITIONS), [Shard(1)])
        same(cos, ROPE.cos_sin(POSITIONS, 16)[0], [Shard(0)])
    else:
        assert y.to_local().numel() == cos.to_local().numel() == 0


@case(2)
def compiled(mesh):
    over_tokens = distribute_tensor(POSITIONS, mesh, [Shard(0)])
    for p, positions, moved in ((Shard(1), POSITIONS, False), (Shard(2), over_tokens, True)):
        graphs = []
        torch._dynamo.reset()
        apply = torch.compile(ROPE.apply, fullgraph=True, backend=recording(graphs))
        check(mesh, [p], positions, POSITIONS, function=apply)
        assert len(graphs) == 2  # forward and backward
        assert any("_c10d_functional" in name for graph in graphs for name in graph) == moved
    with refuses(Exception, "a compiler cannot follow out= of DTensors"):
        x = distribute_tensor(Q, mesh, [Shard(1)])
        torch.compile(lambda x: ROPE.rotate(x, out=x), fullgraph=True, backend="eager")(x)


if __name__ == "__main__":
    run(*sys.argv[1:])
