"""What is launched on GPUs, and when calls go by another path, without a GPU."""

import contextlib
import ctypes
import shutil
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.programs import printed

import rope_xp
from rope_xp import QKNorm, RoPE, RopeError
from rope_xp._core.path import PathUnavailable
from rope_xp._dispatch.kernels import Kernels

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("rope_xp_backends.cpu._native")  # which reads tensors for launches

from rope_xp_backends.torch import gpu, library  # noqa: E402  # they need torch
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  # it needs torch

X, WEIGHT = torch.ones(5, 2, 8), torch.ones(8)


def reason(q=X, k=X, **options):
    return dict(rope_xp.explain(q, k, **options).declined).get("triton")


def test_explain_says_why_triton_declines_devices_heads_and_packages(monkeypatch):
    assert reason() == "its kernels are for GPUs of CUDA and ROCm, and a tensor is on cpu"
    monkeypatch.setattr(library, "DEVICES", {"cpu"})
    assert rope_xp.explain(X, X).path == "triton"
    wide = torch.ones(5, 2, 4096)
    assert "4096 components is 16384 bytes long" in reason(wide, wide)
    assert reason(wide.half(), wide.half()) is None
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "_read_capability", lambda _: (7, 5))
        assert reason() == "its kernels need compute capability 8.0, and cpu has 7.5"
    monkeypatch.setitem(gpu.KERNELS._failed, None, "triton is not installed")
    message = "cannot take this call: triton is not installed"
    with rope_xp.use_path("triton"), pytest.raises(RopeError, match=message):
        RoPE().rotate(X)


DIFFER = "weights of q and k differ in dtype, or one has none"
NORMS = [
    (QKNorm(), {}, None),
    (QKNorm(WEIGHT, torch.ones(8, requires_grad=True), offset=1.0), {}, None),
    (QKNorm(round_between=True), {}, None),  # the kernel runs the second step
    (QKNorm(), {"k_positions": [1] * 5}, None),
    (QKNorm(torch.ones(2, 8), WEIGHT), {}, "one weight for all heads"),
    (QKNorm(WEIGHT, torch.ones(16)[::2]), {}, "contiguous weights"),
    *((QKNorm(*w), {}, DIFFER) for w in ((WEIGHT, None), (None, WEIGHT), (WEIGHT, WEIGHT.half()))),
    (QKNorm(), {"k": X.half()}, "of one dtype"),
    (QKNorm(WEIGHT._neg_view(), WEIGHT), {}, "plain operations"),
]


@pytest.mark.parametrize(("norm", "options", "expected"), NORMS)
def test_explain_says_which_norms_triton_declines(norm, options, expected, monkeypatch):
    monkeypatch.setattr(library, "DEVICES", {"cpu"})
    got = reason(norm=norm, **options)
    assert (got is None) if expected is None else (expected in got)


def test_a_triton_that_finds_no_driver_leaves_calls_to_other_paths(compile_by):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, and triton works")
    x = torch.randn(5, 2, 8)
    expected = RoPE().rotate(x)
    compile_by(gpu._load_compiler())
    with pytest.warns(RuntimeWarning, match="without a kernel of triton. triton cannot compile "):
        got = RoPE().rotate(x.clone(), out=x)
    assert torch.equal(got, expected)
    message = "'triton' was forced.* cannot compile its kernel"
    with rope_xp.use_path("triton"), pytest.raises(RopeError, match=message):
        RoPE().rotate(x)


@pytest.mark.parametrize("capturing", [False, True])
def test_failures_while_a_graph_is_captured_are_not_remembered(capturing, monkeypatch):
    """The driver may refuse to load a kernel there."""
    kernels = Kernels("triton", lambda: Mock(side_effect=RuntimeError("no")))
    monkeypatch.setattr(gpu, "KERNELS", kernels)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    with FakeTensorMode():
        arrays = (torch.ones(5, 2, 8, device="cuda:0"),)
    plan, tables = SimpleNamespace(variant=None), SimpleNamespace(components=None)
    warned = contextlib.nullcontext() if capturing else pytest.warns(RuntimeWarning, match="no")
    with warned, pytest.raises(RuntimeError if capturing else PathUnavailable):
        gpu._load_launch(plan, arrays, tables)
    assert (kernels.decline_reason((None, 0)) is None) == capturing


@pytest.mark.slow
def test_the_driver_gets_the_planned_grid_and_arguments(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc, which compiles Triton's launcher")
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver of CUDA; test_gpu.py launches by it")
    assert printed("triton_launches.py", tmp_path) == "every launch is right\n"


def test_calls_like_earlier_ones_are_launched_without_a_plan(compile_by, monkeypatch):
    """New, in place, with gradients, by tables; and any that may be an error is planned again."""
    launched = []
    compile_by(lambda _: lambda *_: launched.append(1))
    # Of 32 bits, as those of 64 on a CPU are narrowed before they are planned.
    position = torch.tensor([5], dtype=torch.int32)
    q, k = torch.ones(1, 1, 4, 8), torch.ones(1, 1, 2, 8)
    leaf, norm = torch.ones(1, 1, 4, 8, requires_grad=True), QKNorm(WEIGHT, WEIGHT)
    memory = torch.ones(1, 1, 8, 8)
    rope, angles = RoPE(layout="half"), RoPE().at(position, like=q)
    calls = (
        lambda: rope.apply(q, k, position),
        lambda: rope.apply(q, k),
        lambda: rope.apply(q, k, position, out=(q, k), norm=norm),
        lambda: rope.rotate(leaf),
        lambda: rope.rotate(leaf, position),
        lambda: angles.apply(q, k),
        lambda: angles.unrotate(q),
        lambda: rope_xp.apply_tables(q, angles.cos, angles.sin, out=q),
        lambda: rope.apply(q, k, position, out=(memory[:, :, :4], memory[:, :, 4:6])),
    )
    for call in calls:
        call()
    monkeypatch.setattr(gpu, "plan_launch", lambda *_: pytest.fail("it was planned again"))
    functions: list[object] = []
    for call in calls:
        functions.clear()
        sys.setprofile(lambda frame, event, _: event == "call" and functions.append(frame.f_code))
        call()
        sys.setprofile(None)
        assert len(functions) < 50  # of Python, which take most of the time
    assert len(launched) == 2 * len(calls)
    assert rope.rotate(leaf).requires_grad
    with pytest.raises(pytest.fail.Exception):
        rope.apply(q.double(), k.double(), position)
    with pytest.raises(RopeError, match="overlap"):
        rope.apply(q, k, position, out=(memory[:, :, :4], memory[:, :, 2:4]))


def test_positions_of_k_are_not_taken_for_slots(compile_by, monkeypatch):
    """Of one dtype and shape, before results of one shape."""
    plans = []
    compile_by(lambda key: lambda *_: plans.append(key[0]))
    q, k, cache, at = *torch.ones(3, 1, 4, 2, 8), torch.arange(4, dtype=torch.int32)
    for given in ({"k_positions": at}, {"slots": at}, {"k_positions": at}, {"slots": at}):
        RoPE().apply(q, k, at, out=(q, cache), **given)
    assert [bool(variant.slot_dtype) for variant in plans] == [False, True] * 2


def test_calls_allocate_their_results_alone(compile_by, monkeypatch):
    """Also the first, which is planned, as it may be of the largest arrays."""
    compile_by(lambda _: lambda *_: None)
    made, empty_like = [], torch.empty_like

    def watched(x, **options):
        made.append(options.get("device"))
        return empty_like(x, **options)

    monkeypatch.setattr(torch, "empty_like", watched)
    for _ in range(2):
        RoPE().apply(X, X, torch.arange(5, dtype=torch.int32))
        assert made.count(None) == 2
        assert set(made) <= {None, "meta"}
        made.clear()
