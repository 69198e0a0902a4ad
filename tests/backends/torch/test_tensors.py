"""torch: tensors of every kind, modules that are exported, and Angles within and across graphs."""

import numpy as np
import pytest
from support.torch_op import same, sample

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import YaRN

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402  # torch may be missing
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  # torch may be missing


class Derived(torch.Tensor):
    """A class without functions of its own."""


class Counted(torch.Tensor):
    """A class that sees operations."""

    seen: list[str] = []  # noqa: RUF012  # of all instances

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(getattr(function, "__name__", ""))
        return super().__torch_function__(function, types, args, kwargs or {})


class Watch(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("records", [False, True])
def test_modes_and_derived_classes_see_one_function(records):
    q, k, positions = sample(1, 8, 4, 16), sample(1, 8, 2, 16), torch.arange(8) + 70_000
    rope, norm = RoPE(layout="half"), rope_xp.QKNorm(sample(16), sample(16))
    later = positions + 3
    angles = rope.at(positions, like=q)
    for x in (q, k):
        x.requires_grad_(records)
    calls = (
        lambda q, k: rope.apply(q, k, positions),
        lambda q, k: rope.apply(q, k, positions, norm=norm),
        lambda q, k: rope.apply(q, k, positions, k_positions=later),
        angles.apply,
    )
    for call in calls:
        expected = call(q, k)
        with Watch() as mode:
            got = call(q, k)
        same(got, expected)
        assert mode.seen in (["rotate_by_rope"], ["rotate_by_tables"])
        derived = call(q.as_subclass(Derived), k.as_subclass(Derived))
        assert all(type(y) is Derived for y in derived)
        same([y.as_subclass(torch.Tensor) for y in derived], expected)
        Counted.seen.clear()
        counted = call(q.as_subclass(Counted), k.as_subclass(Counted))
        assert "mul" in Counted.seen
        same([y.as_subclass(torch.Tensor) for y in counted], expected)
        if records:
            gradients = torch.autograd.grad([y.sum() for y in derived], (q, k))
            same(gradients, torch.autograd.grad([y.sum() for y in expected], (q, k)))


class Attention(torch.nn.Module):
    rope = RoPE(base=5e5, layout="half")

    def forward(self, q, k, positions):
        return self.rope.apply(q, k, positions)


def test_exported_modules_hold_plain_operations_and_serve_all_lengths():
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    q, k, p = sample(1, 8, 4, 16), sample(1, 8, 2, 16), torch.arange(8)
    shapes = ({1: tokens}, {1: tokens}, {0: tokens})
    program = torch.export.export(Attention(), (q, k, p), dynamic_shapes=shapes, strict=False)
    assert not [node for node in program.graph.nodes if "rope_xp" in str(node.target)]
    arguments = sample(1, 77, 4, 16), sample(1, 77, 2, 16), torch.arange(77) + 1_000_000
    same(program.module()(*arguments), Attention()(*arguments))


def test_meta_tensors_give_meta_tensors_of_the_same_shape():
    q, k = torch.empty(2, 9, 4, 16, device="meta"), torch.empty(2, 9, 2, 16, device="meta")
    for positions in (None, np.arange(9), torch.arange(9, device="meta")):
        got_q, got_k = rope_xp.apply(q, k, positions)
        assert got_q.device.type == got_k.device.type == "meta"
        assert got_q.shape == q.shape
    rope_xp.apply(q, k, out=(torch.empty_like(q), torch.empty_like(k)))


def test_tables_made_under_transforms_serve_plain_calls():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def fake(f):
        with FakeTensorMode(allow_non_fake_inputs=True):
            f(x)
            f(torch.ones(3, 2, 8))

    x = sample(3, 2, 8)
    transforms = (
        lambda f: torch.func.functionalize(f)(x),
        lambda f: make_fx(lambda x: torch.func.functionalize(f)(x))(x),
        lambda f: torch.func.grad(lambda x: f(x).sum())(x),
        fake,
    )
    for base, transform in enumerate(transforms, 4000):
        rope = RoPE(base=float(base))
        transform(rope.rotate)
        np.testing.assert_array_equal(rope.rotate(x).numpy(), rope.rotate(x.numpy()))


def test_tables_made_in_inference_mode_serve_training():
    rope, x = RoPE(base=87_654.0), sample(3, 2, 8, grad=True)
    with torch.inference_mode():
        rope.rotate(x.detach().clone())
    rope.rotate(x).sum().backward()
    assert x.grad is not None
    positions = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
    rope.rotate(x, positions).sum().backward()  # which saves the frequencies
    assert positions.grad is not None


def test_tables_ignore_the_default_device_and_dtype():
    x = sample(3, 2, 8)
    expected = RoPE(base=76_543.0).rotate(x)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            got = RoPE(base=76_543.0).rotate(x, [0, 1, 2])
            other = RoPE(base=65_432.0).rotate(x)
    finally:
        torch.set_default_dtype(torch.float32)
    same(got, expected)
    same(other, RoPE(base=65_432.0).rotate(x))


def test_angles_under_autocast_are_exact():
    x, p = sample(3, 2, 8), [0, 65_536, 1_000_000]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = RoPE().rotate(x, p)
    same(got, RoPE().rotate(x, p))


KINDS = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x[:, 0].to_sparse_csr(),
    "_mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
    r"nested tensor, and dense ones are taken; rotate its values\(\), at": lambda x: (
        torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)
    ),
}
USES = {
    "x": RoPE().rotate,
    "q": lambda x: rope_xp.apply(x, sample(4, 2, 8)),
    "k": lambda x: rope_xp.explain(sample(4, 2, 8), x),
    "out": lambda x: RoPE().rotate(sample(4, 2, 8), out=x),
    r"out\[1\]": lambda x: rope_xp.apply(*[sample(4, 2, 8)] * 2, out=(sample(4, 2, 8), x)),
    "positions": lambda x: RoPE().rotate(sample(4, 2, 8), x),
    "new_positions": lambda x: RoPE().rerotate(sample(4, 2, 8), None, x),
    "cos": lambda x: rope_xp.apply_tables(sample(4, 2, 8), x, x),
}


@pytest.mark.filterwarnings(
    "ignore:(.*nested tensors is in prototype|Sparse CSR tensor):UserWarning"
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", USES)
def test_tensors_that_are_not_dense_are_refused(argument, kind):
    given = KINDS[kind](sample(4, 2, 8))
    end = ".* dense ones are taken; " if "taken" not in kind else " positions.packed of its"
    message = f"^{argument}(:| is) a .*{kind}{end}"
    for path in (None, "portable"):
        with rope_xp.use_path(path), pytest.raises(RopeError, match=message):
            USES[argument](given)


@pytest.mark.parametrize("path", [None, "portable"])
def test_gradients_by_shared_angles_equal_layer_by_layer(path):
    rope, p = RoPE(layout="half", scaling=YaRN(4.0, 4096)), torch.arange(5) + 70_000
    gradients = []
    for shared in (True, False):
        q, k = sample(1, 5, 4, 16, grad=True), sample(1, 5, 2, 16, grad=True)
        with rope_xp.use_path(path):
            angles, at = (rope.at(p, like=q), ()) if shared else (rope, (p,))
            results = angles.apply(*angles.apply(q, k, *at), *at)
            results = angles.unrotate(results[0], *at), results[1]
            gradients.append(torch.autograd.grad([x.square().sum() for x in results], (q, k)))
    same(*gradients)


@pytest.mark.parametrize("of", ["cos", "sin"])
def test_gradients_of_tables_equal_differences(of):
    x, tables = sample(5, 2, 8, dtype=torch.float64), {}
    for name, t in zip(("cos", "sin"), RoPE().cos_sin(torch.arange(5), 8), strict=True):
        tables[name] = t.double().requires_grad_(name == of)

    def rotate(table):
        return RoPE().with_tables(**(tables | {of: table})).apply(x, x[:, :1])

    assert torch.autograd.gradcheck(rotate, tables[of])


MATRICES = {"mm", "bmm", "matmul", "addmm", "baddbmm", "einsum", "dot", "mv"}


class Recording(TorchDispatchMode):
    """Notes the name of each operator that runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("path", [None, "portable"])
def test_angles_are_no_product_of_matrices(path):
    """TF32 has no odd number above 2048."""
    q, k = torch.ones(1, 3, 4, 8, requires_grad=True), torch.ones(1, 3, 2, 8, requires_grad=True)
    positions = torch.tensor([2049, 65_537, 1_000_001])
    with rope_xp.use_path(path), Recording() as seen:
        rotated = RoPE().apply(q, k, positions)
        (rotated[0].sum() + rotated[1].sum()).backward()
        RoPE().at(positions, like=q)
    with Recording() as usual:  # as models compute them
        torch.ones(1, 4, 1) @ positions.float()[None, None]
    assert seen.names
    assert not MATRICES & {*seen.names}
    assert MATRICES & {*usual.names}
