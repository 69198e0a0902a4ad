"""A version of torch that lacks a private name: calls take the slow path, and give the same."""

import inspect
import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest

from rope_xp import RoPE
from rope_xp._dispatch import call_cache

torch = pytest.importorskip("torch")

from rope_xp_backends.torch import private  # noqa: E402  # it needs torch

NAMES = re.findall(r"^(\w+)(?::.*)? = _resolve\(", inspect.getsource(private), re.MULTILINE)
BASES = itertools.count(30_000)  # of no rope whose tables are cached


@pytest.fixture(params=[[name] for name in NAMES] + [NAMES], ids=lambda names: names[0])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    call_cache.CALLS.cache_clear()
    for name in request.param:
        monkeypatch.setattr(private, name, None)
    yield request.param
    call_cache.CALLS.cache_clear()


def test_a_missing_name_is_no_error(missing: list[str]) -> None:
    rope = RoPE(base=float(next(BASES)))
    x = torch.randn(2, 3, 2, 8)
    turned = torch.from_numpy(rope.rotate(x.numpy()))
    back = torch.from_numpy(rope.unrotate(np.ones((2, 3, 2, 8), np.float32)))
    assert torch.equal(torch.func.grad(lambda x: rope.rotate(x).sum())(x), back)
    assert torch.equal(torch.func.vmap(rope.rotate)(x), turned)
    assert torch.equal(torch.func.jvp(rope.rotate, (x,), (x,))[1], turned)
    for _ in range(2):
        assert torch.equal(rope.rotate(x), turned)
        leaf = x.clone().requires_grad_()
        rope.rotate(leaf).sum().backward()
        assert torch.equal(leaf.grad, back)
    if set(missing) & {"_guard_scalar", "_known_true"}:
        torch._dynamo.reset()
        compiled = torch.compile(rope.rotate, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), turned)
