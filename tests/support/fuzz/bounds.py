"""Results in long double, each with how far off it may be: what docs/accuracy.md promises."""

import numpy as np
import pytest
from hypothesis import assume

from rope_xp import RopeError
from support.fuzz import oracle
from support.fuzz.memory import lay, moved, same_elements, shares_with_itself, touched
from support.fuzz.oracle import WIDE
from support.targets import numpy_dtype

needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here"
)
Result = tuple[np.ndarray, np.ndarray]  # what is right, and a bound for each number

# Half a unit of the last place of 1.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}


def table_error(positions, frequencies, axes, double):
    """Return how far off cos and sin may be, (batch..., tokens, r/2), before any factor."""
    each = np.abs(oracle.angles(positions, frequencies, axes))
    if double:
        return WIDE(2.0**-52) * (1 + each)
    far = np.abs(positions).max(initial=0) >= 1 << 22
    error = np.full(each.shape, WIDE(4e-7 if far else 2.4e-7))
    if (positions != np.floor(positions)).any():
        # The fraction, the frequency and their product in float32, and one rotation more.
        error += 3 * 2.0**-24 * np.abs(frequencies) + 2.0**-22
    return error


def looked_up(rope, head_dim, positions, double):
    """Return cos, sin and how far off they may be, without the attention factor."""
    r = rope.rotary_dim or head_dim
    turned = oracle.series(rope.base, r)
    if rope.scaling is not None:
        # The float64 numbers of a rule are its frequencies by definition. They have a test.
        turned = rope.frequencies(head_dim).astype(WIDE)
    angles = oracle.angles(positions, turned, rope.position_axes)
    error = table_error(positions, turned, rope.position_axes, double)
    return np.cos(angles), np.sin(angles), error


def counted(positions, tokens, rope):
    axes = rope.position_axes
    if positions is None:
        line = np.arange(tokens)
        return line if axes is None else np.stack([line] * (max(axes) + 1))
    if positions.ndim == (0 if axes is None else 1):
        return positions[..., None]
    return positions


def turned(x, shape, rope, positions, inverse):
    at = counted(positions, x.shape[shape.axes.index("s")], rope)
    cos, sin, error = looked_up(rope, x.shape[-1], at, x.itemsize == 8)
    factor = 1 / WIDE(rope.attention_factor) if inverse else WIDE(rope.attention_factor)
    scaled = (cos * factor, sin * factor, error * factor)
    return rotate(x, shape, *scaled, rope.layout, rope.rotary_offset, inverse)


def rerotated(x, shape, rope, to, old, new):
    tokens, double = x.shape[shape.axes.index("s")], x.itemsize == 8
    c, s, before = looked_up(rope, x.shape[-1], counted(old, tokens, rope), double)
    cos, sin, after = looked_up(to, x.shape[-1], counted(new, tokens, to), double)
    factor = WIDE(to.attention_factor) / WIDE(rope.attention_factor)
    cos, sin = cos * c + sin * s, sin * c - cos * s
    # Either error is one of both coordinates; then two products and their sum.
    error = 1.5 * (before + after) + 6 * ROUNDING["float64" if double else "float32"]
    layout = "interleaved" if rope.layout == "interleaved" else "half"
    scaled = (cos * factor, sin * factor, error * factor)
    return rotate(x, shape, *scaled, layout, rope.rotary_offset, inverse=False)


def rotate(x, shape, cos, sin, error, layout, offset, inverse):
    dtype, computed = x.dtype.name, "float64" if x.dtype.name == "float64" else "float32"
    y = oracle.forward(x.astype(WIDE), shape.axes).copy()
    bound, r = np.zeros_like(y), 2 * cos.shape[-1]
    offset %= y.shape[-1]
    (a, b), (to_a, to_b) = oracle.pairs(layout, r, inverse)
    part = y[..., offset : offset + r].copy()
    x1, x2, c, s = part[..., a], part[..., b], cos[..., None, :], sin[..., None, :]
    s = -s if inverse else s
    # Of tables; of two products and their sum; of the result.
    error = np.asarray(error)[..., None, :] if np.ndim(error) else error
    error = error + 3 * ROUNDING[computed] * np.maximum(np.abs(c), np.abs(s))
    size = np.abs(x1) + np.abs(x2)
    for to, right in ((to_a, x1 * c - x2 * s), (to_b, x2 * c + x1 * s)):
        most = size * error * (1 + WIDE(2.0**-20))
        most = most + (np.abs(right) + most) * ROUNDING[dtype] * (computed != dtype)
        y[..., offset + to] = right
        bound[..., offset + to] = np.where(size > 0, most + 4 * LEAST[dtype], 0)
    return oracle.back(y, shape.axes), oracle.back(bound, shape.axes)


def close(library, got, x, right, bound):
    assert got.shape == x.shape
    assert numpy_dtype(got.dtype.name) == numpy_dtype(x.dtype.name)
    if library.flushes:
        bound = np.where(bound > 0, bound + 4 * float(np.finfo(np.float32).tiny), 0)
    off = np.abs(got.astype(WIDE) - right)
    wrong = np.argwhere(~(off <= bound))
    for at in map(tuple, wrong[:1].tolist()):
        raise AssertionError(
            f"{len(wrong)} of {off.size} numbers are off, the first at {at}: got {got[at]!r}, "
            f"right is {right[at]!r}, off by {off[at]:.3g}, allowed {bound[at]:.3g}"
        )


def check(library, call, laid, outs, expected):
    arrays = [x for _, x in laid]
    before = [memory.copy() for memory, _ in laid]
    with library.chosen():
        results = call([library.make(x) for x in arrays])
        for result, x, right in zip(results, arrays, expected, strict=True):
            close(library, library.back(result), x, *right)
        for (memory, _), old in zip(laid, before, strict=True):
            np.testing.assert_array_equal(memory, old)
        if library.writes and "none" not in {out.kind for out in outs}:
            write(library, call, laid, outs, expected)


def apart(targets, arrays):
    """Return whether results can be written: to memory that is not read but in its own place."""
    if any(map(shares_with_itself, targets)):
        return False
    for i, target in enumerate(targets):
        for j, x in enumerate(arrays):
            if np.shares_memory(target, x) and not (i == j and same_elements(target, x)):
                return False
        if any(np.shares_memory(target, other) for other in targets[:i]):
            return False
    return True


def write(library, call, laid, places, expected):
    arrays = [x for _, x in laid]
    targets, memories = [], [memory for memory, _ in laid]
    for i, (out, (own, x)) in enumerate(zip(places, laid, strict=True)):
        if not library.shared and out.kind != "new":
            assume(out.kind == "same")
        if out.kind == "new":
            memory, target = lay(x.shape, library.view(out.view, x.dtype.name))
            memories.append(memory)
        elif out.kind == "swapped":
            target = arrays[-1 - i]
            assume(len(arrays) == 2 and target.shape == x.shape and target.dtype == x.dtype)
        elif out.kind == "moved":
            backwards = out.backwards if library.any_memory else None
            target = moved(own, x, out.by, backwards)
        else:
            target = x
        targets.append(target)
    fits = not library.shared or apart(targets, arrays)
    own = [library.make(x) for x in arrays]
    triples = zip(targets, arrays, own, strict=True)
    outs = [mine if target is x else library.make(target) for target, x, mine in triples]
    before = [memory.copy() for memory in memories]
    given_out = outs[0] if len(outs) == 1 else tuple(outs)
    if not fits:
        with pytest.raises(RopeError):
            call(own, out=given_out)
        for memory, old in zip(memories, before, strict=True):
            np.testing.assert_array_equal(memory, old)
        return
    try:
        results = call(own, out=given_out)
    except RopeError as error:
        # An axis of length 1 may have any stride, which keeps views of the same apart.
        twins = [same_elements(*each) for each in zip(targets, arrays, strict=True)]
        if not any(twins) or "but is not" not in str(error):
            raise
        return
    for result, target, out, x, right in zip(results, targets, outs, arrays, expected, strict=True):
        assert result is out
        close(library, library.back(result), x, *right)
        if library.shared:
            close(library, target, x, *right)
    if library.shared:
        written = np.concatenate([touched(target) for target in targets])
        for memory, old in zip(memories, before, strict=True):
            start = memory.__array_interface__["data"][0]
            kept = np.ones(memory.size, bool)
            inside = written[(written >= start) & (written < start + memory.size)]
            kept[inside - start] = False
            np.testing.assert_array_equal(memory[kept], old[kept])
