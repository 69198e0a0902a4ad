"""Plans of kernels on CPUs, made of what torch's operators are given."""

import pytest

from rope_xp import RoPE, RopeError

torch = pytest.importorskip("torch")
pytest.importorskip("llvmlite")

from rope_xp_backends.torch import cpu  # noqa: E402  # it needs torch


def test_ropes_that_differ_in_numbers_alone_share_a_plan():
    cpu.plan_layouts.cache_clear()
    for base in range(10_000, 10_040):
        RoPE(base=base).rotate(torch.ones(3, 2, 8), torch.arange(3))
    assert cpu.plan_layouts.cache_info().currsize == 1


def test_components_beyond_those_of_positions_are_refused():
    x = torch.ones(1, 3, 2, 8)
    RoPE().rotate(x)  # which registers the operators
    low, high, positions = torch.ones(2048, 8), torch.ones(513, 8), torch.zeros(3, 2).long()
    for component in (2, -1):
        components = torch.full((4,), component).int()
        lookup = positions, None, low, low, high, None, components, "bshd", "half", 0, False
        with pytest.raises(RopeError, match="components must be indices below 2"):
            torch.ops.rope_xp.rotate(x, *lookup)
