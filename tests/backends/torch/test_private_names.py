"""Calls and derivatives need no private name of torch."""

import importlib
import inspect
import itertools
import pkgutil
import re

import numpy as np
import pytest
from support.ways import decline_all

from rope_xp import RoPE

torch = pytest.importorskip("torch")

from rope_xp_backends.torch import private  # noqa: E402  # it needs torch

NAMES = re.findall(r"_resolve\(\s*f?\"([^\"]+)\"", inspect.getsource(private))
BASES = itertools.count(30_000)  # of no rope whose tables are cached


@pytest.fixture(autouse=True)
def _with_all_names():
    yield
    importlib.reload(private)


@pytest.mark.parametrize(
    "missing", [[n.partition("{")[0]] for n in NAMES] + [NAMES], ids=lambda names: names[0]
)
def test_rotate_and_its_derivatives_are_right_where_torch_lacks_a_private_name(
    missing, monkeypatch
):
    def resolve(name):
        if name.startswith(tuple(missing)):
            raise AttributeError(name)
        return found(name)

    found = pkgutil.resolve_name
    monkeypatch.setattr(pkgutil, "resolve_name", resolve)
    importlib.reload(private)
    monkeypatch.undo()
    decline_all(monkeypatch)  # the entry is told of such names at import
    rope, x = RoPE(base=float(next(BASES))), torch.randn(2, 3, 2, 8)
    turned = torch.from_numpy(rope.rotate(x.numpy()))
    back = torch.from_numpy(rope.unrotate(np.ones((2, 3, 2, 8), np.float32)))
    assert torch.equal(torch.func.grad(lambda x: rope.rotate(x).sum())(x), back)
    assert torch.equal(torch.func.vmap(rope.rotate)(x), turned)
    assert torch.equal(torch.func.jvp(rope.rotate, (x,), (x,))[1], turned)
    assert torch.equal(rope.rotate(x), turned)
    leaf = x.clone().requires_grad_()
    rope.rotate(leaf).sum().backward()
    assert torch.equal(leaf.grad, back)
