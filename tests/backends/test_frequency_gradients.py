"""apply_frequencies: derivatives with respect to all that it takes, in torch and jax."""

import importlib
from functools import partial

import numpy as np
import pytest
from support.cases import slow

import rope_xp

SHAPES = [(2,), (2, 2), (2, 2, 2)]
apply_frequencies = partial(rope_xp.apply_frequencies, layout="half")


def sample(shape):
    rng = np.random.default_rng(0)
    lead = (shape[0],) if len(shape) == 3 else ()
    return {
        "q": rng.standard_normal((2, 4, 5)),
        "k": rng.standard_normal((2, 2, 5)),
        "positions": rng.uniform(-3, 3, (*lead, 2)),
        "frequencies": rng.standard_normal(shape),
    }


def sample_far(dtype=np.float32):
    """Return arrays with positions near a million."""
    arrays = sample((2, 2)) | {"positions": np.array([1_000_000, 999_983])}
    return tuple(x.astype(dtype) for x in arrays.values())


def loss(*arrays):
    return sum((y * y.cos()).sum() for y in apply_frequencies(*arrays))


@pytest.mark.parametrize("shape", [*map(slow, SHAPES[:2]), SHAPES[2]])
def test_gradients_of_torch_equal_differences_for_all_arguments(shape):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(x).requires_grad_() for x in sample(shape).values()]
    assert torch.autograd.gradcheck(apply_frequencies, leaves, check_forward_ad=True)
    if len(shape) == 3:  # as slow as all others together
        assert torch.autograd.gradgradcheck(apply_frequencies, leaves)


@pytest.mark.slow
@pytest.mark.parametrize(("order", "modes"), [(1, ["rev"]), (2, ["fwd", "rev"])])
def test_gradients_of_jax_equal_differences_for_all_arguments(order, modes):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        arrays = [jax.numpy.asarray(x) for x in sample(SHAPES[-1]).values()]
        check = importlib.import_module("jax.test_util").check_grads
        check(jax.jit(apply_frequencies), arrays, order=order, modes=modes)


def test_gradients_of_float32_far_out_equal_those_of_float64():
    """The derivative with respect to a frequency is a position: it has to be as exact."""
    torch = pytest.importorskip("torch")
    gradients = []
    for dtype in (torch.float32, torch.float64):
        q, k, p, f = map(torch.from_numpy, sample_far())
        q, k, f = (x.to(dtype).requires_grad_() for x in (q, k, f))
        loss(q, k, p.to(torch.int64), f).backward()
        gradients.append([x.grad.double() for x in (q, k, f)])
    for narrow, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(narrow, exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())


@pytest.mark.slow
def test_gradients_under_torch_compile_equal_eager_ones():
    torch = pytest.importorskip("torch")
    gradients = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [torch.from_numpy(x).requires_grad_() for x in sample_far()]
        function(*leaves).backward()
        gradients.append([x.grad for x in leaves])
    for eager, traced in zip(*gradients, strict=True):
        # Cosines of what is rotated may differ in last bits.
        size = eager.abs().max().item()
        torch.testing.assert_close(traced, eager, rtol=1e-5, atol=1e-6 * size)
