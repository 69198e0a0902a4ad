"""What other kernels were tripped up by: products of matrices, and gradients without strides."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  # torch may be missing

import rope_xp  # noqa: E402  # torch may be missing
from rope_xp import RoPE  # noqa: E402  # torch may be missing

MATRICES = ("mm", "bmm", "matmul", "addmm", "baddbmm", "einsum", "dot", "mv")


class Recording(TorchDispatchMode):
    """Notes the name of each operator that runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def products(names):
    return [name for name in names if name in MATRICES]


@pytest.mark.parametrize("path", [None, "portable"])
def test_angles_are_no_product_of_matrices(path):
    """Such a product may run in TF32, which has no odd number above 2048."""
    q, k = torch.ones(1, 3, 4, 8, requires_grad=True), torch.ones(1, 3, 2, 8, requires_grad=True)
    positions = torch.tensor([2049, 65_537, 1_000_001])
    with rope_xp.use_path(path), Recording() as seen:
        rotated = RoPE().apply(q, k, positions)
        (rotated[0].sum() + rotated[1].sum()).backward()
        RoPE().at(positions, like=q)
    assert seen.names
    assert products(seen.names) == []
    with Recording() as usual:  # as models compute them
        torch.ones(1, 4, 1) @ positions.float()[None, None]
    assert products(usual.names)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_gradients_of_a_sum_lie_in_no_memory_of_their_own(layout):
    """The gradient of a sum is one number with strides of 0."""
    rope, positions = RoPE(layout=layout), torch.arange(600)
    q, k = (torch.randn(2, 600, n, 64, requires_grad=True) for n in (4, 2))
    first, second = rope.apply(q, k, positions)
    (first.sum() + second.sum()).backward()
    for x in (q, k):
        expected = rope.unrotate(torch.ones_like(x), positions)
        torch.testing.assert_close(x.grad, expected, rtol=0, atol=0)
