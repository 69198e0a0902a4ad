"""Results in long double, each with how far off it may be: what docs/accuracy.md promises.

They are right by the papers' formulas, and share no code with the library.
"""

import numpy as np
import pytest
from hypothesis import strategies as st

from rope_xp import RopeError
from support.fuzz.cases import views
from support.fuzz.memory import apart, lay, moved, same_elements
from support.oracles import pair_indices
from support.targets import numpy_dtype

WIDE = np.longdouble
needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here"
)

# Half a unit of the last place of 1.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}


def looked_up(rope, head_dim, positions, double):
    """Return cos, sin and how far off they may be, without the attention factor."""
    r, p, axes = rope.rotary_dim or head_dim, positions.astype(WIDE), rope.position_axes
    turned = WIDE(rope.base) ** (-2 * np.arange(r // 2, dtype=WIDE) / r)  # RoFormer's eq. 15
    if rope.scaling is not None:
        # The float64 numbers of a rule are its frequencies by definition. They have a test.
        turned = rope.frequencies(head_dim).astype(WIDE)
    angles = p[..., None] * turned
    if axes is not None:
        angles = np.stack([p[axis] * f for axis, f in zip(axes, turned, strict=True)], axis=-1)
    if double:
        return np.cos(angles), np.sin(angles), WIDE(2.0**-52) * (1 + np.abs(angles))
    far = np.abs(positions).max(initial=0) >= 1 << 22
    error = np.full(angles.shape, WIDE(4e-7 if far else 2.4e-7))
    if (positions != np.floor(positions)).any():
        # The fraction, the frequency and their product in float32, and one rotation more.
        error += 3 * 2.0**-24 * np.abs(turned) + 2.0**-22
    return np.cos(angles), np.sin(angles), error


def tables(x, shape, rope, positions):
    tokens, axes = x.shape[shape.axes.index("s")], rope.position_axes
    if positions is None:
        positions = np.arange(tokens)
        positions = positions if axes is None else np.stack([positions] * (max(axes) + 1))
    elif positions.ndim == (0 if axes is None else 1):
        positions = positions[..., None]
    return looked_up(rope, x.shape[-1], positions, x.itemsize == 8)


def turned(x, shape, rope, positions, inverse):
    cos, sin, error = tables(x, shape, rope, positions)
    factor = WIDE(rope.attention_factor) ** (-1 if inverse else 1)
    scaled = (cos * factor, sin * factor, error * factor)
    return rotate(x, shape, *scaled, rope.layout, rope.rotary_offset, inverse)


def rerotated(x, shape, rope, to, old, new):
    (c, s, before), (cos, sin, after) = tables(x, shape, rope, old), tables(x, shape, to, new)
    factor = WIDE(to.attention_factor) / WIDE(rope.attention_factor)
    cos, sin = cos * c + sin * s, sin * c - cos * s
    # Either error is one of both coordinates; then two products and their sum.
    error = 1.5 * (before + after) + 6 * ROUNDING["float64" if x.itemsize == 8 else "float32"]
    layout = "interleaved" if rope.layout == "interleaved" else "half"
    scaled = (cos * factor, sin * factor, error * factor)
    return rotate(x, shape, *scaled, layout, rope.rotary_offset, inverse=False)


def view(x, axes):
    """Return a view with axes batch..., s, h, d; one of length 1 is for heads where none are."""
    names = [a for a in axes if a not in "shd"] + [a for a in "shd" if a in axes]
    x = np.transpose(x, [axes.index(a) for a in names])
    return x if "h" in axes else x[..., None, :]


def rotate(x, shape, cos, sin, error, layout, offset, inverse):
    dtype, computed = x.dtype.name, "float64" if x.dtype.name == "float64" else "float32"
    right, bound = x.astype(WIDE), np.zeros(x.shape, WIDE)
    r, offset = 2 * cos.shape[-1], offset % x.shape[-1]
    y, most = (view(z, shape.axes)[..., offset : offset + r] for z in (right, bound))
    read, written = map(np.array, pair_indices(layout, r)[:: -1 if inverse else 1])
    (x1, x2), c, s = (y[..., i] for i in read), cos[..., None, :], sin[..., None, :]
    s = -s if inverse else s
    # Of tables; of two products and their sum; of the result.
    error = np.asarray(error)[..., None, :] if np.ndim(error) else error
    error = error + 3 * ROUNDING[computed] * np.maximum(np.abs(c), np.abs(s))
    size = np.abs(x1) + np.abs(x2)
    for to, result in zip(written, (x1 * c - x2 * s, x2 * c + x1 * s), strict=True):
        off = size * error * (1 + WIDE(2.0**-20))
        off = off + (np.abs(result) + off) * ROUNDING[dtype] * (computed != dtype)
        y[..., to] = result
        most[..., to] = np.where(size > 0, off + 4 * LEAST[dtype], 0)
    return right, bound


def close(library, got, x, right, bound):
    assert got.shape == x.shape
    assert numpy_dtype(got.dtype.name) == numpy_dtype(x.dtype.name)
    if not library.writes:  # jax has numbers below the normal ones as zero
        bound = np.where(bound > 0, bound + 4 * float(np.finfo(np.float32).tiny), 0)
    off = np.abs(got.astype(WIDE) - right)
    for at in map(tuple, np.argwhere(~(off <= bound))[:1].tolist()):
        raise AssertionError(
            f"at {at}: got {got[at]!r}, right is {right[at]!r}, allowed {bound[at]:.3g}"
        )


def check(library, draw, call, laid, expected):
    """Check the results of a call, returned and written, and that nothing else is written."""
    arrays = [x for _, x in laid]
    before = [memory.copy() for memory, _ in laid]
    with library.chosen():
        results = call([library.make(x) for x in arrays])
        for result, x, right in zip(results, arrays, expected, strict=True):
            close(library, library.back(result), x, *right)
        for (memory, _), old in zip(laid, before, strict=True):
            np.testing.assert_array_equal(memory, old)
        if library.writes:
            write(library, draw, call, laid, expected)


def draw_target(library, draw, memory, x):
    """Return where to write: new memory, what is read, or memory that overlaps it."""
    kind = draw(st.sampled_from(["new", "same", "moved"] if library.shared else ["new", "same"]))
    if kind == "new":
        return lay(x.shape, draw(views(x.ndim, (x.dtype.name,), library.any_memory)))
    if kind == "same":
        return memory, x
    backwards = draw(st.none() | st.integers(0, x.ndim - 1)) if library.any_memory else None
    return memory, moved(memory, x, draw(st.integers(-40, 40)), backwards)


def write(library, draw, call, laid, expected):
    """Check that results are right where they are written, or refused where elements are shared."""
    arrays, own = [x for _, x in laid], [library.make(x) for _, x in laid]
    places = [draw_target(library, draw, *one) for one in laid]
    if len({(x.shape, x.dtype) for x in arrays}) == 1 and library.shared and draw(st.booleans()):
        places.reverse()  # of q and k, each has the result of the other
    targets, memories = [t for _, t in places], [memory for memory, _ in laid + places]
    outs = [
        mine if target is x else library.make(target)
        for target, x, mine in zip(targets, arrays, own, strict=True)
    ]
    fits = not library.shared or apart(targets, arrays)
    before, kept = ([x.copy() for x in some] for some in (memories, targets))
    try:
        results = call(own, out=outs[0] if len(outs) == 1 else tuple(outs))
    except RopeError:
        # An axis of length 1 may have any stride, which keeps views of the same apart.
        assert not fits or any(map(same_elements, targets, arrays))
    else:
        assert fits
        assert [*map(id, results)] == [*map(id, outs)]
        for out, target, x, right in zip(outs, targets, arrays, expected, strict=True):
            close(library, library.back(out), x, *right)
            if library.shared:
                close(library, target, x, *right)
        for target, old in zip(targets, kept, strict=True):
            target[...] = old
    for memory, old in zip(memories, before, strict=True):
        np.testing.assert_array_equal(memory, old)
