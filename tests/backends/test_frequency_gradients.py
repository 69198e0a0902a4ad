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


def differentiate(function, arrays, order=1, dtype=None):
    torch = importlib.import_module("torch")
    leaves = [torch.from_numpy(x).to(dtype).requires_grad_() for x in arrays]
    total = function(*leaves)
    if order == 2:
        first = torch.autograd.grad(total, leaves, create_graph=True)
        total = sum(x.square().sum() for x in first)
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros(()) if x is None else x.double() for x in gradients]


def loss(*arrays, layout="half", used=slice(None)):
    return sum((y * y.cos()).sum() for y in apply_frequencies(*arrays, layout=layout)[used])


@pytest.mark.parametrize(
    ("options", "shape", "order"),
    [
        ({}, (2, 2), 1),
        ({"layout": "interleaved"}, (2,), 1),
        ({"layout": "interleaved_to_half"}, (2, 2, 2), 1),
        ({"used": slice(1)}, (2, 2), 1),
        ({"used": slice(1, 2)}, (2,), 1),
        ({}, (2, 2, 2), 2),
    ],
)
@pytest.mark.parametrize("compiles", [False, slow(True)])
def test_gradients_of_float32_far_out_equal_those_of_float64(options, shape, order, compiles):
    """The derivative with respect to a frequency is a position: it has to be as exact."""
    torch = pytest.importorskip("torch")
    function = partial(loss, **options)
    far = [1_000_000, 999_983]
    arrays = sample(shape, [far, far[::-1]] if len(shape) == 3 else far, np.float32)
    wide = differentiate(function, arrays, order, torch.float64)
    if compiles:
        if order == 2:
            pytest.skip("torch.compile has no second derivatives")
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    for narrow, exact in zip(differentiate(function, arrays, order), wide, strict=True):
        torch.testing.assert_close(narrow, exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())
