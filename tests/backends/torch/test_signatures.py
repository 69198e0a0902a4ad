"""Signatures of tensors, by which a call on a GPU finds the launch of an earlier one."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("rope_xp_backends.cpu._native")

from rope_xp_backends.torch import entry  # noqa: E402  # it needs torch

X = torch.ones(5, 2, 8)


def sign(*arrays, others=(), results=(), recorded=False):
    return entry.sign_tensors(arrays, others, results, recorded)


def sign_within(mode):
    with mode:
        return sign(X)


MEMORY, LEAF = torch.ones(4, 5, 8), torch.ones(2, 8, requires_grad=True)
with torch.inference_mode():
    INFERRED = torch.ones(5, 2, 8)
UNSIGNED = {
    "a class of the user": lambda: sign(type("Own", (torch.Tensor,), {})(X)),
    "an array of numpy": lambda: sign(X, others=(X.numpy(),)),
    "another device": lambda: sign(X, others=(torch.empty(8, device="meta"),)),
    "another dtype": lambda: sign(X.to(torch.int16)),
    "sparse": lambda: sign(X.to_sparse()),
    "negated": lambda: sign(X._neg_view()),
    "empty": lambda: sign(X[:0]),
    "a gradient": lambda: sign(X, others=(LEAF,)),
    "a result in another": lambda: sign(MEMORY[:3], X, results=(MEMORY[1:4], X)),
    "a result in what is read": lambda: sign(X, others=(MEMORY[1],), results=(MEMORY[1:2],)),
    "a result that is k": lambda: sign(X, MEMORY, results=(MEMORY, MEMORY)),
    "made under inference_mode": lambda: sign(X, results=(INFERRED,)),
    "too many": lambda: sign(X, others=(X,) * 16),
    "seen by a mode": lambda: sign_within(torch.overrides.TorchFunctionMode()),
}


@pytest.mark.parametrize("kind", UNSIGNED)
def test_tensors_that_a_launch_does_not_read_or_write_are_not_signed(kind):
    assert UNSIGNED[kind]() is None


def test_signatures_are_equal_where_a_launch_is():
    """They tell all that a kernel is compiled for and given, but for addresses."""
    q, k, at = torch.ones(1, 2, 4, 8), torch.ones(1, 2, 2, 8), torch.arange(2)
    askew, apart = torch.ones(65)[1:].view(1, 2, 4, 8), torch.ones(1, 2, 5, 8)[:, :, :4]
    calls = [
        ((q, k), (at,), ()),
        ((q, k), (at.int(),), ()),
        ((q, k), (at[:1],), ()),
        ((q, k), (at, at), ()),
        ((q, k), (at,), (q, k)),
        ((q, k), (at,), (None, k)),
        ((q, k), (at,), (q.clone(), k)),
        ((q.bfloat16(), k), (at,), ()),
        ((askew, k), (at,), ()),
        ((apart, k), (at,), ()),
        ((q.transpose(0, 1), k), (at,), ()),
    ]
    signed = [sign(*arrays, others=others, results=out) for arrays, others, out in calls]
    assert None not in signed
    assert len(set(signed)) == len(signed)
    assert signed[0] == sign(q.clone(), k.clone(), others=(at + 1,))
    x, y = (z.clone().requires_grad_() for z in (q, k))
    assert sign(x, y, others=(at,)) is None
    assert signed[0] == sign(x, y, others=(at,), recorded=True)
    with torch.no_grad():
        assert signed[0] == sign(x, y, others=(at,))
