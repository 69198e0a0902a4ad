"""torch: modules that are exported and saved, and tensors of every other kind."""

import numpy as np
import pytest
from support.exhaustive import exhaustive

import rope_xp
from rope_xp import RoPE, RopeError

torch = pytest.importorskip("torch")


def sample(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return made.requires_grad_(grad)


class Attention(torch.nn.Module):
    """A module with a rope of its own, as models have."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = RoPE(base=5e5, layout="half")

    def forward(self, q, k, positions):
        return self.rope.apply(q, k, positions)


@pytest.mark.parametrize("strict", [exhaustive(True), False])
def test_export(strict: bool) -> None:
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    q, k, p = sample(1, 8, 4, 16), sample(1, 8, 2, 16), torch.arange(8)
    shapes = ({1: tokens}, {1: tokens}, {0: tokens})
    program = torch.export.export(Attention(), (q, k, p), dynamic_shapes=shapes, strict=strict)
    q, k, p = sample(1, 77, 4, 16), sample(1, 77, 2, 16), torch.arange(77) + 1_000_000
    got, expected = program.module()(q, k, p), Attention()(q, k, p)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=0, atol=0)


def test_meta_tensors() -> None:
    q, k = torch.empty(2, 9, 4, 16, device="meta"), torch.empty(2, 9, 2, 16, device="meta")
    for positions in (None, np.arange(9), torch.arange(9, device="meta")):
        got_q, got_k = rope_xp.apply(q, k, positions)
        assert got_q.device.type == got_k.device.type == "meta"
        assert got_q.shape == q.shape
    rope_xp.apply(q, k, out=(torch.empty_like(q), torch.empty_like(k)))


def test_gradient_of_float_positions() -> None:
    """d rotate / d p is the derivative through the fraction: the digits are constants."""
    positions = torch.tensor([0.5, 1000.25], dtype=torch.float64, requires_grad=True)
    x = sample(2, 1, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: RoPE().rotate(x, p), positions)
    single = positions.detach().float().requires_grad_()
    RoPE().rotate(x.float(), single).sum().backward()
    RoPE().rotate(x, positions).sum().backward()
    torch.testing.assert_close(single.grad.double(), positions.grad, rtol=0, atol=1e-5)


def test_transforms_leave_no_wrappers_in_the_cache() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def fake(f):
        with FakeTensorMode(allow_non_fake_inputs=True):
            f(x)

    x = sample(3, 2, 8)
    for i, transform in enumerate(
        (
            lambda f: torch.func.functionalize(f)(x),
            lambda f: make_fx(lambda x: torch.func.functionalize(f)(x))(x),
            lambda f: torch.func.grad(lambda x: f(x).sum())(x),
            fake,
        )
    ):
        rope = RoPE(base=4000.0 + i)
        transform(rope.rotate)
        np.testing.assert_array_equal(rope.rotate(x).numpy(), rope.rotate(x.numpy()))


def test_in_place_under_vmap() -> None:
    x = sample(3, 5, 2, 8)
    expected = RoPE().rotate(x)
    got = torch.func.vmap(lambda x: RoPE().rotate(x, out=x))(x.clone())
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_tables_made_in_inference_mode_serve_training() -> None:
    rope, x = RoPE(base=87_654.0), sample(3, 2, 8, grad=True)
    with torch.inference_mode():
        rope.rotate(x.detach().clone())
    rope.rotate(x).sum().backward()
    assert x.grad is not None
    positions = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
    rope.rotate(x, positions).sum().backward()  # which saves the frequencies
    assert positions.grad is not None


def test_default_device_and_dtype_do_not_matter() -> None:
    x = sample(3, 2, 8)
    expected = RoPE(base=76_543.0).rotate(x)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            got = RoPE(base=76_543.0).rotate(x, [0, 1, 2])
            other = RoPE(base=65_432.0).rotate(x)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    torch.testing.assert_close(other, RoPE(base=65_432.0).rotate(x), rtol=0, atol=0)


def test_autocast_does_not_lower_the_angles() -> None:
    x = sample(3, 2, 8)
    p = [0, 65_536, 1_000_000]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = RoPE().rotate(x, p)
    torch.testing.assert_close(got, RoPE().rotate(x, p), rtol=0, atol=0)


KINDS = {
    "sparse_coo": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x[:, 0].to_sparse_csr(),
    "_mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
    "nested tensor, and": lambda x: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged),
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
@pytest.mark.covering
@pytest.mark.parametrize("path", [None, "portable", "llvm"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("argument", USES)
def test_tensors_that_are_not_dense_are_refused(argument: str, kind: str, path: str | None) -> None:
    given = KINDS[kind](sample(4, 2, 8))
    with (
        rope_xp.use_path(path),
        pytest.raises(RopeError, match=f"^{argument}(:| is) a .*{kind}.* dense ones are taken; "),
    ):
        USES[argument](given)


def test_fake_tensors_do_not_get_into_the_cache() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    rope = RoPE(base=98_765.0)
    with FakeTensorMode():
        assert rope.rotate(torch.ones(3, 2, 8)).shape == (3, 2, 8)
    x = sample(3, 2, 8)
    np.testing.assert_array_equal(rope.rotate(x).numpy(), rope.rotate(x.numpy()))
