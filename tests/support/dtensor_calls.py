"""Cases of DTensors: out=, refusals, paths, empty parts, compilers."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import rope_xp
from rope_xp import RopeError
from support.dtensor_help import (
    POSITIONS,
    ROPE,
    TOKENS,
    K,
    Q,
    R,
    case,
    check,
    refuses,
    same,
    sample,
)
from support.torch_op import recording


@case(2)
def in_place(mesh: DeviceMesh) -> None:
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
def what_does_not_fit_is_refused(mesh: DeviceMesh) -> None:
    cos, sin = ROPE.cos_sin(POSITIONS, 16)
    q, other = distribute_tensor(Q, mesh, [Shard(1)]), DeviceMesh("cpu", [1, 0])
    positions = distribute_tensor(POSITIONS, mesh, [Shard(0)])
    with refuses(TypeError, "q is a torch DTensor array", "k a torch array"):
        ROPE.apply(q, K, POSITIONS)
    with refuses(TypeError, "q is a torch array", "k a torch DTensor array"):
        ROPE.apply(K, q, POSITIONS)
    with refuses(TypeError, "positions a torch DTensor array"):
        ROPE.rotate(Q, positions)
    with refuses(RopeError, "positions has shape (3,)"):
        ROPE.rotate(q, [1, 2, 3])
    with refuses(RopeError, "k lies on", "and q on"):
        ROPE.apply(q, distribute_tensor(K, other, [Shard(1)]))
    far = distribute_tensor(POSITIONS, other, [R])
    with refuses(RopeError, "k_positions lies on", "and q on"):
        ROPE.apply(q, q, POSITIONS, k_positions=far)
    with refuses(RopeError, "new_positions lies on", "and x on"):
        ROPE.rerotate(q, POSITIONS, far)
    with refuses(RopeError, "sin lies on", "and x on"):
        rope_xp.apply_tables(q, cos, distribute_tensor(sin, other, [R]))
    with refuses(TypeError, "out must be an array of torch DTensor"):
        ROPE.rotate(q, out=torch.empty_like(Q))
    with refuses(RopeError, "out has the placements"):
        ROPE.rotate(q, out=distribute_tensor(Q, mesh, [R]))
    with refuses(RopeError, "out[1] overlaps q"):
        ROPE.apply(q, torch.empty_like(q), out=(torch.empty_like(q), q))
    cut = distribute_tensor(Q, mesh, [Shard(3)])
    with refuses(RopeError, "out: x is sharded over head_dim"):
        ROPE.rotate(cut, out=cut)
    with refuses(RopeError, "out: autograd cannot follow"):
        ROPE.rotate(q.detach().requires_grad_(), out=torch.empty_like(q))


@case(2)
def paths(mesh: DeviceMesh) -> None:
    q, k = (distribute_tensor(x, mesh, [Shard(1)]) for x in (Q, K))
    cut = distribute_tensor(Q, mesh, [Shard(3)])
    if dist.get_rank() == 0:  # the others are not waited for
        assert rope_xp.explain(q, k, POSITIONS).library == "torch DTensor"
        size = {"shape": (TOKENS,), "stride": (1,)}
        alone = DTensor.from_local(POSITIONS[:4], mesh, [Shard(0)], **size)
        assert rope_xp.explain(cut, cut, alone).path
    for name in ("portable", "llvm"):
        with rope_xp.use_path(name):
            assert rope_xp.explain(q, k).path == name
            check(mesh, [Shard(1)], POSITIONS, POSITIONS)
            check(mesh, [Shard(2)], POSITIONS, POSITIONS, k_placements=[R])


@case(4)
def parts_that_are_empty(mesh: DeviceMesh) -> None:
    line, x = init_device_mesh("cpu", (4,)), sample(2, 3, 1, 16)
    for p in (Shard(0), Shard(1), Shard(2)):
        spread = distribute_tensor(x, line, [p]).requires_grad_()
        for positions in (POSITIONS[:3], POSITIONS[None, :1], None):
            y, expected = ROPE.rotate(spread, positions), ROPE.rotate(x, positions)
            same(y, expected, [p])
            (gradient,) = torch.autograd.grad(y, spread, y.detach())
            same(gradient, ROPE.unrotate(expected, positions), [p])


@case(4)
def processes_outside_the_mesh(mesh: DeviceMesh) -> None:
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
def compiled(mesh: DeviceMesh) -> None:
    over_tokens = distribute_tensor(POSITIONS, mesh, [Shard(0)])
    for p, positions, moved in (
        (Shard(1), POSITIONS, False),
        (Shard(1), over_tokens, False),
        (Shard(2), over_tokens, True),
    ):
        graphs: list[set[str]] = []
        torch._dynamo.reset()
        apply = torch.compile(ROPE.apply, fullgraph=True, backend=recording(graphs))
        check(mesh, [p], positions, POSITIONS, function=apply)
        assert len(graphs) == 2  # forward and backward
        assert any("_c10d_functional" in name for graph in graphs for name in graph) == moved
    with refuses(Exception, "a compiler cannot follow out= of DTensors"):
        x = distribute_tensor(Q, mesh, [Shard(1)])
        torch.compile(lambda x: ROPE.rotate(x, out=x), fullgraph=True, backend="eager")(x)
