"""What is measured on GPUs: wrong rivals are left out, gradients turn back, constants exist."""

import pytest
from support.cases import slow

from asv_benchmarks.gpu import bars, measure, tune
from asv_benchmarks.shared import contenders
from asv_benchmarks.shared.rival_calls import Contender
from rope_xp._bench import targets

pytest.importorskip("torch")

TARGET = targets.find("torch:cpu")
WRONG = {
    "other way": lambda arrays, at: tuple(measure.ROPE.unrotate(x, at) for x in arrays),
    "one array": lambda arrays, at: (measure.ROPE.rotate(arrays[0], at), arrays[1]),
    "NaN": lambda arrays, at: tuple(x * float("nan") for x in arrays),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_rotates_differently_is_not_timed(fault):
    accepted, missing = measure.tried(TARGET, {"rival": Contender(lambda _: WRONG[fault])})
    assert not accepted
    assert missing["rival"].startswith("rotates differently: off by ")


@pytest.mark.parametrize("library", ["torch", slow("jax")])
def test_gradients_that_are_timed_are_those_of_the_rotation(library):
    target = targets.find(f"{library}:cpu")
    at = measure.Case(2, 16).put(target)
    made, _ = measure.tried(target, measure.contenders_of(target, compile_too=False))
    for name, contender in made.items():
        if not contender.gradient:
            continue
        both = contenders.forward_and_backward(target, contender.make(at), at.arrays, at.positions)
        *_, q, k = both()
        for gradient, x in zip((q, k), at.arrays, strict=True):
            expected = measure.ROPE.unrotate(x, at.positions)
            a, b = (target.fetch(y).astype("float32") for y in (gradient, expected))
            # bfloat16 is rounded to, by others their tables and products too: 5 times 2**-8 of 4.5.
            assert abs(a - b).max() <= 5 * 2.0**-8 * 4.5, name


@pytest.mark.parametrize("library", tune.MODULES)
def test_the_constants_that_are_tried_are_there(library):
    if library == "torch":
        pytest.importorskip("triton")
    assert all(tune.modules(library, name) for name in tune.SWEEPS[library])
    if library == "torch":
        timed = {row["contender"] for row in tune.one("torch", "cpu", {}, 1)["speed"]}
        assert timed == {measure.COPY, measure.FLAT_COPY, measure.US, measure.IN_PLACE}


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_contenders_of_a_gpu_are_those_of_the_bars(library):
    """A bar about a contender of another name would never be measured."""
    made = measure.contenders_of(targets.find(f"{library}:cpu"))
    asked = [bar for bar in bars.BARS if bar.target == f"{library}:gpu"]
    named = {name for bar in asked for name in (bar.ours, *bar.others)}
    assert named
    assert named <= {*made, measure.COPY, measure.FLAT_COPY}
