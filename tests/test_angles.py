"""Angles are exact at any position, on every backend."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpmath
import numpy as np
import oracles
import pytest
from targets import Target, numpy_dtype, truth

from rope_xp import RoPE, scaling
from rope_xp._dispatch.backend import _tables_on_device
from rope_xp._rotation.tables import host_tables

GOLDEN = Path(__file__).parent / "golden"

# Both are promised, with a proof in rope_xp/_angles.py: two digits 1.74e-7, three 3.43e-7.
BELOW_2_22 = 2.4e-7
BELOW_2_31 = 4e-7


def tables(backend: Target, rope: RoPE, positions: np.ndarray, head_dim: int, traced: bool):
    """Return cos and sin as numpy arrays, positions being data of the backend."""
    if traced:
        made = backend.run(lambda p: rope.cos_sin(p, head_dim), backend.make(positions))
    else:
        made = rope.cos_sin(positions, head_dim)
    return [np.asarray(backend.back(t), np.float64) for t in made]


def test_golden_file(backend: Target) -> None:
    golden = json.loads((GOLDEN / "angles.json").read_text())
    positions, pairs, cos, sin = map(np.array, zip(*golden["rows"], strict=True))
    rope = RoPE(base=golden["base"])
    got_cos, got_sin = tables(backend, rope, positions, golden["rotary_dim"], traced=True)
    bound = np.where(np.abs(positions) < 1 << 22, BELOW_2_22, BELOW_2_31)
    rows = np.arange(len(pairs))
    assert (np.abs(got_cos[rows, pairs] - cos) <= bound).all()
    assert (np.abs(got_sin[rows, pairs] - sin) <= bound).all()


def test_golden_file_is_what_its_generator_writes(tmp_path: Path) -> None:
    script = tmp_path / "make_angles.py"
    script.write_text((GOLDEN / "make_angles.py").read_text())
    subprocess.run([sys.executable, str(script)], check=True)
    assert (tmp_path / "angles.json").read_text() == (GOLDEN / "angles.json").read_text()


@pytest.mark.parametrize(("base", "r"), [(1e4, 128), (5e5, 128), (1e6, 80), (1e7, 256)])
def test_random_positions_against_mpmath(backend: Target, base: float, r: int) -> None:
    rng = np.random.default_rng(r)
    pairs = sorted({0, 1, 2, 5, r // 4, r // 2 - 1})
    for top, bound in ((1 << 22, BELOW_2_22), (1 << 31, BELOW_2_31)):
        positions = rng.integers(1 - top, top, 150)
        cos, sin = oracles.true_cos_sin([int(p) for p in positions], base, r, pairs)
        got_cos, got_sin = tables(backend, RoPE(base=base), positions, r, traced=True)
        assert np.abs(got_cos[:, pairs] - cos).max() <= bound
        assert np.abs(got_sin[:, pairs] - sin).max() <= bound


def test_every_digit_below_2_22() -> None:
    """All 2048**2 combinations of two digits, for the pairs that turn fastest.

    float64 angles serve as truth: below 2**22 they are right to 1e-9.
    """
    rope = RoPE()
    frequencies = rope.frequencies(128)[[0, 1, 9]]
    host = host_tables(rope, 128, False, False)[0]
    columns = [0, 1, 9, 64, 65, 73]
    low, middle = (t[:, columns].astype(np.float32) for t in host[:2])
    worst = 0.0
    for digit in range(0, 2048, 3):
        c1, s1 = middle[digit, :3], middle[digit, 3:]
        cos = low[:, :3] * c1 - low[:, 3:] * s1
        sin = low[:, 3:] * c1 + low[:, :3] * s1
        angles = (digit * 2048 + np.arange(2048))[:, None] * frequencies
        worst = max(worst, np.abs(cos - np.cos(angles)).max(), np.abs(sin - np.sin(angles)).max())
    assert 1e-8 < worst <= BELOW_2_22


def test_same_bits_on_every_backend(backend: Target) -> None:
    """jax among them: products that its compiler cannot fuse."""
    rng = np.random.default_rng(7)
    positions = np.concatenate([np.arange(3000), rng.integers(1 - (1 << 31), 1 << 31, 5000)])
    expected = RoPE().cos_sin(positions, 64)
    for g, e in zip(tables(backend, RoPE(), positions, 64, traced=True), expected, strict=True):
        np.testing.assert_array_equal(g, e.astype(np.float64))


def test_float_positions(backend: Target) -> None:
    """Fractions turn by one more rotation, in float32: 4e-6 is promised, 4e-7 is measured."""
    positions = np.array([0.25, 0.5, -0.25, 1.75, 1000.125, 70_000.5, -70_000.5, 1_000_000.5])
    cos, sin = oracles.true_cos_sin(positions.tolist(), 1e4, 64)
    kinds = [np.float32] if backend.floats[-1] == "float32" else [np.float32, np.float64]
    for kind in kinds:
        got_cos, got_sin = tables(backend, RoPE(), positions.astype(kind), 64, traced=True)
        assert np.abs(got_cos - cos).max() <= 4e-6
        assert np.abs(got_sin - sin).max() <= 4e-6


def test_float64_positions_of_the_host_keep_their_fraction(backend: Target) -> None:
    """A float32 library gets what numpy holds: 8388608.3 has no float32 within 0.2."""
    positions = np.array([8_388_608.3, 100_000_000.7])
    cos, sin = oracles.true_cos_sin(positions.tolist(), 1e4, 64)
    x = np.zeros((2, 1, 64), np.float32)
    x[..., ::2] = 1.0
    got = backend.back(RoPE().rotate(backend.make(x), positions))[:, 0]
    assert np.abs(got[:, ::2] - cos).max() <= 4e-6
    assert np.abs(got[:, 1::2] - sin).max() <= 4e-6


def test_float64_arrays_get_float64_angles(backend: Target) -> None:
    if "float64" not in backend.floats:
        with pytest.raises((ValueError, TypeError), match="float64"):
            RoPE().cos_sin([1], 8, xp=_namespace(backend), dtype=np.float64)
        return
    positions = np.array([0, 1, 4097, 131_071, 1_000_000, -123_456_789, (1 << 31) - 1])
    for r in (64, 80):
        cos, sin = oracles.true_cos_sin(positions.tolist(), 1e4, r)
        x = np.zeros((7, 1, r))
        x[..., ::2] = 1.0
        got = backend.back(backend.run(RoPE().rotate, backend.make(x), backend.make(positions)))[
            :, 0
        ]
        bound = 2.0**-52 * (1 + np.abs(positions)[:, None] * RoPE().frequencies(r))
        assert (np.abs(got[:, ::2] - cos) <= bound).all()
        assert (np.abs(got[:, 1::2] - sin) <= bound).all()


def test_float64_arrays_at_fractions(backend: Target) -> None:
    positions = np.array([0.25, -0.75, 70_000.125, 1_000_000.5])
    cos, sin = oracles.true_cos_sin(positions.tolist(), 1e4, 8)
    x = np.zeros((4, 1, 8))
    x[..., ::2] = 1.0
    if "float64" not in backend.floats:
        assert backend.back(backend.make(x)).dtype == np.float32  # nothing to be exact in
        return
    for given in (positions, backend.make(positions)):
        got = backend.back(backend.run(RoPE().rotate, backend.make(x), given))[:, 0]
        assert np.abs(got[:, ::2] - cos).max() <= 5e-10
        assert np.abs(got[:, 1::2] - sin).max() <= 5e-10


def _namespace(backend: Target):
    import importlib

    return importlib.import_module({"jax": "jax.numpy"}.get(backend.module, backend.module))


def test_positions_out_of_range(backend: Target) -> None:
    """On the host an error; on a device, which is not read, NaN: loud, and never a guess."""
    for bad in (
        [0.5 - (1 << 31)],
        [1 << 31],
        [-(1 << 31)],
        [float("nan")],
        [float("inf")],
        [1e300],
    ):
        x = backend.make(np.ones((1, 1, 8), np.float32))
        with pytest.raises(ValueError, match="positions must be finite and of modulus below"):
            RoPE().rotate(x, bad)
    if backend.module == "numpy":
        return
    x = backend.make(np.ones((3, 1, 8), np.float32))
    outside = np.array([np.nan, np.inf, 2.0**31], np.float32)
    assert np.isnan(backend.back(backend.run(RoPE().rotate, x, backend.make(outside)))).all()
    least = np.array([np.iinfo(np.int32).min] * 3, np.int32)
    assert np.isnan(backend.back(backend.run(RoPE().rotate, x, backend.make(least)))).all()
    beyond = [np.array([1 << 31, (1 << 31) + 1, (1 << 32) - 1], np.uint32)]
    if "float64" in backend.floats:  # jax without x64 has no 64-bit integers either
        beyond.append(np.array([1 << 31, 1 << 40, -(1 << 31)]))
        beyond.append(np.array([1 << 31, (1 << 63) + 1, (1 << 64) - 1], np.uint64))
        # float64 angles have no such limit.
        far = np.array([(1 << 31) + 5] * 3, np.uint32)
        wide = backend.make(np.ones((3, 1, 8)))
        got = backend.back(backend.run(RoPE().rotate, wide, backend.make(far)))
        cos, sin = np.cos(float(far[0])), np.sin(float(far[0]))
        np.testing.assert_allclose(got[0, 0, :2], [cos - sin, cos + sin], rtol=0, atol=1e-6)
    for positions in beyond:
        assert np.isnan(backend.back(backend.run(RoPE().rotate, x, backend.make(positions)))).all()


def test_frequencies_are_the_nearest_float64() -> None:
    for base, r in ((1e4, 128), (5e5, 96), (1e6, 80)):
        with mpmath.workdps(40):
            exact = [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / r) for i in range(r // 2)]
            assert RoPE(base=base).frequencies(r).tolist() == [float(f) for f in exact]


def test_wavelengths() -> None:
    rope = RoPE(scaling=scaling.Linear(2.0))
    np.testing.assert_allclose(rope.wavelengths(8) * rope.frequencies(8), 2 * np.pi)
    np.testing.assert_allclose(rope.wavelengths(8)[0], 4 * np.pi)


def test_tables_are_small_and_shared() -> None:
    """O(sqrt(max position)): 4609 rows serve 2**31 positions, and are built once."""
    rope = RoPE(base=77_777.0)
    before = host_tables.cache_info().misses
    for length in (5, 50, 500):
        x = np.ones((length, 2, 128), np.float32)
        rope.rotate(x)
        rope.rotate(x, np.arange(length) + 1_000_000_000)
    assert host_tables.cache_info().misses == before + 1
    host = host_tables(rope, 128, False, False)
    assert sum(t.nbytes for component in host for t in component) < 2.5e6
    assert sum(t.shape[0] for t in host[0][:3]) == 2048 + 2048 + 513


def test_caches_are_bounded() -> None:
    assert host_tables.cache_info().maxsize == 64
    assert _tables_on_device.cache_info().maxsize == 64


def test_two_bases_do_not_share_tables(backend: Target) -> None:
    x = np.ones((4, 1, 8), np.float32)
    first = RoPE(base=1e4).rotate(backend.make(x))
    second = RoPE(base=1e5).rotate(backend.make(x))
    assert (backend.back(first) != backend.back(second)).any()


def test_threads_see_the_same_tables() -> None:
    x = np.random.default_rng(0).standard_normal((64, 2, 64)).astype(np.float32)
    ropes = [RoPE(base=1000.0 + i) for i in range(12)]

    def rotate(i: int) -> np.ndarray:
        return ropes[i % 12].rotate(x, np.arange(64) + i % 12)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(rotate, range(240)))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, rotate(i))


FORK = """
import os, threading
import numpy as np
import rope_xp

x = np.ones((32, 2, 64), np.float32)
expected = rope_xp.RoPE().rotate(x)
stop = threading.Event()

def busy():
    base = 1000.0
    while not stop.is_set():
        base += 1.0
        rope_xp.RoPE(base=base).rotate(x)

thread = threading.Thread(target=busy)
thread.start()
for i in range(10):
    child = os.fork()
    if child == 0:
        same = (rope_xp.RoPE().rotate(x) == expected).all()
        rope_xp.RoPE(base=9.0 + i).rotate(x)
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system has no fork")
def test_fork_while_another_thread_builds_tables() -> None:
    # Python 3.12 warns of any fork beside a thread, which is what is tested here.
    quiet = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    subprocess.run([sys.executable, *quiet, "-c", FORK], check=True, timeout=60)


# --- boundaries ----------------------------------------------------------------------------------

EDGES = [1, 2046, 2047, 2048, 2049, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, (1 << 31) - 1]


@pytest.mark.parametrize("position", [sign * edge for edge in EDGES for sign in (1, -1)])
def test_each_number_of_digits_alone(backend: Target, position: int) -> None:
    """The host counts the digits that positions need: one too few is a wrong angle or an error."""
    cos, sin = oracles.true_cos_sin([position], 1e4, 16)
    x = np.zeros((1, 1, 16), np.float32)
    x[..., ::2] = 1.0
    for given in ([position], np.array([position], np.int32), np.array([position], np.float64)):
        got = backend.back(RoPE().rotate(backend.make(x), given))[0]
        assert np.abs(got[:, ::2] - cos).max() <= BELOW_2_31
        assert np.abs(got[:, 1::2] - sin).max() <= BELOW_2_31


@pytest.mark.parametrize("tokens", [2047, 2048, 2049, 2050])
def test_counted_positions_around_a_digit(backend: Target, tokens: int) -> None:
    x = np.zeros((tokens, 1, 4), np.float32)
    x[..., ::2] = 1.0
    got = backend.back(RoPE().rotate(backend.make(x)))[-1, 0]
    cos, sin = oracles.true_cos_sin([tokens - 1], 1e4, 4)
    assert np.abs(got[::2] - cos[0]).max() <= BELOW_2_22
    assert np.abs(got[1::2] - sin[0]).max() <= BELOW_2_22


@pytest.mark.parametrize("r", [96, 128])
def test_tables_hold_the_nearest_float32(r: int) -> None:
    """Of the largest digits too, where a float64 frequency is too coarse: that costs 1.2e-7."""
    host = host_tables(RoPE(base=5e5), r, False, False)[0]
    pairs = [0, 1, 2, 3, 5, 9, r // 2 - 1]
    columns = [*pairs, *(r // 2 + i for i in pairs)]
    for table, unit in zip(host, (1, 1 << 11, 1 << 22), strict=False):
        digits = [0, 1, 2, 255, 510, 511]
        true = oracles.true_cos_sin([d * unit for d in digits], 5e5, r, pairs)
        expected = np.concatenate(true, axis=1).astype(np.float32)
        np.testing.assert_array_equal(table[digits][:, columns], expected)


# --- cos_sin -------------------------------------------------------------------------------------


def test_where_tables_are_made_and_of_what(backend: Target) -> None:
    xp = _namespace(backend)
    made = backend.make(np.arange(3))
    expected = RoPE().cos_sin([0, 1, 2], 8)
    for got in (
        RoPE().cos_sin(made, 8),
        RoPE().cos_sin([0, 1, 2], 8, xp=xp, device=_device(made)),
        RoPE().cos_sin(np.arange(3), 8, xp=xp, device=_device(made)),
        RoPE().cos_sin(made, 8, xp=xp),
    ):
        for table, e in zip(got, expected, strict=True):
            assert type(table) is type(made)
            assert _device(table) == _device(made)
            np.testing.assert_array_equal(backend.back(table), e)


def _device(x: object) -> object:
    return getattr(x, "device", None)


def test_dtype_of_tables() -> None:
    torch = pytest.importorskip("torch")
    cos, sin = RoPE().cos_sin(torch.arange(3), 8, dtype=torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.bfloat16
    exact = RoPE().cos_sin([0, 1, 2], 8, dtype=np.float64)
    assert exact[0].dtype == np.float64
    assert RoPE().cos_sin([0, 1, 2], 8, dtype="float32")[0].dtype == np.float32
    for name in ("float64", float, "d"):
        np.testing.assert_array_equal(RoPE().cos_sin([0, 1, 2], 8, dtype=name), exact)
    np.testing.assert_allclose(cos.double().numpy(), exact[0], rtol=0, atol=2**-9)
    meta, _ = RoPE().cos_sin([0, 1, 2], 8, xp=torch, device="meta")
    assert meta.device.type == "meta"
    with pytest.raises(ValueError, match="is on meta and positions on cpu; move one"):
        RoPE().cos_sin(torch.arange(3), 8, device="meta")


def test_positions_of_any_shape() -> None:
    positions = np.arange(24).reshape(2, 3, 4)
    cos, sin = RoPE().cos_sin(positions, 8)
    flat, _ = RoPE().cos_sin(positions.ravel(), 8)
    assert cos.shape == sin.shape == (2, 3, 4, 4)
    np.testing.assert_array_equal(cos.reshape(-1, 4), flat)
    assert RoPE().cos_sin(5, 8)[0].shape == (4,)
    assert RoPE().cos_sin([], 8)[0].shape == (0, 4)
    grid, _ = RoPE(position_axes=(0, 1, 0, 1)).cos_sin(positions[:, :2], 8)
    assert grid.shape == (2, 4, 4)
    np.testing.assert_array_equal(grid[..., 1], cos[1, :2, :, 1])


def test_low_precision_positions(backend: Target) -> None:
    """Whole numbers in 16-bit floats are whole numbers; fractions are what the dtype holds."""
    for dtype in ("float16", "bfloat16"):
        positions = np.array([0, 1.5, 100, -3]).astype(numpy_dtype(dtype))
        x = np.ones((4, 1, 8), np.float32)
        expected = truth(RoPE().rotate, x, positions.astype(np.float64))
        np.testing.assert_array_equal(truth(RoPE().rotate, x, positions), expected)
        if dtype in backend.floats:
            got = backend.run(RoPE().rotate, backend.make(x), backend.make(positions))
            np.testing.assert_allclose(backend.back(got), expected, rtol=0, atol=1e-6)


def test_fast_pairs_of_a_small_base(backend: Target) -> None:
    """A base below 1 makes frequencies above 1: nothing assumes slow pairs."""
    positions = [0, 3, 70_000, 70_000.5, -12_345]
    cos, sin = oracles.true_cos_sin(positions, 0.01, 8)
    x = np.zeros((5, 1, 8), np.float32)
    x[..., ::2] = 1.0
    got = backend.back(RoPE(base=0.01).rotate(backend.make(x), positions))[:, 0]
    assert np.abs(got[:, ::2] - cos).max() <= 4e-6
    assert np.abs(got[:, 1::2] - sin).max() <= 4e-6


def test_fractions_of_several_components(backend: Target) -> None:
    """Each component has a fraction of its own."""
    rope = RoPE(position_axes=(0, 1, 2, 1))
    positions = np.array([[0.25, 7.0], [1000.5, 0.125], [-3.75, 70_000.5]])
    x = np.random.default_rng(0).standard_normal((2, 1, 8)).astype(np.float32)
    expected = np.empty_like(x)
    for pair, component in enumerate(rope.position_axes):
        alone = truth(RoPE().rotate, x, positions[component])
        expected[..., 2 * pair : 2 * pair + 2] = alone[..., 2 * pair : 2 * pair + 2]
    for given in (positions, backend.make(positions.astype(np.float32))):
        got = backend.run(rope.rotate, backend.make(x), given)
        np.testing.assert_allclose(backend.back(got), expected, rtol=0, atol=2e-6)


def test_pairs_that_never_turn() -> None:
    """Proportional rules leave the last pairs alone: no warning, no rotation."""
    rope = RoPE(scaling=Still())
    assert rope.wavelengths(8).tolist() == [2 * np.pi, np.inf, np.inf, np.inf]
    x = np.ones((3, 1, 8), np.float32)
    np.testing.assert_array_equal(rope.rotate(x, [5, 70_000, 1 << 30])[..., 2:], 1.0)


class Still:
    attention_factor = softmax_scale = 1.0

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.eye(rotary_dim // 2)[0]

    def for_length(self, n: int) -> Still:
        return self
