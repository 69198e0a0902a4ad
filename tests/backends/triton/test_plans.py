"""What is launched on GPUs, and when calls go by another path, without a GPU."""

import contextlib
import ctypes
import json
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from support.programs import printed

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._core.path import PathUnavailable
from rope_xp._dispatch.kernels import Kernels

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from rope_xp_backends.torch import gpu  # noqa: E402  # they need torch
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  # it needs torch


def reason(x):
    return dict(rope_xp.explain(x, x).declined)["triton"]


def test_other_devices_old_gpus_wide_heads_and_a_missing_package_are_declined(monkeypatch):
    x = torch.ones(5, 2, 8)
    assert reason(x) == "its kernels are for GPUs of CUDA and ROCm, and a tensor is on cpu"
    monkeypatch.setattr(gpu, "DEVICES", {"cpu"})
    assert rope_xp.explain(x, x).path == "triton"
    monkeypatch.setattr(gpu, "_read_capability", lambda _: (7, 5))
    assert reason(x) == "its kernels need compute capability 8.0, and cpu has 7.5"
    monkeypatch.undo()
    monkeypatch.setattr(gpu, "DEVICES", {"cpu"})
    wide = torch.ones(5, 2, 4096)
    assert "4096 components is 16384 bytes long" in reason(wide)
    assert rope_xp.explain(wide.half(), wide.half()).path == "triton"
    monkeypatch.setattr(gpu.KERNELS, "_decline_reason", "triton is not installed")
    assert reason(x) == "triton is not installed"
    message = "cannot take this call: triton is not installed"
    with rope_xp.use_path("triton"), pytest.raises(RopeError, match=message):
        RoPE().rotate(x)


def test_norms_that_no_kernel_takes_are_declined(monkeypatch):
    x, weight = torch.ones(5, 2, 8), torch.ones(8)
    monkeypatch.setattr(gpu, "DEVICES", {"cpu"})

    def reason(*weights, k=x, k_positions=None, **options):
        norm = rope_xp.QKNorm(*weights, **options)
        explanation = rope_xp.explain(x, k, k_positions=k_positions, norm=norm)
        return dict(explanation.declined).get("triton")

    assert reason() is reason(weight, weight, offset=1.0) is None
    assert reason(round_between=True) is None  # the kernel runs the second step
    assert "one weight for all heads" in reason(torch.ones(2, 8), weight)
    assert "contiguous weights" in reason(weight, torch.ones(16)[::2])
    differ = "weights of q and k differ in dtype, or one has none"
    for weights in ((weight, None), (None, weight), (weight, weight.half())):
        assert reason(*weights) == differ
    assert "of one dtype" in reason(k=x.half())
    assert reason(k_positions=[1] * 5) is None
    assert reason(weight, torch.ones(8, requires_grad=True)) is None
    assert "plain operations" in reason(weight._neg_view(), weight)


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
    expected = pytest.raises(RuntimeError) if capturing else pytest.raises(PathUnavailable)
    warned = contextlib.nullcontext() if capturing else pytest.warns(RuntimeWarning, match="no")
    with warned, expected:
        gpu._load_launch(plan, arrays, tables)
    assert (kernels.decline_reason((None, 0)) is None) == capturing


# How many launches a call takes, and how many kernels that no earlier call has loaded.
CALLS = {
    "q and k": (1, 1),
    "in place": (1, 1),
    "one token": (1, 1),  # rows of one axis, which take no division
    "norm": (1, 1),
    "tables": (1, 1),
    "tables of 16 bits": (1, 1),
    "slots": (1, 1),
    "pages": (1, 1),
    "two positions": (1, 1),
    "two tables": (1, 1),
    "two dtypes": (2, 2),
    "more than 2**31 elements": (1, 1),
}

# Arguments besides: weights, eps and offset; slots; positions of k, or both its tables.
MORE = {"norm": 4, "slots": 7, "pages": 7, "two positions": 7, "two tables": 8}


@pytest.mark.slow
def test_the_driver_gets_the_planned_grid_and_arguments(tmp_path):
    """As a stand-in for it sees them: triton_launches.py."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc, which compiles Triton's launcher")
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver of CUDA; test_gpu.py launches by it")
    calls = [json.loads(line) for line in printed("triton_launches.py", tmp_path).splitlines()]
    assert {c["name"]: (len(c["found"]), c["modules"]) for c in calls} == CALLS
    for call in calls:
        assert call["capture mode"] == 0  # as it was before
        for launch in call["found"]:
            assert launch["launches"] == 1
            assert launch["grid and threads got"] == [*launch["grid"], 128, 1, 1]
            assert launch["got"] == launch["given"], call["name"]
            assert len(launch["given"]) == 28 + MORE.get(call["name"], 0)
            assert set(launch["added"]) <= {0}
            assert launch["wide"] == (call["name"] == "more than 2**31 elements")


def test_calls_like_earlier_ones_are_launched_without_a_plan(compile_by, monkeypatch):
    """New, in place, with gradients, by tables; and any that may be an error is planned again."""
    launched = []
    compile_by(lambda _: lambda *_: launched.append(1))
    # Of 32 bits, as those of 64 on a CPU are narrowed before they are planned.
    position = torch.tensor([5], dtype=torch.int32)
    q, k = torch.ones(1, 1, 4, 8), torch.ones(1, 1, 2, 8)
    weight, leaf = torch.ones(8), torch.ones(1, 1, 4, 8, requires_grad=True)
    rope, angles = RoPE(layout="half"), RoPE().at(position, like=q)
    norm = rope_xp.QKNorm(weight, weight)
    calls = (
        lambda: rope.apply(q, k, position),
        lambda: rope.apply(q, k),
        lambda: rope.apply(q, k, position, out=(q, k), norm=norm),
        lambda: rope.rotate(leaf),
        lambda: angles.apply(q, k),
        lambda: angles.unrotate(q),
        lambda: rope_xp.apply_tables(q, angles.cos, angles.sin, out=q),
    )
    for call in calls:
        call()
    assert len(launched) == len(calls)
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "plan_launch", lambda *_: pytest.fail("it was planned again"))
        for call in calls:
            call()
        assert rope.rotate(leaf).requires_grad
        with pytest.raises(pytest.fail.Exception):
            rope.apply(q.double(), k.double(), position)
    assert len(launched) == 2 * len(calls) + 1
    with pytest.raises(RopeError, match="overlap"):
        rope.apply(q, q[:, :, :2], position, out=(q, q[:, :, :2]))
