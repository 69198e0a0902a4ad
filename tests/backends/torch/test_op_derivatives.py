"""torch's operator around kernels of this process: derivatives and transforms."""

import pytest
from support.cases import slow
from support.equality import LAYOUTS
from support.rules import Temperature
from support.targets import KERNELS, truth
from support.torch_op import HALVES, POSITIONS, rotate, same, sample

import rope_xp
from rope_xp import RoPE, RopeError

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.usefixtures("_by_kernels")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", [{}, {"rotary_dim": 4, "rotary_offset": 1}], ids=str)
def test_gradients_of_both_orders_equal_differences(layout, part):
    rope = RoPE(layout=layout, scaling=Temperature(2.0), **part)
    q, k = (sample(2, n, 6, dtype=torch.float64, grad=True) for n in (2, 1))
    p = POSITIONS[1:3]
    for f in (
        lambda q, k: rope.apply(q, k, p),
        lambda q, k: rope.unrotate(q, [7.5, 9.25]),
        lambda q, k: rope.apply(q, k, p, k_positions=p - 1),
    ):
        assert torch.autograd.gradcheck(f, (q, k), check_batched_grad=True)
        assert torch.autograd.gradgradcheck(f, (q, k), check_batched_grad=True)


@pytest.mark.parametrize("normalized", [6, 4])  # components of a head, or the slice alone
@pytest.mark.parametrize("own", [{}, {"k_positions": POSITIONS[2:4]}], ids=["shared", "own"])
def test_gradients_of_both_orders_of_norms_equal_differences(own, normalized):
    rope = RoPE(rotary_dim=4, rotary_offset=1)
    arrays = [sample(2, n, 6, dtype=torch.float64) for n in (2, 1)]
    arrays += [sample(normalized, dtype=torch.float64) * n for n in (1, 2)]

    def rotate(q, k, *weights):
        norm = rope_xp.QKNorm(*weights, eps=1e-3, offset=1.0)
        return rope.apply(q, k, POSITIONS[1:3], norm=norm, **own)

    arrays = [x.requires_grad_() for x in arrays]
    assert torch.autograd.gradcheck(rotate, arrays)
    assert torch.autograd.gradgradcheck(rotate, arrays)
    tables = rope.cos_sin(POSITIONS[1:3], 6, dtype=torch.float64)
    given = rope.with_tables(*tables).apply
    assert torch.autograd.gradcheck(lambda q, k, *w: given(q, k, norm=rope_xp.QKNorm(*w)), arrays)


CALLS = {
    "plainly": rope_xp.apply,
    "with positions of k": lambda q, k, p: rope_xp.apply(q, k, p, k_positions=POSITIONS - 1),
    "mapped": torch.func.vmap(rope_xp.apply, in_dims=(0, 0, None)),
    "compiled": lambda *x: torch.compile(rope_xp.apply, fullgraph=True, backend="aot_eager")(*x),
}


@pytest.mark.parametrize("call", [*list(CALLS)[:-1], slow("compiled")])
def test_a_result_needs_a_gradient_where_its_input_does(call):
    for needed in ((True, False), (False, True), (True, True), (False, False)):
        q, k = (sample(2, 5, n, 6, grad=grad) for n, grad in zip((4, 2), needed, strict=True))
        results = CALLS[call](q, k, POSITIONS)
        assert tuple(y.requires_grad for y in results) == needed
        for y, x in zip(results, (q, k), strict=True):
            if x.requires_grad:
                assert torch.autograd.grad(y.sum(), x, retain_graph=True)[0].any()
    with torch.no_grad():
        assert not any(y.requires_grad for y in CALLS[call](q.requires_grad_(), k, POSITIONS))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_plain_operations(dtype, layout):
    rope = RoPE(layout=layout, rotary_dim=8, scaling=Temperature(2.0))
    q, k = (sample(1, 5, n, 16, dtype=dtype, grad=True) for n in (4, 2))
    weights = [sample(*x.shape, dtype=dtype).flip(1) for x in (q, k)]

    def gradients():
        return torch.autograd.grad(rope.apply(q, k, POSITIONS), (q, k), weights)

    same(gradients(), truth(gradients))


def test_autograd_saves_a_copy_of_positions_alone():
    saved = []
    q, k = sample(7, 5, 4, 16, grad=True), sample(7, 5, 2, 16, grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        RoPE().apply(q, k, POSITIONS)
    (positions,) = saved
    same(positions, POSITIONS)
    assert positions.data_ptr() != POSITIONS.data_ptr()  # whoever gave them may write to them


def test_gradients_of_positions_equal_differences():
    x = sample(5, 2, 8, dtype=torch.float64)
    positions = torch.linspace(0.25, 50.25, 5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RopeError, match="with respect to angles"):
        rotate(x, positions)
    fixed, moved = positions.detach() + 3, RoPE().rerotate
    with rope_xp.use_path(None):
        assert torch.autograd.gradcheck(lambda p: rotate(x, p), positions)
        assert torch.autograd.gradcheck(lambda p: moved(x, p, fixed), positions)
        assert torch.autograd.gradcheck(lambda p: moved(x, fixed, p), positions)
        same(rotate(x, positions.detach()), rotate(x, positions).detach())
        single = positions.detach().float().requires_grad_()
        rotate(x.float(), single).sum().backward()
        rotate(x, positions).sum().backward()
        torch.testing.assert_close(single.grad.double(), positions.grad, rtol=0, atol=2e-5)


def test_vmap_of_rotations_equals_a_stack_of_rotations():
    x, p = sample(5, 2, 8, 3), torch.stack([POSITIONS, POSITIONS - 1, POSITIONS // 2])
    vmap, tables = torch.func.vmap, RoPE().cos_sin(p, 8)
    shared = torch.stack([rotate(x[..., i]) for i in range(3)])
    separate = torch.stack([rotate(x[..., i], p[i]) for i in range(3)])
    same(vmap(rotate, (3,), 2)(x), shared.movedim(0, 2))
    same(vmap(rotate, (3, 1))(x, p.mT), separate)
    same(vmap(rope_xp.apply_tables, (3, 0, 0))(x, *tables), separate)
    keys = vmap(lambda q, k: RoPE().apply(q, k, POSITIONS), (3, None))(x, x[:, :1, :, 0])
    same(keys, (shared, torch.stack([shared[0, :, :1]] * 3)))
    # Where as many are mapped as there are batches, positions are not those of the batches.
    x = sample(3, 3, 5, 2, 8)
    separate = torch.stack([rotate(a, b) for a, b in zip(x, p, strict=True)])
    same(vmap(rotate)(x, p), separate)
    same(vmap(rope_xp.apply_tables)(x, *tables), separate)


def test_transforms_of_rotations_equal_those_of_plain_operations():
    x, w = sample(3, 5, 2, 8), sample(3, 5, 2, 8).flip(0)
    grad = torch.func.grad(lambda x, w: (rotate(x) * w).sum())
    same(torch.func.vmap(grad)(x, w), truth(grad, x, w))
    small = x[0, :, 0, :4].double()
    same(torch.func.jacrev(rotate)(small), truth(torch.func.jacrev(rotate), small))


def test_derivatives_in_forward_mode_take_plain_operations():
    x, forward_ad = sample(5, 2, 8), torch.autograd.forward_ad
    with rope_xp.use_path(None):
        assert rope_xp.explain(x, x).path == KERNELS
        with forward_ad.dual_level():
            same(forward_ad.unpack_dual(rotate(forward_ad.make_dual(x, x))).tangent, rotate(x))
        same(torch.func.functionalize(rotate)(x), rotate(x))
        hessian = torch.func.hessian(lambda x: rotate(x).pow(2).sum())(x[:, :1, :2])
        # cos**2 + sin**2, of tables within 3.4e-7 and twice over
        torch.testing.assert_close(hessian.reshape(10, 10), 2 * torch.eye(10), rtol=0, atol=3e-6)
