"""assert_rotates and identify name what is wrong with rotations that have a fault each."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from rope_xp import RoPE, RopeError
from rope_xp.scaling import Linear, YaRN
from rope_xp.testing import assert_rotates, identify
from rope_xp.testing._compare import list_differences

HEAD_DIM = 32
N = HEAD_DIM // 2
HALF = RoPE(layout="half")
YARN = RoPE(layout="half", scaling=YaRN(4.0, 4096))


def right(x, positions, rope=HALF):
    return rope.rotate(x, positions, axes="bhsd")


def turn_back(x, positions):
    return HALF.unrotate(x, positions, axes="bhsd")


def to_bfloat16(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def to_tf32(x):
    """Round to ten bits, as tensor cores read float32."""
    bits = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def by_hand(
    x,
    positions,
    *,
    frequencies=lambda w: w,
    product=np.multiply,
    tables=lambda cos, sin: (cos, sin),
    double=lambda table: np.concatenate([table, table], axis=-1),
    signs=(-1.0, 1.0),
):
    """Rotate by angles that are a product in float32; each option is a place of a fault."""
    w = frequencies(10000.0 ** (-np.arange(N) / N)).astype(np.float32)
    angles = product(positions.astype(np.float32)[..., None], w)
    cos, sin = map(double, tables(np.cos(angles), np.sin(angles)))
    a, b = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([signs[0] * b, signs[1] * a], axis=-1) * sin


def before_the_split(x, positions, layout):
    b, h, s, d = x.shape
    joined = np.moveaxis(x, 1, 2).reshape(b, s, h * d)
    rotated = RoPE(layout=layout).rotate(joined, positions, axes="bsd")
    return np.moveaxis(rotated.reshape(b, s, h, d), 2, 1)


def leave(choose):
    def rotate(x, positions):
        y = np.array(right(x, positions))
        part = choose(x)
        y[part] = x[part]
        return y

    return rotate


def dynamic(length, trained):
    def rotate(x, positions):
        n, d = max(length(x, positions), trained), HEAD_DIM
        base = 1e4 * (2.0 * n / trained - 1.0) ** (d / (d - 2))
        return right(x, positions, RoPE(layout="half", base=base))

    return rotate


def grow(x, positions):
    """Grow with the position, as xPos does."""
    return right(x, positions) * np.minimum(1.0005**positions, 3.0).astype(np.float32)[:, None]


def write_scratch(x, positions):
    x[...] = right(x, positions)
    return x.copy()


def take_the_first_row(x, positions):
    if positions.ndim != 2:
        raise ValueError("positions must be (batch, tokens)")
    return right(x, np.broadcast_to(positions[:1], positions.shape))


def case(name, message, rotate, rotate_k=None, *, meant=HALF, outcome="fault"):
    """Return a function, the message of its fault, the RoPE that is meant, and what identify does.

    It lists a "fault", raises an "error", or returns "another" RoPE.
    """

    def function(q, k, positions):
        return rotate(q, positions), (rotate_k or rotate)(k, positions)

    marks = [pytest.mark.slow] if name in LATER else []
    return pytest.param(function, message, meant, outcome, id=name, marks=marks)


LATER = "frequencies learned", "rounded frequencies", "rounded angles", "TF32 product"
error, another = partial(case, outcome="error"), partial(case, outcome="another")
LEFT = "which is unchanged"
LEARNED = 1 + 0.1 * np.sin(np.arange(N) + 1)
PHASES = np.sin(np.arange(N)).astype(np.float32)
FAULTS = [
    # Another RoPE.
    another("another layout", "layout is 'interleaved_to_half', and not 'half'",
            partial(right, rope=RoPE(layout="interleaved_to_half"))),
    another("slice off by two", "rotary_offset is 2, and not 0",
            partial(right, rope=RoPE(layout="half", rotary_dim=16, rotary_offset=2)),
            meant=RoPE(layout="half", rotary_dim=16)),
    another("factor missing", "scaling is None, and not Linear(factor=4.0)", right,
            meant=RoPE(layout="half", scaling=Linear(4.0))),
    another("attention factor missing", "attention factor is 1, and not 1.13863",
            lambda x, p: right(x, p, YARN) / np.float32(YARN.attention_factor), meant=YARN),
    another("frequencies learned", "scaling is Measured",
            partial(by_hand, frequencies=lambda w: w * LEARNED)),
    another("positions refused", "from 2048 on are rejected",
            lambda x, p: right(x, np.arange(2048)[p])),
    # Angles.
    case("rounded tables", "cos and sin are rounded to bfloat16",
         partial(by_hand, tables=lambda *tables: map(to_bfloat16, tables))),
    case("rounded frequencies", "frequencies are rounded to bfloat16",
         partial(by_hand, frequencies=to_bfloat16)),
    case("rounded positions", "positions are rounded to bfloat16",
         partial(by_hand, product=lambda p, w: to_bfloat16(p) * w)),
    case("rounded angles", "angles are computed in bfloat16",
         partial(by_hand, product=lambda p, w: to_bfloat16(to_bfloat16(p) * to_bfloat16(w)))),
    case("TF32 product", "angles are computed in TF32",
         partial(by_hand, product=lambda p, w: to_tf32(p) * to_tf32(w))),
    case("positions off by one", "are off by +1", lambda x, p: right(x, p + 1)),
    case("negative angle", "q turns by the negative angle", turn_back),
    case("positions clamped", "from 2048 on are treated as 2047",
         lambda x, p: right(x, np.minimum(p, 2047))),
    case("positions modulo 2048", "restart at 0 from 2048", lambda x, p: right(x, p % 2048)),
    case("int16 positions", "wrap around to -32768 at 32768",
         lambda x, p: right(x, p.astype(np.int16))),
    case("largest position counts", "the largest position of a call",
         dynamic(lambda x, p: int(p.max()) + 1, 2048)),
    case("number of tokens counts", "the number of tokens of a call",
         dynamic(lambda x, p: x.shape[2], 256)),
    error("positions ignored", "the function ignores positions",
          lambda x, p: right(x, np.arange(len(p)))),
    case("cos and sin swapped", "cos and sin are swapped",
         partial(by_hand, tables=lambda cos, sin: (sin, cos))),
    error("a phase at position 0", "no offset of positions explains it",
          partial(by_hand, product=lambda p, w: p * w + PHASES)),
    error("some pairs backwards", "turn backwards, and the others forwards",
          partial(by_hand, frequencies=lambda w: w * (-1.0) ** np.arange(len(w)))),
    # Pairs.
    error("before the split, halves", "mixes heads", partial(before_the_split, layout="half")),
    error("before the split, neighbours", "heads differ: head 1 of q",
          partial(before_the_split, layout="interleaved"), meant=RoPE()),
    error("tables of neighbours",
          "cos and sin are laid out for neighbours, but the rotation reads halves",
          partial(by_hand, double=lambda table: np.repeat(table, 2, axis=-1))),
    error("minus missing",
          "both parts add the other times sin; one must subtract it. The norm is not",
          partial(by_hand, signs=(1.0, 1.0))),
    error("reflected", "one part has the wrong sign: the pair is reflected",
          lambda x, p: right(x, p) * np.repeat(np.float32([1.0, -1.0]), N)),
    error("half without sin", "the part with sin may be missing",
          partial(by_hand, signs=(0.0, 0.0))),
    error("halves of different sizes", "the norm is not kept", partial(by_hand, signs=(-1.0, 0.5))),
    error("components permuted", "it permutes the components of q", lambda x, p: x[..., ::-1]),
    error("two slices", "several slices of a head are turned, each of 16 components",
          lambda x, p: np.concatenate([right(y, p) for y in np.split(x, 2, axis=-1)], axis=-1)),
    error("a constant added", "adds a constant to q", lambda x, p: right(x, p) + 1),
    error("nothing rotated", "rotates nothing", lambda x, p: x),
    # Vectors.
    error("length grows with position", "depend on the position", grow),
    error("large numbers clipped", "not linear in q", lambda x, p: right(np.clip(x, -2, 2), p)),
    case("result cast to bfloat16", "rounded to bfloat16", lambda x, p: to_bfloat16(right(x, p))),
    error("arguments written over", "is overwritten, but another array", write_scratch),
    # One of q, k and v.
    case("k cast to bfloat16", "k is rounded to bfloat16 before it is rotated", right,
         lambda x, p: right(to_bfloat16(x), p)),
    case("another base for k", "for k, base is 1e+06, and not 10000", right,
         partial(right, rope=RoPE(layout="half", base=1e6))),
    case("k backwards", "turn in opposite directions", right, turn_back),
    case("k by positions of its own", "positions are off by +1", right,
         lambda x, p: right(x, p + 1)),
    case("k not rotated", "k is not turned", right, lambda x, p: x),
    pytest.param(lambda q, k, v, p: (q, k, right(v, p)), "v is rotated too", HALF, "fault",
                 id="v alone rotated"),
    pytest.param(lambda q, k, v, p: tuple(right(x, p) for x in (q, k, v)), "v is rotated too",
                 HALF, "fault", id="v rotated as well"),
    # Tokens, batch entries and heads.
    error("first 32 tokens only", LEFT, leave(lambda x: np.s_[:, :, 32:])),
    case("the last token of an odd number left", LEFT,
         leave(lambda x: np.s_[:, :, x.shape[2] // 2 * 2 + (x.shape[2] == 1) :])),
    error("the last block of 16 tokens left where it is not full", LEFT,
          leave(lambda x: np.s_[:, :, max(16, x.shape[2] // 16 * 16) :])),
    error("vector of the token before", "q at position", lambda x, p: right(np.roll(x, 1, 2), p)),
    error("positions reversed", "turned differently with and without other tokens",
          lambda x, p: right(x, p[::-1])),
    error("position of the first token", "by the position of the first one",
          lambda x, p: right(x, np.full_like(p, p[0]))),
    error("places beside the first position", "index in the call matters too",
          lambda x, p: right(x, p[0] + np.arange(len(p)))),
    error("batch entries swapped", "", lambda x, p: right(x, p)[::-1]),
    error("one batch entry left", LEFT, leave(lambda x: np.s_[1:2] if len(x) < 4 else [])),
    error("positions of the first batch entry for all", "q at position", take_the_first_row),
    error("heads swapped", "mixes heads", lambda x, p: right(x, p)[:, ::-1]),
    error("half of the heads left", "heads differ: head 1 of q is rotated unlike head 0",
          leave(lambda x: np.s_[:, x.shape[1] // 2 :])),
    error("as many heads of q as of k", LEFT, leave(lambda x: np.s_[:, 2:])),
]  # fmt: skip


@pytest.mark.parametrize(("function", "message", "meant", "outcome"), FAULTS)
def test_assert_rotates_and_identify_name_a_planted_fault(function, message, meant, outcome):
    with pytest.raises(AssertionError) as raised:
        assert_rotates(function, meant, HEAD_DIM)
    assert message in str(raised.value)
    assert "the cause is unknown" not in str(raised.value)
    if outcome == "error":
        with pytest.raises(RopeError) as refused:
            identify(function, HEAD_DIM)
        assert message in str(refused.value)
        return
    result = identify(function, HEAD_DIM)
    said = result.faults
    if outcome == "another":
        said = *list_differences(result.rope, meant, HEAD_DIM), *result.notes
    assert message in " ".join(said)
    backwards = "negative angle" in message or "opposite directions" in message
    assert ("negative angle" in " ".join(said)) == backwards
