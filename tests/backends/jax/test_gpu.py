"""jax on many devices, and what XLA makes of a rotation on a GPU: see xla_for_gpu.py."""

import importlib.util
import json
import re

import numpy as np
import pytest
from support.programs import printed
from support.targets import TARGETS, missing

import rope_xp

pytest.importorskip("jax")

COS_AND_SIN = 2 * 2 * 4096 * 4  # bytes for each pair of a token: batch of 2, 4096 tokens, float32


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        pytest.skip("there is no plugin of jax for CUDA 13 (pip install --group gpu-test)")
    lines = printed("xla_for_gpu.py", tmp_path_factory.mktemp("ptx")).splitlines()
    assert len(lines) == 4
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "kind"), [("jit", "Auto"), ("jit-gpu", "Explicit")])
def test_shardings_pass_through_a_rotation_and_nothing_moves(path, kind):
    """On eight devices: see meshes.py."""
    # The number of devices is fixed when jax starts, and warnings are errors there too.
    lines = printed("meshes.py", path, kind, options=("-W", "error"))
    count, *rest = lines.split(maxsplit=1)
    assert rest == ["cases\n"], lines
    assert int(count) > 20


@pytest.mark.slow
def test_angles_q_and_k_take_one_kernel_each_on_a_gpu(compiled):
    for case in compiled:
        if (case["direction"], case["layout"]) == ("backward", "interleaved_to_half"):
            continue  # where XLA transposes a copy of the gradients
        assert len(case["kernels"]) == 3, case
        # Some bytes hold constants. Shards have less.
        assert case["allocated"] <= COS_AND_SIN * case["rotary_dim"] // 2 + 1024
        assert case["collectives"] == []


def test_xla_fuses_no_operation_on_a_gpu(compiled):
    """So the bits are numpy's: ptxas fuses nothing that says how it is rounded."""
    for case in compiled:
        assert sum(ptx.count("mul.rn.f32") for ptx in case["kernels"].values()) >= 8 + 2 * 4
        for ptx in case["kernels"].values():
            assert not re.search(r"\bfma\.|\.ftz|\b(add|sub|mul)\.f(16|32)", ptx)


@pytest.mark.gpu
def test_explain_names_jit_gpu_on_a_gpu():
    (target,) = [t for t in TARGETS if t.name == "jax:gpu"]
    if reason := missing(target):
        pytest.skip(reason)
    q = target.make(np.ones((1, 3, 2, 8), np.float32))
    assert rope_xp.explain(q, q).path == "jit-gpu"
