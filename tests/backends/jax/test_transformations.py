"""jax: one cached jitted function for eager calls, clean traces under every transformation."""

import importlib

import numpy as np
import pytest
from support.cases import slow
from support.programs import printed

import rope_xp
from rope_xp import Angles, RoPE
from rope_xp.scaling import YaRN

jax = pytest.importorskip("jax")
jnp = jax.numpy
glue = importlib.import_module("rope_xp_backends.jax")

POSITIONS = np.array([0, 70_000, 1_000_000, -3, (1 << 31) - 1])
# Two compilations of the same operations may fuse differently: 2 ulp at |x| up to 4.
ATOL = 1e-6
HALF = RoPE(layout="half")


def sample(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def close(a, b, atol=ATOL):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


def test_eager_calls_run_one_jitted_function():
    q, k = sample(1, 5, 4, 16), sample(1, 5, 2, 16)
    assert rope_xp.explain(q, k).path == "jit"
    run = glue.BACKEND.paths[0]._run
    rope_xp.apply(q, k, POSITIONS)
    before = run._cache_size()
    for start in range(4):
        rope_xp.apply(q, k, POSITIONS - start, RoPE(base=1000.0 + start))
    assert run._cache_size() == before


GRADIENTS = [("float32", 22, "interleaved"), ("bfloat16", 8, "half")]
GRADIENTS += [("float16", 11, "interleaved_to_half")]


@pytest.mark.parametrize(("dtype", "bits", "layout"), GRADIENTS)
def test_gradients_are_the_inverse_rounded_once(layout, dtype, bits):
    rope, g = RoPE(layout=layout, rotary_dim=8), sample(5, 3, 10).astype(dtype)
    expected = rope.unrotate(np.asarray(g).astype(np.float64), POSITIONS)
    (got,) = jax.vjp(lambda x: rope.rotate(x, POSITIONS), g)[1](g)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=2.0**-bits, atol=ATOL)


def test_derivatives_keep_the_angles_of_tokens_alone():
    x = sample(2, 5, 3, 16).at[0].set(jnp.inf)
    _, pull = jax.vjp(lambda x: RoPE().rotate(x, POSITIONS), x)
    assert max(kept.size for kept in jax.tree.leaves(pull)) <= 5 * 8
    tangent = jax.jvp(lambda x: RoPE().rotate(x, POSITIONS), (x,), (jnp.ones_like(x),))[1]
    close(tangent, RoPE().rotate(jnp.ones_like(x), POSITIONS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_shardings_pass_through_a_rotation_and_nothing_moves(kind):
    """On eight devices: see meshes.py."""
    # The number of devices is fixed when jax starts, and warnings are errors there too.
    lines = printed("meshes.py", kind, options=("-W", "error"))
    count, *rest = lines.split(maxsplit=1)
    assert rest == ["cases\n"], lines
    assert int(count) > 20


@pytest.mark.slow
def test_composed_transformations_equal_plain_calls():
    rope, x, p = RoPE(), sample(3, 5, 2, 8), jnp.asarray(POSITIONS, jnp.int32)
    expected, batched = rope.rotate(x, p), jnp.stack([p, p - 1, p // 2])
    gradient = jax.grad(lambda x, p: (rope.rotate(x, p) ** 2).sum())
    close(jax.jit(rope.rotate)(x, p), expected)
    close(jax.vmap(lambda x: rope.rotate(x, p))(x), expected)
    close(jax.vmap(rope.rotate)(x, batched), rope.rotate(x, batched))
    close(jax.jit(jax.vmap(gradient))(x, batched), 2 * x, 5e-6)
    close(jax.checkpoint(rope.rotate)(x, p), expected)
    close(jax.linearize(lambda x: rope.rotate(x, p), x)[0], expected)
    assert jax.eval_shape(rope.rotate, x, p).shape == x.shape


def test_tokens_at_traced_positions_in_a_scan_equal_plain_calls():
    x = sample(6, 1, 2, 8)

    def step(position, token):
        return position + 1, HALF.rotate(token, position[None])

    _, got = jax.lax.scan(step, jnp.int32(1_000_000), x)
    close(got[:, 0], HALF.rotate(x[:, 0], np.arange(6) + 1_000_000))


@pytest.mark.slow
def test_strict_dtypes_rank_promotion_and_debug_nans_are_obeyed():
    q, k = sample(2, 5, 4, 16), sample(2, 5, 2, 16)
    strict = jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise")
    expected = rope_xp.apply(np.asarray(q), np.asarray(k), POSITIONS)
    with strict[0], strict[1], jax.debug_nans(True):
        got = rope_xp.apply(q, k, POSITIONS)
        rope_xp.apply(q.astype(jnp.bfloat16), k.astype(jnp.bfloat16), POSITIONS, base=10_987.0)
        rope_xp.apply(q, k, jnp.asarray(POSITIONS, jnp.int32))
        rope_xp.apply(q, k, jnp.asarray([0.5] * 5))
    close(got, expected)


@pytest.mark.parametrize("implicit", [slow(True), False])
def test_exported_functions_of_symbolic_lengths_equal_numpy(implicit):
    from jax import export

    b, s = export.symbolic_shape("b, s")
    shapes = [jax.ShapeDtypeStruct((b, s, heads, 16), jnp.float32) for heads in (4, 2)]
    shapes += [] if implicit else [jax.ShapeDtypeStruct((b, s), jnp.int32)]
    exported = export.export(jax.jit(lambda *arrays: HALF.apply(*arrays)))(*shapes)
    for tokens in (1, 3000):  # beyond one digit
        arrays = [sample(2, tokens, 4, 16), sample(2, tokens, 2, 16)]
        if not implicit:
            arrays.append(jnp.asarray(np.stack([np.arange(tokens) + 70_000] * 2), jnp.int32))
        close(tuple(exported.call(*arrays)), HALF.apply(*map(np.asarray, arrays)))


def test_float64_needs_x64_is_exact_with_it_and_spoils_no_tables_without():
    rope, x = RoPE(base=21_098.0), np.random.default_rng(0).standard_normal((5, 2, 8))
    with jax.enable_x64(True):
        wide = jnp.asarray(x)
    for _ in range(2):  # the second is cached
        for attempt in (
            lambda: rope.cos_sin(jnp.asarray([10_000_000]), 8, dtype=jnp.float64),
            lambda: rope.cos_sin([10_000_000], 8, xp=jnp, dtype=jnp.float64),
            lambda: rope.rotate(wide, POSITIONS),
        ):
            with pytest.raises(rope_xp.RopeError, match="set jax_enable_x64"):
                attempt()
        with jax.enable_x64(True):
            cos, _ = rope.cos_sin(jnp.arange(3), 8, dtype=jnp.float64)
            got = rope.rotate(wide, POSITIONS)
            assert got.dtype == cos.dtype == jnp.float64
            np.testing.assert_allclose(got, rope.rotate(x, POSITIONS), rtol=0, atol=1e-14)
            assert bool(jnp.isnan(rope.rotate(sample(1, 1, 8), jnp.asarray([1 << 31]))).all())


# --- angles are a tree, so that transformations take and return them -----------------------------

PLACES = jnp.asarray(POSITIONS[:4], jnp.int32)


def test_leaves_of_angles_are_cos_and_sin():
    angles = HALF.at(PLACES, like=sample(4, 2, 8))
    leaves, tree = jax.tree.flatten(angles)
    assert [x.shape for x in leaves] == [(4, 4), (4, 4)]
    assert tree != jax.tree.structure(RoPE().at(PLACES, like=sample(4, 2, 8)))
    back = jax.tree.map(jnp.negative, angles)
    assert (type(back), back.rope) == (Angles, HALF)
    np.testing.assert_array_equal(back.sin, -angles.sin)
    scaled = RoPE(scaling=YaRN(4.0, 4096)).at(PLACES, like=sample(4, 2, 8))
    assert len(jax.tree.leaves(scaled)) == 4  # with those that undo its factor


def test_layers_in_a_scan_share_angles():
    def layer(carry, _):
        *pair, angles = carry
        return (*angles.apply(*pair), angles), None

    def layers(q, k):
        return jax.lax.scan(layer, (q, k, HALF.at(PLACES, like=q)), None, length=3)[0][:2]

    expected = q, k = sample(2, 4, 4, 8), sample(2, 4, 2, 8)
    for _ in range(3):
        expected = HALF.apply(*expected, PLACES)
    close(jax.jit(layers)(q, k), expected, 3 * ATOL)


def test_gradients_of_angles_are_angles():
    x, angles = sample(4, 2, 8), HALF.at(PLACES, like=sample(4, 2, 8))
    gradients = jax.jit(jax.grad(lambda a, x: (a.rotate(x) ** 2).sum() / 2, (0, 1)))
    by_angles, by_x = gradients(angles, x)
    close(by_x, x)  # a rotation keeps the norm
    assert isinstance(by_angles, Angles)
    close(by_angles.cos, (x.reshape(4, 2, 2, 4) ** 2).sum((1, 2)) * angles.cos, 20 * ATOL)
