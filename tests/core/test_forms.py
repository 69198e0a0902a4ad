"""Tables for other engines: their forms, and that each number is the exact one, rounded once."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from support.rounding import nearest
from support.targets import numpy_dtype

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp.scaling import DynamicNTK, Linear, YaRN

N, D = 50, 16
LAYOUTS = ("interleaved", "half", "interleaved_to_half")
REAL = ("float32", "float64", "float16", "bfloat16")


def angles(rope: RoPE) -> np.ndarray:
    return np.arange(N)[:, None] * rope.frequencies(D)


def by_the_engine(form: str, rope: RoPE) -> tuple[np.ndarray, ...]:
    """Return what the code of each engine makes of angles and factor, in float64.

    vLLM's RotaryEmbedding and YaRNScalingRotaryEmbedding; apply_rotary_pos_emb's cos and sin of
    transformers' Llama (half), Cohere (interleaved) and DeepSeek-V3; Megatron's RotaryEmbedding
    .get_emb; precompute_freqs_cis of Meta's llama3 and mistral-inference; ONNX RotaryEmbedding-23.
    """
    freqs, factor = angles(rope), rope.attention_factor
    cos, sin = np.cos(freqs) * factor, np.sin(freqs) * factor
    neighbours = rope.layout == "interleaved"

    def emb(t: np.ndarray) -> np.ndarray:
        if neighbours:
            return np.stack([t, t], axis=-1).reshape(N, -1)
        return np.concatenate((t, t), axis=-1)

    return {
        "vllm": lambda: (np.concatenate((cos, sin), axis=-1),),
        "huggingface": lambda: (emb(cos), emb(sin)),
        "megatron": lambda: (emb(freqs)[:, None, None, :],),
        "complex": lambda: (factor * np.exp(1j * freqs),),
        "onnx": lambda: (cos, sin),
    }[form]()


def tables(rope: RoPE, form: str, **options: Any) -> tuple[Any, ...]:
    made = rope.table(N, D, form=form, **options)
    return made if isinstance(made, tuple) else (made,)


ROPES = (
    *(RoPE(layout=layout) for layout in LAYOUTS),
    RoPE(layout="half", rotary_dim=8, rotary_offset=-8, base=5e5),
    RoPE(layout="half", scaling=YaRN(4.0, 4096)),
    RoPE(position_axes=(0, 1, 2, 0, 1, 2, 0, 0)),
)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("form", ["vllm", "huggingface", "complex", "onnx"])
def test_each_form_is_that_of_its_engine(form: str, rope: RoPE) -> None:
    expected = by_the_engine(form, rope)
    found = tables(rope, form, dtype=np.complex128 if form == "complex" else np.float64)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        # Of float64, an angle below 50 and its cosine.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=50 * 2.0**-52)


@pytest.mark.parametrize("rope", ROPES)
def test_megatron_gets_angles_less_whole_turns(rope: RoPE) -> None:
    (theirs,) = by_the_engine("megatron", rope)
    (ours,) = tables(rope, "megatron", dtype=np.float64)
    (single,) = tables(rope, "megatron")
    assert ours.shape == single.shape == theirs.shape == (N, 1, 1, rope.rotary_dim or D)
    turns = (theirs - ours) / (2 * np.pi)
    np.testing.assert_allclose(turns, np.round(turns), rtol=0, atol=1e-14)
    assert np.abs(ours).max() <= np.pi
    small = np.abs(theirs) < 3
    np.testing.assert_array_equal(single[small], theirs[small].astype(np.float32))


def test_megatron_loses_nothing_far_out() -> None:
    """Its own float32 angles of position 100,000 are off by up to 4e-3, so cosines are."""
    rope, n = RoPE(layout="half"), 100_000
    (ours,) = (rope.table(n, 4, form="megatron")[-1, 0, 0, :2],)
    exact = np.array([(n - 1.0), (n - 1) * 0.01])
    # Half a unit of float32 numbers below pi, and that of a cosine.
    for function in (np.cos, np.sin):
        error = np.abs(function(ours).astype(np.float64) - function(exact)).max()
        assert error <= 2.0**-23 + 2.0**-24
    assert np.abs(np.cos(np.float32(exact)) - np.cos(exact)).max() <= 4e-3


LIBRARIES = {
    "numpy": REAL,
    "torch": REAL,
    "jax.numpy": ("float32", "float16", "bfloat16"),  # as it is, without x64
    "array_api_strict": ("float32", "float64"),
    "dask.array": ("float32", "float64", "float16"),
}


def read(x: Any) -> np.ndarray:
    """Return numbers as numpy's widest."""
    if hasattr(x, "detach"):
        return (x if x.is_complex() else x.double()).numpy()
    host = np.asarray(x.compute() if hasattr(x, "compute") else x)
    return host if host.dtype.kind == "c" else host.astype(np.float64)


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, all_ in LIBRARIES.items() for d in all_])
@pytest.mark.parametrize("form", ["vllm", "huggingface", "megatron", "onnx"])
def test_every_library_and_dtype_is_rounded_once(name: str, dtype: str, form: str) -> None:
    xp = pytest.importorskip(name)
    kind = numpy_dtype(dtype) if name in ("numpy", "dask.array") else getattr(xp, dtype)
    wide = tables(ROPES[4], form, dtype=np.float64)
    for ours, exact in zip(tables(ROPES[4], form, xp=xp, dtype=kind), wide, strict=True):
        assert ours.dtype == kind
        assert tuple(ours.shape) == exact.shape
        np.testing.assert_array_equal(read(ours), nearest(exact, dtype))


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("dtype", [None, "complex64", "complex128"])
def test_complex_numbers(name: str, dtype: str | None) -> None:
    xp = pytest.importorskip(name)
    if (name, dtype) == ("jax.numpy", "complex128"):
        dtype = "complex64"  # as it is, without x64
    kind = None if dtype is None else getattr(xp, dtype)
    found = read(RoPE().table(N, D, form="complex", xp=xp, dtype=kind))
    assert found.dtype.name == (dtype or "complex64")
    exact = RoPE().table(N, D, form="complex", dtype=np.complex128)
    real = "float64" if dtype == "complex128" else "float32"
    np.testing.assert_array_equal(found.real.astype(np.float64), nearest(exact.real, real))
    np.testing.assert_array_equal(found.imag.astype(np.float64), nearest(exact.imag, real))


def test_rounding_to_16_bits_is_not_done_twice() -> None:
    """By way of float32, to nearest both times, this number would end up at 1."""
    from rope_xp._arguments import table_forms

    exact = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, -1 - 2.0**-11 - 2.0**-40])
    both = np.concatenate([exact, -exact, [0.0, -0.0, 1.0, 2.0**-30, 1e-7]])
    odd = table_forms._round_to_odd(both)
    for dtype in ("bfloat16", "float16"):
        found = odd.astype(numpy_dtype(dtype)).astype(np.float64)
        np.testing.assert_array_equal(found, nearest(both, dtype))
    assert nearest(exact, "bfloat16")[0] == 1 + 2.0**-7
    twice = exact.astype(np.float32).astype(numpy_dtype("bfloat16"))
    assert twice.astype(np.float64)[0] == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_number_of_a_table_is_rounded_twice(dtype: str) -> None:
    """Some of so many would be, and differ."""
    rope = RoPE(base=10_000.0)
    found = rope.table(200_000, 8, form="vllm", dtype=numpy_dtype(dtype)).astype(np.float64)
    exact = rope.table(200_000, 8, form="vllm", dtype=np.float64)
    once, twice = nearest(exact, dtype), nearest(nearest(exact, "float32"), dtype)
    assert (once != twice).any()
    np.testing.assert_array_equal(found, once)


@pytest.mark.parametrize("dtype", REAL)
def test_each_number_is_the_exact_one(dtype: str) -> None:
    """Against fifty digits, at positions of which float64 products have lost some."""
    length, base = 200_000, 10_000.0
    made = RoPE(base=base).table(length, 8, form="onnx", dtype=numpy_dtype(dtype))
    at = [*range(0, 200, 7), *range(1, length, 9973), length - 1]
    with mpmath.workdps(50):
        f = [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / 8) for i in range(4)]
        for table, function in zip(made, (mpmath.cos, mpmath.sin), strict=True):
            exact = np.array([[float(function(p * each)) for each in f] for p in at])
            found = table[at].astype(np.float64)
            if dtype == "float64":
                bound = 2.0**-52 * (1 + np.array(at)[:, None] * [float(each) for each in f])
                assert (np.abs(found - exact) <= bound).all()
            else:
                np.testing.assert_array_equal(found, nearest(exact, dtype))


def test_rows_of_components_are_those_of_one() -> None:
    axes = (0, 1, 2, 0, 1, 2, 0, 0)
    for form in ("vllm", "megatron"):
        both = [RoPE(position_axes=a).table(N, D, form=form) for a in (axes, None)]
        np.testing.assert_array_equal(*both)


def test_a_server_and_a_trainer_agree_to_the_bit() -> None:
    """What is rotated by a table is the same, whichever form it was sent in."""
    rope, rng = ROPES[4], np.random.default_rng(0)
    q, at = rng.standard_normal((1, 5, 2, D)).astype(np.float32), np.array([3, 1, 4, 1, 5])
    cos, sin = rope.table(N, D, form="onnx")
    expected = rope.with_tables(cos[at], sin[at]).rotate(q)
    cache = rope.table(N, D, form="vllm")[at]
    np.testing.assert_array_equal(
        expected, rope_xp.apply_tables(q, cache[:, : D // 2], cache[:, D // 2 :], layout="half")
    )
    # Composed of float32 within 2.4e-7, beside rounded: of numbers below 4 and a factor of 1.14.
    np.testing.assert_allclose(expected, rope.rotate(q, at), rtol=0, atol=8 * 1.14 * 2.4e-7)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"form": "meta"}, RopeError, "form must be one of 'vllm', .*'onnx'; got 'meta'"),
        ({"length": 0}, RopeError, "length must be"),
        ({"length": 5.0}, TypeError, "length must be"),
        ({"head_dim": 7}, RopeError, "head_dim"),
        ({"head_dim": "8"}, TypeError, "head_dim must be an integer"),
        ({"dtype": np.int32}, RopeError, "dtype must be one of float32, .* for this form; got"),
        ({"dtype": np.complex64}, RopeError, "dtype must be one of float32"),
        ({"form": "complex", "dtype": np.float32}, RopeError, "must be one of complex64"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], error: type, message: str) -> None:
    given = {"length": 8, "head_dim": 8, "form": "vllm"} | options
    with pytest.raises(error, match=message):
        RoPE().table(**given)


def test_a_rule_that_depends_on_the_context_is_fixed_first() -> None:
    rope = RoPE(scaling=DynamicNTK(2.0, 64))
    with pytest.raises(RopeError, match="depend on the length of the context; fix it first"):
        rope.table(128, 8, form="vllm")
    fixed = rope.for_length(128)
    np.testing.assert_array_equal(
        fixed.table(8, 8, form="onnx")[0][1], np.cos(fixed.frequencies(8)).astype(np.float32)
    )


def test_not_within_a_graph_of_torch() -> None:
    torch = pytest.importorskip("torch")
    compiled = torch.compile(
        lambda x: x + RoPE().table(4, 8, form="vllm", xp=torch), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="call it once, outside of the compiled function"):
        compiled(torch.ones(4, 8))


def test_within_jit_it_is_a_constant() -> None:
    jax = pytest.importorskip("jax")
    jnp = pytest.importorskip("jax.numpy")
    rope = RoPE(scaling=Linear(2.0))
    found = jax.jit(lambda x: x + rope.table(4, 8, form="vllm", xp=jnp))(jnp.zeros((4, 8)))
    np.testing.assert_array_equal(found, rope.table(4, 8, form="vllm"))
