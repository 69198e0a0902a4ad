"""Tables for other engines: each number exact, rounded once; and those of others, with columns."""

import re
from typing import Any

import numpy as np
import pytest
from support.equality import LAYOUTS
from support.oracles import exact_cos_sin, exact_frequencies
from support.rounding import nearest
from support.targets import numpy_dtype, rows

import rope_xp
from rope_xp import RoPE, RopeError
from rope_xp._arguments.table_forms import COLUMNS, doubled
from rope_xp.scaling import Axial, Linear, YaRN

N, D = 50, 16
REAL = ("float32", "float64", "float16", "bfloat16")
ROPES = (
    *(RoPE(layout=layout) for layout in LAYOUTS),
    RoPE(layout="half", rotary_dim=8, rotary_offset=-8, base=5e5),
    RoPE(layout="half", scaling=YaRN(4.0, 4096)),
    RoPE(position_axes=(0, 1, 2, 0, 1, 2, 0, 0)),
)


def build_by_engine(form: str, rope: RoPE) -> tuple[np.ndarray, ...]:
    """Return what the code of each engine makes of angles and factor, in float64.

    vLLM's RotaryEmbedding and YaRNScalingRotaryEmbedding; apply_rotary_pos_emb's cos and sin of
    transformers' Llama (half), Cohere (interleaved) and DeepSeek-V3; Megatron's RotaryEmbedding
    .get_emb; precompute_freqs_cis of Meta's llama3 and mistral-inference; ONNX RotaryEmbedding-23.
    """
    freqs, factor = np.arange(N)[:, None] * rope.frequencies(D), rope.attention_factor
    cos, sin = np.cos(freqs) * factor, np.sin(freqs) * factor

    def emb(t: np.ndarray) -> np.ndarray:
        if rope.layout == "interleaved":
            return np.stack([t, t], axis=-1).reshape(N, -1)
        return np.concatenate((t, t), axis=-1)

    return {
        "vllm": lambda: (np.concatenate((cos, sin), axis=-1),),
        "huggingface": lambda: (emb(cos), emb(sin)),
        "megatron": lambda: (emb(freqs)[:, None, None, :],),
        "complex": lambda: (factor * np.exp(1j * freqs),),
        "onnx": lambda: (cos, sin),
    }[form]()


def build(rope: RoPE, form: str, **options: Any) -> tuple[Any, ...]:
    tables = rope.table(N, D, form=form, **options)
    return tables if isinstance(tables, tuple) else (tables,)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("form", ["vllm", "huggingface", "complex", "onnx"])
def test_table_of_each_form_equals_its_engine_in_float64(form, rope):
    tables = build(rope, form, dtype=np.complex128 if form == "complex" else np.float64)
    for ours, theirs in zip(tables, build_by_engine(form, rope), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        # Of float64, an angle below 50 and its cosine.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=50 * 2.0**-52)


@pytest.mark.parametrize("rope", ROPES)
def test_table_for_megatron_holds_angles_less_whole_turns(rope):
    (theirs,) = build_by_engine("megatron", rope)
    (ours,) = build(rope, "megatron", dtype=np.float64)
    (single,) = build(rope, "megatron")
    assert ours.shape == single.shape == theirs.shape == (N, 1, 1, rope.rotary_dim or D)
    turns = (theirs - ours) / (2 * np.pi)
    np.testing.assert_allclose(turns, np.round(turns), rtol=0, atol=1e-14)
    assert np.abs(ours).max() <= np.pi
    small = np.abs(theirs) < 3
    np.testing.assert_array_equal(single[small], theirs[small].astype(np.float32))


# Without x64, jax has neither float64 nor complex128.
LIBRARIES = {
    "numpy": (*REAL, "complex64", "complex128"),
    "torch": (*REAL, "complex64", "complex128"),
    "jax.numpy": ("float32", "float16", "bfloat16", "complex64"),
    "array_api_strict": ("float32", "float64", "complex64", "complex128"),
    "dask.array": ("float32", "float64", "float16", "complex64", "complex128"),
}


def read(x: Any) -> np.ndarray:
    if hasattr(x, "detach"):
        return (x if x.is_complex() else x.double()).numpy()
    host = np.asarray(x.compute() if hasattr(x, "compute") else x)
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("form", ["vllm", "huggingface", "megatron", "onnx", "complex"])
def test_table_of_every_library_and_dtype_is_rounded_once(name, form):
    xp, rope = pytest.importorskip(name), ROPES[4]
    exact = build(rope, form, dtype=np.complex128 if form == "complex" else np.float64)
    for dtype in [t for t in LIBRARIES[name] if t.startswith("complex") == (form == "complex")]:
        kind = numpy_dtype(dtype) if name in ("numpy", "dask.array") else getattr(xp, dtype)
        for ours, wide in zip(build(rope, form, xp=xp, dtype=kind), exact, strict=True):
            assert (ours.dtype, tuple(ours.shape)) == (kind, wide.shape)
            real = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
            for part in ("real", "imag") if form == "complex" else ("real",):
                rounded = nearest(getattr(wide, part), real)
                np.testing.assert_array_equal(getattr(read(ours), part), rounded)
    (default,) = build(rope, "complex", xp=xp)
    assert read(default).astype(np.complex64).tolist() == read(default).tolist()


@pytest.mark.parametrize("dtype", REAL)
def test_table_of_every_dtype_equals_fifty_digits_rounded(dtype):
    """Also at positions of which float64 products have lost digits."""
    length, frequencies = 200_000, exact_frequencies(1e4, 8)
    tables = RoPE().table(length, 8, form="onnx", dtype=numpy_dtype(dtype))
    positions = (*range(0, 200, 7), *range(1, length, 9973), length - 1)
    bound = 2.0**-52 * (1 + np.array(positions)[:, None] * np.array(frequencies, float))
    for table, exact in zip(tables, exact_cos_sin(positions, frequencies), strict=True):
        error = np.abs(table[list(positions)].astype(np.float64) - nearest(exact, dtype))
        assert (error <= (bound if dtype == "float64" else 0)).all()
    wide = RoPE().table(length, 8, form="onnx", dtype=np.float64)
    for table, exact in zip(tables, wide, strict=True):  # of which some are near a tie
        np.testing.assert_array_equal(table.astype(np.float64), nearest(exact, dtype))


def test_table_within_a_compiled_function_is_constant_or_refused():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    rope = RoPE(scaling=Linear(2.0))
    compiled = torch.compile(
        lambda x: x + rope.table(4, 8, form="vllm", xp=torch), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="call it once outside of the compiled function"):
        compiled(torch.ones(4, 8))
    jnp = jax.numpy
    table = jax.jit(lambda x: x + rope.table(4, 8, form="vllm", xp=jnp))(jnp.zeros((4, 8)))
    np.testing.assert_array_equal(table, rope.table(4, 8, form="vllm"))


# --- tables of the caller that hold each angle twice: refused, with advice that is right ---------

X = np.random.default_rng(0).standard_normal((6, 2, D), np.float32)
AT = np.arange(6) + 3
# Rotated components: of all, shapes tell; of a part they would do for twice as many.
SIZES = [(D, "float32", 1e-6), (4, "float32", 1e-6), (12, "bfloat16", 5 * 2.0**-7)]


@pytest.mark.parametrize("backend", rows(("numpy", "torch")))
@pytest.mark.parametrize("columns", ["halves", "neighbours"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("r", "dtype", "bound"), SIZES)
def test_apply_tables_and_with_tables_say_how_to_cut_doubled_ones(
    backend, columns, layout, r, dtype, bound
):
    rope, x = RoPE(layout=layout, rotary_dim=r), backend.make(X)
    tables = [doubled(np, t, columns).astype(numpy_dtype(dtype)) for t in rope.cos_sin(AT, D)]
    expected = backend.back(rope.rotate(x, AT))
    with pytest.raises(RopeError, match=r"hold each angle twice; pass .* of \(a, "):
        RoPE(layout=layout).with_tables(*tables)
    for rotate in (
        lambda c, s: rope_xp.apply_tables(x, c, s, layout=layout),
        lambda c, s: rope.with_tables(c, s).rotate(x),
        lambda c, s: rope.with_tables(c, s).apply(x, x)[1],
    ):
        with pytest.raises(RopeError) as caught:
            rotate(*map(backend.make, tables))
        advised = re.findall(r"cos\[\.\.\., ([^\]]+)\] of (\([^)]+\))", str(caught.value))
        index = {shown: index for index, shown in advised}[COLUMNS[columns][0]]
        cut = [eval(f"t[..., {index}]", {"t": backend.make(t)}) for t in tables]
        np.testing.assert_allclose(backend.back(rotate(*cut)), expected, rtol=0, atol=bound)


def test_apply_tables_takes_those_that_only_seem_doubled():
    for at in (np.zeros(6), np.arange(6)):  # of position 0, all columns are equal
        tables = RoPE(rotary_dim=8).cos_sin(at, D)
        rope_xp.apply_tables(X, *tables)
        RoPE(rotary_dim=8).with_tables(*tables).rotate(X)
    # Rows that equal their columns: angles of a rope are right, whatever they look like.
    cells = RoPE(scaling=Axial(2), position_axes=(0,) * 4 + (1,) * 4)
    angles, expected = cells.at([AT, AT], like=X), cells.rotate(X, [AT, AT])
    np.testing.assert_array_equal(angles.rotate(X), expected)
    # And those of a caller who says how many components they are for.
    with pytest.raises(RopeError, match=r"RoPE\(rotary_dim=16, ...\).with_tables"):
        rope_xp.apply_tables(X, angles.cos, angles.sin)
    by_tables = RoPE(rotary_dim=16).with_tables(angles.cos, angles.sin)
    np.testing.assert_array_equal(by_tables.rotate(X), expected)
