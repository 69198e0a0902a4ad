"""ndonnx: graphs with unknown lengths, run by onnxruntime."""

from functools import partial

import numpy as np
import pytest
from support.lazily import Lazily

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import YaRN

ndx = Lazily("ndonnx")
ort = Lazily("onnxruntime")

BATCH, TOKENS, HEADS, D = 2, 9, 4, 16
POSITIONS = np.array([0, 1, 2047, 70_000, 1 << 22, (1 << 31) - 1, -1, -70_001, 5])
BY_BATCH = np.stack([POSITIONS, 3 * np.arange(TOKENS) + 1_000_000])
ROPES = {
    "interleaved": RoPE(),
    "half": RoPE(layout="half"),
    "slice": RoPE(layout="interleaved_to_half", rotary_dim=8, rotary_offset=-8),
    "yarn": RoPE(scaling=YaRN(4.0, 4096)),
}
KNOWN = (BATCH, TOKENS, HEADS, D)
UNKNOWN = ("batch", "tokens", HEADS, D)
LONGER = ("batch", "tokens", "heads", D)


def sample(dtype="float32", shape=KNOWN):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def trace(function, *arguments):
    """Trace a function from arrays, each given with its shape, to a tuple; return the graph."""
    inputs = {
        f"x{i}": ndx.argument(shape=shape, dtype=getattr(ndx, array.dtype.name))
        for i, (array, shape) in enumerate(arguments)
    }
    outputs = {f"y{i}": y for i, y in enumerate(function(*inputs.values()))}
    model = ndx.build(inputs, outputs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return lambda *arrays: session.run(None, dict(zip(inputs, arrays, strict=True)))


def rotate(x, p):
    return (RoPE().rotate(x, p),)


def check(function, *arguments, atol=0.0):
    arrays = [array for array, _ in arguments]
    got = trace(function, *arguments)(*arrays)
    for ours, theirs in zip(got, function(*arrays), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("shape", [KNOWN, UNKNOWN, LONGER], ids=["known", "unknown", "heads"])
@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("axes", ["bshd", "bhsd", "hsbd"])
def test_graphs_have_the_bits_of_numpy(axes, name, shape):
    order = ["bshd".index(axis) for axis in axes]
    rotate = partial(ROPES[name].rotate, axes=axes)
    check(
        lambda x, by_batch: (rotate(x, by_batch), rotate(x, POSITIONS), rotate(x)),
        (sample().transpose(order).copy(), tuple(shape[i] for i in order)),
        (BY_BATCH, shape[:2]),
    )


def test_one_graph_runs_at_every_length():
    q, k, p = sample(), sample(shape=(BATCH, TOKENS, 2, D)), POSITIONS
    run = trace(rope_xp.apply, (q, UNKNOWN), (k, ("batch", "tokens", 2, D)), (p, ("tokens",)))
    for batch, tokens in ((1, 1), (3, 700), (2, 0)):
        q, k = (sample(shape=(batch, tokens, heads, D)) for heads in (HEADS, 2))
        p = 1_000_000 + np.arange(tokens)
        for ours, theirs in zip(run(q, k, p), rope_xp.apply(q, k, p), strict=True):
            np.testing.assert_array_equal(ours, theirs)


SEVERAL = RoPE(position_axes=(0, 1, 2, 0, 1, 2, 0, 1))
TABLES = RoPE().cos_sin(POSITIONS, D, dtype=np.float64)
SMALL = np.array([0, 1, 2, 3, 5, 8, 13, 21, 127])


def every_call(x, x16, x64, p, by_batch, three, fractions, *small):
    yarn = ROPES["yarn"]
    angles = yarn.at(p, like=x)
    return (
        *(*angles.apply(x, x), angles.unrotate(x), *yarn.cos_sin(by_batch, D)),
        *(SEVERAL.rotate(x, three), yarn.unrotate(x, by_batch)),
        *(RoPE().rerotate(x, p // 2, p // 2 + 5), *rope_xp.apply(x16, x, p, k_positions=p + 0)),
        *(RoPE().rotate(x16, p), yarn.rotate(x64, p), yarn.rotate(x64, fractions)),
        *(rope_xp.apply_tables(x64, *TABLES), *(RoPE().rotate(x, p) for p in small)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", [KNOWN, UNKNOWN], ids=["known", "unknown"])
def test_graphs_of_every_call_and_dtype_have_the_bits_of_numpy(shape):
    arrays = [(sample(dtype), shape) for dtype in ("float32", "float16", "float64")]
    arrays += [(POSITIONS, shape[1:2]), (BY_BATCH, shape[:2])]
    arrays += [(np.stack([BY_BATCH] * 3), (3, *shape[:2])), (POSITIONS / 7, shape[1:2])]
    arrays += [(SMALL.astype(dtype), shape[1:2]) for dtype in ("int8", "uint32", "uint64")]
    check(every_call, *arrays)


def test_graphs_of_fractions_are_an_ulp_from_numpy():
    # cos and sin of a fraction are onnxruntime's own, an ulp (6e-8) from numpy's, and |x| < 4.
    for fractions in (POSITIONS / 7, (BY_BATCH[1] + 0.25).astype(np.float32)):
        check(rotate, (sample(), UNKNOWN), (fractions, ("tokens",)), atol=5e-7)


def test_positions_out_of_range_give_nan():
    run = trace(rotate, (sample(), UNKNOWN), (POSITIONS, ("tokens",)))
    beyond = np.array([2**31, -(2**31), 2**63 - 1, -(2**63), 2**31 - 1, 0, 1, 2, 3])
    nan = np.isnan(run(sample(), beyond)[0]).all((0, 2, 3))
    np.testing.assert_array_equal(nan, [True] * 4 + [False] * 5)


def test_arrays_with_values_equal_numpy():
    got = RoPE().rotate(ndx.asarray(sample()), ndx.asarray(POSITIONS))
    np.testing.assert_array_equal(got.unwrap_numpy(), RoPE().rotate(sample(), POSITIONS))
    assert str(rope_xp.explain(got, got)) == "ndonnx: portable"


def test_bad_arguments_and_unknown_lengths_are_refused():
    x = ndx.argument(shape=UNKNOWN, dtype=ndx.float32)
    maybe = ndx.argument(shape=UNKNOWN, dtype=ndx.nfloat32)
    head = ndx.argument(shape=("b", "s", 2, "d"), dtype=ndx.float32)
    rope, rotate = RoPE(), RoPE().rotate
    assert rotate(x).shape == (None, None, HEADS, D)
    for error, message, call in (
        (RopeError, "single number for n tokens; write positions = offset", lambda: rotate(x, 5)),
        (TypeError, "a value in a graph", lambda: rotate(x, out=x)),
        (RopeError, "must broadcast", lambda: rotate(ndx.asarray(sample()), POSITIONS[:3])),
        (TypeError, "nfloat32", lambda: rotate(maybe)),
        (RopeError, "array to rotate has an axis of unknown length", lambda: rotate(head)),
        (RopeError, "slots= is not for graphs", lambda: rope.apply(x, x, out=(x, x), slots=[1])),
        (RopeError, "slots= is not for graphs", lambda: rope.rerotate(x, [1], [2], slots=[1])),
    ):
        with pytest.raises(error, match=message):
            call()
