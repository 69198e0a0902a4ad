"""The benchmarks run, and the rivals compute what rope_xp does."""

import itertools
import math

import numpy as np
import pytest
from support.programs import ROOT

from asv_benchmarks.shared import common, contenders, rival_calls
from rope_xp._bench import inputs

discovery = pytest.importorskip("asv_runner.discovery", reason="it finds benchmarks")
# What compiles, or trains, or loads a model.
SLOW = ("Training", "TorchCompile", "InGraph", "Graphs", "diffusion", "Engine", "jax:cpu")


def mark(name, slow):
    if ":gpu" in name:
        return [pytest.mark.gpu]
    return [pytest.mark.slow] if any(word in name for word in slow) else []


def combinations():
    """Yield benchmarks with the first combination of their parameters on a CPU, all on a GPU."""
    for benchmark in discovery.disc_benchmarks(str(ROOT / "asv_benchmarks")):
        if benchmark.type == "time" and "timeraw" in benchmark.name:
            continue
        is_first = True
        for i, values in enumerate(itertools.product(*benchmark._params)):
            name = "-".join([benchmark.name, *map(str, values)])
            if is_first or ":gpu" in name:
                yield pytest.param(benchmark, i, id=name, marks=mark(name, SLOW))
            is_first = is_first and ":gpu" in name


@pytest.mark.parametrize(("benchmark", "index"), list(combinations()))
def test_benchmark_runs(benchmark, index, capsys, monkeypatch):
    for name, value in {"QUICK": True, "TOKENS": 16, "REPEAT": 1, "LOOPS": (1, 1)}.items():
        monkeypatch.setattr(common, name, value)
    if benchmark._params:
        benchmark.set_param_idx(index)
    if benchmark.do_setup():
        pytest.skip(capsys.readouterr().out.strip())
    if benchmark.type == "time":
        benchmark.func(*benchmark._current_params)
    else:
        assert math.isfinite(benchmark.do_run())  # a difference of two times may be below 0


RIVALS = [
    # Some are compiled, which takes seconds.
    pytest.param(target, rival, dtype, layout, marks=mark(target + rival, ("compile", "engine")))
    for rival, contender in rival_calls.RIVALS.items()
    for target in contender.targets
    # Of two layouts, each in one of two dtypes.
    for dtype, layout in zip(inputs.DTYPES, itertools.cycle(contender.layouts), strict=False)
]


@pytest.mark.parametrize(("target", "rival", "dtype", "layout"), RIVALS)
def test_rival_rotates_as_rope_xp(target, rival, dtype, layout):
    try:
        device, ours, theirs = contenders.pair(target, layout, dtype, "new", rival, 40)
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
    with pytest.raises(
        inputs.CannotMeasure, match="abacus:cpu: this rope_xp has no backend for abacus"
    ):
        inputs.case("abacus:cpu", 1)
    with pytest.raises(inputs.CannotMeasure, match="jax:cpu cannot do 'out' or 'copy'"):
        contenders.pair("jax:cpu", "half", "float32", "out", "copy", 1)
