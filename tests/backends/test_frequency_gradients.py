"""apply_frequencies: derivatives with respect to all that it takes, in torch and jax."""

import importlib
from typing import Any

import numpy as np
import pytest
from support.exhaustive import exhaustive

from rope_xp import apply_frequencies

SHAPES = [(2,), (2, 2), (2, 2, 2)]


def sample(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    lead = (shape[0],) if len(shape) == 3 else ()
    return {
        "q": rng.standard_normal((1, 2, 4, 5)),
        "k": rng.standard_normal((1, 2, 2, 5)),
        "positions": rng.uniform(-3, 3, (*lead, 2)),
        "frequencies": rng.standard_normal(shape),
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_follows_all(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    given = [torch.from_numpy(x).requires_grad_() for x in sample(shape).values()]
    check = (lambda *x: apply_frequencies(*x, layout="half"), given)
    assert torch.autograd.gradcheck(*check, check_forward_ad=True)
    if len(shape) == 3:  # as slow as all others together
        assert torch.autograd.gradgradcheck(*check)


@pytest.mark.parametrize("order", [1, exhaustive(2)])
def test_jax_follows_all(order: int) -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        given = [jax.numpy.asarray(x) for x in sample(SHAPES[-1]).values()]
        check = importlib.import_module("jax.test_util").check_grads
        check(jax.jit(lambda *x: apply_frequencies(*x, layout="half")), given, order=order)


def far(dtype: Any) -> tuple[np.ndarray, ...]:
    """Return arrays with positions near a million."""
    given = sample((2, 2)) | {"positions": np.array([1_000_000, 999_983])}
    return tuple(x.astype(dtype) for x in given.values())


def test_gradients_of_float32_far_out_are_those_of_float64() -> None:
    """The derivative with respect to a frequency is a position: it has to be as exact."""
    torch = pytest.importorskip("torch")
    found: list[Any] = []
    for dtype in (np.float32, np.float64):
        q, k, p, f = map(torch.from_numpy, far(np.float32))
        wide = getattr(torch, np.dtype(dtype).name)
        q, k, f = (x.to(wide).requires_grad_() for x in (q, k, f))
        rotated = apply_frequencies(q, k, p.to(torch.int64), f, layout="half")
        sum((y * y.cos()).sum() for y in rotated).backward()
        found.append([x.grad.double() for x in (q, k, f)])
    for narrow, exact in zip(*found, strict=True):
        torch.testing.assert_close(narrow, exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())


def test_learned_frequencies_under_torch_compile() -> None:
    torch = pytest.importorskip("torch")

    def loss(q: Any, k: Any, p: Any, f: Any) -> Any:
        return sum((y * y.cos()).sum() for y in apply_frequencies(q, k, p, f, layout="half"))

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (loss, compiled):
        given = [torch.from_numpy(x).requires_grad_() for x in far(np.float32)]
        function(*given).backward()
        grads.append([x.grad for x in given])
    for eager, traced in zip(*grads, strict=True):
        # Cosines of what is rotated may differ in last bits.
        size = eager.abs().max().item()
        torch.testing.assert_close(traced, eager, rtol=1e-5, atol=1e-6 * size)


def test_jax_jit_and_vmap() -> None:
    jax = pytest.importorskip("jax")
    q, k, p, f = map(jax.numpy.asarray, far(np.float32))

    def turned(f: Any) -> Any:
        return apply_frequencies(q, k, p, f, layout="half")[0]

    many = jax.numpy.stack([f, 2 * f])
    together = jax.jit(jax.vmap(turned))(many)
    for found, own in zip(together, many, strict=True):
        np.testing.assert_allclose(found, turned(own), rtol=0, atol=2e-6)
