"""Angles are computed by no product of matrices, which may run in TF32."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  # torch may be missing

import rope_xp  # noqa: E402  # torch may be missing
from rope_xp import RoPE  # noqa: E402  # torch may be missing

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
