"""torch: tensors of every kind, modules that are exported, and Angles within and across graphs."""

import numpy as np
import pytest
from support.torch_op import same, sample

import rope_xp
from rope_xp import RoPE, RopeError

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  # torch may be missing
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402  # torch may be missing
from torch.overrides import TorchFunctionMode  # noqa: E402  # torch may be missing
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  # torch may be missing

SEEN: list[str] = []  # names of operations


class Derived(torch.Tensor):
    """A class without functions of its own."""


class Counted(torch.Tensor):
    """A class that sees operations."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        SEEN.append(getattr(function, "__name__", ""))
        return super().__torch_function__(function, types, args, kwargs or {})


class Watch(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        SEEN.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Recording(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        SEEN.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


HALF, POSITIONS = RoPE(layout="half"), torch.arange(8) + 70_000
LATER = POSITIONS + 3
NORM = rope_xp.QKNorm(torch.ones(16), torch.ones(16))
CALLS = {
    "apply": lambda q, k: HALF.apply(q, k, POSITIONS),
    "norm": lambda q, k: HALF.apply(q, k, POSITIONS, norm=NORM),
    "k_positions": lambda q, k: HALF.apply(q, k, POSITIONS, k_positions=LATER),
    "angles": HALF.at(POSITIONS, like=torch.ones(1, 8, 1, 16)).apply,
}


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_apply_is_one_function_to_modes_and_keeps_derived_classes(call, records):
    q, k = (sample(1, 8, n, 16, grad=records) for n in (4, 2))
    expected = CALLS[call](q, k)
    SEEN.clear()
    with Watch():
        got = CALLS[call](q, k)
    assert SEEN in (["rotate_by_rope"], ["rotate_by_tables"])
    same(got, expected)
    derived = CALLS[call](q.as_subclass(Derived), k.as_subclass(Derived))
    assert all(type(y) is Derived for y in derived)
    same([y.as_subclass(torch.Tensor) for y in derived], expected)
    counted = CALLS[call](q.as_subclass(Counted), k.as_subclass(Counted))
    assert "mul" in SEEN  # so it sees what it may change
    same([y.as_subclass(torch.Tensor) for y in counted], expected)
    if records:
        gradients = torch.autograd.grad([y.sum() for y in derived], (q, k))
        same(gradients, torch.autograd.grad([y.sum() for y in expected], (q, k)))


def test_exported_modules_hold_plain_operations_and_serve_all_lengths():
    class Attention(torch.nn.Module):
        forward = staticmethod(HALF.apply)

    tokens = torch.export.Dim("tokens", min=2, max=4096)
    arrays = sample(1, 8, 4, 16), sample(1, 8, 2, 16), POSITIONS
    shapes = ({1: tokens}, {1: tokens}, {0: tokens})
    program = torch.export.export(Attention(), arrays, dynamic_shapes=shapes, strict=False)
    assert not [node for node in program.graph.nodes if "rope_xp" in str(node.target)]
    arguments = sample(1, 77, 4, 16), sample(1, 77, 2, 16), torch.arange(77) + 1_000_000
    same(program.module()(*arguments), HALF.apply(*arguments))


@pytest.mark.parametrize("norm", [None, (torch.ones(16), 1e-6)])
def test_a_trace_of_operations_sees_what_is_written_to_out(norm):
    def write(x):
        HALF.rotate(x, POSITIONS, out=x, norm=norm)
        return x * 2

    x, y = sample(1, 8, 4, 16), sample(1, 8, 4, 16)
    same(make_fx(write)(x.clone())(x), write(y))
    same(x, y)


def test_apply_gives_meta_tensors_of_the_same_shape_for_meta_tensors():
    q, k = torch.empty(2, 9, 4, 16, device="meta"), torch.empty(2, 9, 2, 16, device="meta")
    for positions in (None, np.arange(9), torch.arange(9, device="meta")):
        results = rope_xp.apply(q, k, positions)
        assert [(y.device.type, y.shape) for y in results] == [("meta", q.shape), ("meta", k.shape)]
    rope_xp.apply(q, k, out=(torch.empty_like(q), torch.empty_like(k)))


class DefaultDtype:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.set_default_dtype(torch.float32)


X = sample(3, 2, 8)
TRANSFORMS = {
    "functionalize": lambda f: torch.func.functionalize(f)(X),
    "make_fx": lambda f: make_fx(lambda x: torch.func.functionalize(f)(x))(X),
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
}
MODES = {
    "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "inference": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "default dtype": DefaultDtype,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize(("base", "mode"), [*enumerate([*TRANSFORMS, *MODES], 4000)])
def test_tables_made_under_modes_and_transforms_serve_plain_calls(base, mode):
    rope, p, got = RoPE(base=float(base)), [0, 65_536, 1_000_000], []
    if mode in TRANSFORMS:
        TRANSFORMS[mode](rope.rotate)
    for path in (None, "portable") if mode in MODES else ():
        with rope_xp.use_path(path), MODES[mode]():
            got.append(rope.rotate(X, p))
    expected = torch.from_numpy(rope.rotate(X.numpy(), p))
    assert mode == "fake" or all(torch.equal(y, expected) for y in got)
    same(rope.rotate(X, p), expected)
    positions = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
    rope.rotate(X, positions).sum().backward()  # which saves the frequencies
    assert positions.grad is not None


KINDS = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x[:, 0].to_sparse_csr(),
    "_mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
    r"nested tensor, and dense ones are taken; rotate its values\(\), at": lambda x: (
        torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)
    ),
}
DENSE = sample(4, 2, 8)
USES = {
    "x": RoPE().rotate,
    "q": lambda x: rope_xp.apply(x, DENSE),
    "k": lambda x: rope_xp.explain(DENSE, x),
    "out": lambda x: RoPE().rotate(DENSE, out=x),
    r"out\[1\]": lambda x: rope_xp.apply(DENSE, DENSE, out=(DENSE.clone(), x)),
    "positions": lambda x: RoPE().rotate(DENSE, x),
    "new_positions": lambda x: RoPE().rerotate(DENSE, None, x),
    "cos": lambda x: rope_xp.apply_tables(DENSE, x, x),
}


@pytest.mark.filterwarnings("ignore:(.*nested tensors is in prot|Sparse CSR tensor):UserWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", USES)
@pytest.mark.parametrize("path", [None, "portable"])
def test_tensors_that_are_not_dense_are_refused(argument, kind, path):
    given = KINDS[kind](DENSE)
    end = ".* dense ones are taken; " if "taken" not in kind else " positions.packed of its"
    message = f"^{argument}(:| is) a .*{kind}{end}"
    with rope_xp.use_path(path), pytest.raises(RopeError, match=message):
        USES[argument](given)


MATRICES = {"mm", "bmm", "matmul", "addmm", "baddbmm", "dot", "mv"}


@pytest.mark.parametrize("path", [None, "portable"])
def test_angles_are_no_product_of_matrices(path):
    """TF32, which such products may take, has no odd number above 2048."""
    q, k = sample(1, 8, 4, 16, grad=True), sample(1, 8, 2, 16, grad=True)
    SEEN.clear()
    with rope_xp.use_path(path), Recording():
        torch.autograd.grad([y.sum() for y in HALF.apply(q, k, POSITIONS)], (q, k))
        HALF.at(POSITIONS, like=q)
    assert SEEN
    assert not MATRICES & {*SEEN}
    with Recording():  # as models compute them
        torch.ones(1, 4, 1) @ POSITIONS.float()[None, None]
    assert MATRICES & {*SEEN}
