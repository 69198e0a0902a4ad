"""apply_frequencies: derivatives with respect to all that it takes, in torch and jax."""

import importlib
from functools import partial

import numpy as np
import pytest
from support.cases import slow

import rope_xp

apply_frequencies = partial(rope_xp.apply_frequencies, layout="half")


def sample(shape, positions=None, dtype=np.float64):
    rng = np.random.default_rng(0)
    lead = (shape[0],) if len(shape) == 3 else ()
    positions = rng.uniform(-3, 3, (*lead, 2)) if positions is None else np.array(positions)
    frequencies = rng.standard_normal(shape)
    q, k = rng.standard_normal((2, 4, 5)), rng.standard_normal((2, 2, 5))
    return [x.astype(dtype) for x in (q, k, positions, frequencies)]


def differentiate(function, arrays, dtype=None):
    leaves = [importlib.import_module("torch").from_numpy(x).to(dtype) for x in arrays]
    for x in leaves:
        x.requires_grad_()
    function(*leaves).backward()
    return [x.grad.double() for x in leaves]


def loss(*arrays):
    return sum((y * y.cos()).sum() for y in apply_frequencies(*arrays))


@pytest.mark.parametrize("shape", [slow((2,)), slow((2, 2)), (2, 2, 2)])
def test_gradients_of_torch_equal_differences_for_all_arguments(shape):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(x).requires_grad_() for x in sample(shape)]
    assert torch.autograd.gradcheck(apply_frequencies, leaves, check_forward_ad=True)
    if len(shape) == 3:  # as slow as all others together
        assert torch.autograd.gradgradcheck(apply_frequencies, leaves)


@pytest.mark.slow
@pytest.mark.parametrize(("order", "modes"), [(1, ["rev"]), (2, ["fwd", "rev"])])
def test_gradients_of_jax_equal_differences_for_all_arguments(order, modes):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        arrays = [jax.numpy.asarray(x) for x in sample((2, 2, 2))]
        check = importlib.import_module("jax.test_util").check_grads
        check(jax.jit(apply_frequencies), arrays, order=order, modes=modes)


@pytest.mark.parametrize("compiles", [False, slow(True)])
def test_gradients_of_float32_far_out_equal_those_of_float64(compiles):
    """The derivative with respect to a frequency is a position: it has to be as exact."""
    torch = pytest.importorskip("torch")
    function = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiles else loss
    arrays = sample((2, 2), [1_000_000, 999_983], np.float32)
    wide = differentiate(loss, arrays, torch.float64)
    for narrow, exact in zip(differentiate(function, arrays), wide, strict=True):
        torch.testing.assert_close(narrow, exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())
