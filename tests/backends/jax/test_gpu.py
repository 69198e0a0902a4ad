"""jax on many devices, and what XLA makes of a rotation on a GPU: see xla_for_gpu.py."""

import importlib.util
import json
import re
from collections import Counter

import numpy as np
import pytest
from support.exhaustive import exhaustive
from support.programs import printed
from support.targets import TARGETS, missing

import rope_xp

pytest.importorskip("jax")

COS_AND_SIN = 2 * 2 * 4096 * 4  # bytes for each pair of a token: batch of 2, 4096 tokens, float32
# 132 multiprocessors with 4 schedulers at 1.98 GHz begin 33e12 instructions of threads in a second,
# in which 4.3 TB are copied: 124 in the time of 16 bytes, which are 4 numbers of 16 bits, read and
# written. Above that, memory waits for arithmetic.
INSTRUCTIONS = 124


@pytest.fixture(scope="module", params=[11, exhaustive(1)], ids=["few", "all"])
def compiled(request, tmp_path_factory):
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        pytest.skip("there is no plugin of jax for CUDA 13 (pip install 'rope-xp[gpu-test]')")
    lines = printed("xla_for_gpu.py", tmp_path_factory.mktemp("ptx"), request.param).splitlines()
    return [json.loads(line) for line in lines]


def accesses(ptx, operation):
    """Return how often global memory is read (ld) or written (st), by bytes of a thread."""
    matches = re.findall(rf"\b{operation}\.global\.(?:nc\.)?(?:v(\d)\.)?b(\d+)", ptx)
    return Counter(int(n or 1) * int(bits) // 8 for n, bits in matches)


def rotations(case):
    """Return the kernels that rotate q and k; the other one looks the angles up."""
    (angles,) = [name for name, ptx in case["kernels"].items() if "shr.s32" in ptx]
    return [ptx for name, ptx in case["kernels"].items() if name != angles]


def spelled_for_gpus(compiled, direction):
    cases = [c for c in compiled if c["direction"] == direction]
    assert len(cases) == {42: 3 * 2 * 3 + 3, 4: 2}[len(compiled)]
    return cases


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("path", "kind", "least"),
    [("jit", "Auto", 20), ("jit", "", 800), ("jit-gpu", "Explicit", 20)],
)
def test_shardings_pass_through_a_rotation_and_nothing_moves(path, kind, least):
    """On eight devices: see meshes.py."""
    # The number of devices is fixed when jax starts, and warnings are errors there too.
    lines = printed("meshes.py", path, kind, options=("-W", "error"))
    count, *rest = lines.split(maxsplit=1)
    assert rest == ["cases\n"], lines
    assert int(count) > least


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_angles_q_and_k_take_one_kernel_each(compiled, direction):
    for case in spelled_for_gpus(compiled, direction):
        if direction == "backward" and case["layout"] == "interleaved_to_half":
            continue  # where XLA transposes a copy of the gradients
        assert len(case["kernels"]) == 3, case
        # Some bytes hold constants. Shards have less.
        assert case["allocated"] <= COS_AND_SIN * case["rotary_dim"] // 2 + 1024
        assert case["collectives"] == []


def test_accesses_hold_several_numbers(compiled):
    for case in spelled_for_gpus(compiled, "forward"):
        for ptx in rotations(case):
            reads = accesses(ptx, "ld")
            assert reads.pop(1, 0) + reads.pop(2, 0) <= 1, case  # which of two is selected
            is_wide = case["layout"] != "interleaved_to_half" and case["rotary_dim"] == 128
            assert min(reads) >= (8 if is_wide else 4), case
    for case in compiled:
        for ptx in rotations(case):
            assert min(accesses(ptx, "st")) >= 8
            assert len(re.findall(r"^\t[a-z@]", ptx, re.MULTILINE)) < INSTRUCTIONS


def test_no_operation_is_fused(compiled):
    """So the bits are numpy's: ptxas fuses nothing that says how it is rounded."""
    for case in compiled:
        assert sum(ptx.count("mul.rn.f32") for ptx in case["kernels"].values()) >= 8 + 2 * 4
        for ptx in case["kernels"].values():
            assert not re.search(r"\bfma\.|\.ftz|\b(add|sub|mul)\.f(16|32)", ptx)


@pytest.mark.gpu
def test_the_path_for_gpus_is_chosen_on_a_gpu():
    (target,) = [t for t in TARGETS if t.name == "jax:gpu"]
    if reason := missing(target):
        pytest.skip(reason)
    q = target.make(np.ones((1, 3, 2, 8), np.float32))
    assert rope_xp.explain(q, q).path == "jit-gpu"
