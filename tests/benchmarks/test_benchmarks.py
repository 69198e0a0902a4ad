"""The benchmarks run, and the rivals compute what rope_xp does."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from asv_benchmarks.shared import contenders, rival_calls
from rope_xp._bench import inputs

discovery = pytest.importorskip("asv_runner.discovery", reason="it finds benchmarks")

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = list(discovery.disc_benchmarks(str(ROOT / "asv_benchmarks")))


@pytest.fixture
def few_tokens(monkeypatch):
    from asv_benchmarks.shared import common

    small = {"QUICK": True, "TOKENS": 16, "REPEAT": 1, "LOOPS": (1, 1)}
    for name, value in small.items():
        monkeypatch.setattr(common, name, value)


def on_gpu(*values):
    return [pytest.mark.gpu] if any(":gpu" in str(value) for value in values) else []


def combinations():
    """Yield benchmarks with the first combination of their parameters on a CPU, all on a GPU."""
    for benchmark in BENCHMARKS:
        if benchmark.type == "time" and "timeraw" in benchmark.name:
            continue
        slow = ("Training", "TorchCompile", "InGraph", "Graphs", "diffusion", "Engine", "jax:cpu")
        is_first = True
        for i, values in enumerate(itertools.product(*benchmark._params)):
            marks, name = on_gpu(*values), "-".join([benchmark.name, *map(str, values)])
            if not marks and any(word in name for word in slow):
                marks = [pytest.mark.slow]
            if is_first or on_gpu(*values):
                yield pytest.param(benchmark, i, id=name, marks=marks)
            is_first = is_first and bool(on_gpu(*values))


@pytest.mark.parametrize(("benchmark", "index"), list(combinations()))
def test_benchmark_runs(few_tokens, benchmark, index, capsys):
    if benchmark._params:
        benchmark.set_param_idx(index)
    if benchmark.do_setup():
        pytest.skip(capsys.readouterr().out.strip())
    if benchmark.type == "time":
        benchmark.func(*benchmark._current_params)
    else:
        assert math.isfinite(benchmark.do_run())  # a difference of two times may be below 0


COMPILED = ("compile", "engine")
RIVALS = [
    pytest.param(
        *(target, rival, dtype, layout),
        # They are compiled, which takes seconds.
        marks=on_gpu(target) or [pytest.mark.slow] * any(name in rival for name in COMPILED),
    )
    for rival, contender in rival_calls.RIVALS.items()
    for target in contender.targets
    # Of two layouts, each in one of two dtypes.
    for dtype, layout in zip(inputs.DTYPES, itertools.cycle(contender.layouts), strict=False)
]


@pytest.mark.parametrize(("target", "rival", "dtype", "layout"), RIVALS)
def test_rival_rotates_as_rope_xp(target, rival, dtype, layout):
    tokens = 40
    try:
        device, ours, theirs = contenders.pair(target, layout, dtype, "new", rival, tokens)
    except inputs.CannotMeasure as reason:
        pytest.skip(str(reason))
    # Float32 angles below 40 are off by 4e-6, components of q are below 5; bfloat16 has 8 bits,
    # and those that rotate in it round three times.
    bound = 3e-5 if dtype == "float32" else 3 * 2**-8 * 5
    fetch = device.fetch if rival != "mlx" else lambda x: np.asarray(x.tolist())
    for mine, other in zip(ours(), theirs(), strict=True):
        a, b = device.fetch(mine).astype(np.float64), fetch(other).astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=bound)


def test_absent_contender_says_so():
    with pytest.raises(inputs.CannotMeasure, match="abacus:cpu: not known to this version"):
        inputs.case("abacus:cpu", 1)
    with pytest.raises(inputs.CannotMeasure, match="jax:cpu cannot do 'out' or 'copy'"):
        contenders.pair("jax:cpu", "half", "float32", "out", "copy", 1)
