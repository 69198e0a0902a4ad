"""Rotations with a fault planted in each, and the message that names it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, YaRN

HEAD_DIM = 32
N = HEAD_DIM // 2
HALF = RoPE(layout="half")
LINEAR = RoPE(layout="half", scaling=Linear(4.0))
LLAMA3 = RoPE(layout="half", base=5e5, scaling=Llama3(8.0, 1.0, 4.0, 8192))
YARN = RoPE(layout="half", scaling=YaRN(4.0, 4096))
SLICE = RoPE(layout="half", rotary_dim=16)
SECTIONS = RoPE(layout="half", position_axes=(0,) * 4 + (1,) * 6 + (2,) * 6)
SWAPPED = RoPE(layout="half", position_axes=(0,) * 4 + (2,) * 6 + (1,) * 6)

Rotation = Callable[[Any, Any], Any]


def right(x, positions, rope=HALF):
    return rope.rotate(x, positions, axes="bhsd")


def of_both(rotate, rotate_k=None):
    return lambda q, k, positions: (rotate(q, positions), (rotate_k or rotate)(k, positions))


def cast(dtype):
    return lambda x: x.astype(dtype).astype(np.float32)


def cast_to_tf32(x):
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
    layout="half",
    doubled="",
    signs=(-1.0, 1.0),
):
    """Rotate by angles that are a product in float32; each option is a place of a fault."""
    d = x.shape[-1]
    w = frequencies(10000.0 ** (-np.arange(0, d, 2) / d)).astype(np.float32)
    angles = product(positions.astype(np.float32)[..., None], w)

    def split(t):
        neighbours = t[..., ::2], t[..., 1::2]
        return (t[..., : d // 2], t[..., d // 2 :]) if layout == "half" else neighbours

    def double(table):
        if doubled == "neighbours":
            return split(np.repeat(table, 2, axis=-1))
        return split(np.concatenate([table, table], axis=-1)) if doubled else (table, table)

    (a, b), ((c1, c2), (s1, s2)) = split(x), map(double, tables(np.cos(angles), np.sin(angles)))
    first, second = a * c1 + signs[0] * b * s1, b * c2 + signs[1] * a * s2
    if layout == "half":
        return np.concatenate([first, second], axis=-1)
    return np.stack([first, second], axis=-1).reshape(x.shape)


def before_the_split(layout):

    def rotate(x, positions):
        b, h, s, d = x.shape
        joined = np.moveaxis(x, 1, 2).reshape(b, s, h * d)
        rotated = RoPE(layout=layout).rotate(joined, positions, axes="bsd")
        return np.moveaxis(rotated.reshape(b, s, h, d), 2, 1)

    return rotate


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


def refuse_large(x, positions):
    if positions.max() >= 2048:
        raise IndexError(f"index {positions.max()} is out of bounds for 2048 rows")
    return right(x, positions)


def normalise(x, positions):
    return right(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6), positions)


def grow(x, positions):
    """Grow with the position, as xPos does."""
    return right(x, positions) * np.minimum(1.0005**positions, 3.0).astype(np.float32)[:, None]


def write_half_first(x, positions):
    """Write the first half before the second half has read it."""
    cos, sin = HALF.cos_sin(positions, HEAD_DIM)
    y = np.array(x)
    y[..., :N] = y[..., :N] * cos - y[..., N:] * sin
    y[..., N:] = y[..., N:] * cos + y[..., :N] * sin
    return y


def write_scratch(x, positions):
    x[...] = right(x, positions)
    return x.copy()


def require_rows(rotate):
    def function(x, positions):
        if positions.ndim != 2:
            raise ValueError("positions must be (batch, tokens)")
        return rotate(x, positions)

    return function


def rotate_as_many_heads_as_k(q, k, positions):
    n = k.shape[1]
    return np.concatenate([right(q[:, :n], positions), q[:, n:]], axis=1), right(k, positions)


@dataclass(frozen=True)
class Fault:
    """A rotation, the message of its fault, and the RoPE that was meant."""

    name: str
    message: str
    function: Callable[..., Any]
    outcome: str = "fault"
    """Of identify: it lists a "fault", raises an "error", or returns "another" RoPE."""
    meant: RoPE = HALF


def fault(name, message, rotate, rotate_k=None, **options):
    return Fault(name, message, of_both(rotate, rotate_k), **options)


error, another = partial(fault, outcome="error"), partial(fault, outcome="another")


def rounded():
    to, name = cast(ml_dtypes.bfloat16), "bfloat16"
    faults = [
        ("cos and sin are rounded to", {"tables": lambda cos, sin: (to(cos), to(sin))}),
        ("frequencies are rounded to", {"frequencies": to}),
        ("positions are rounded to", {"product": lambda p, w: to(p) * w}),
        ("angles are computed in", {"product": lambda p, w: to(to(p) * to(w))}),
    ]
    message, turn = f"is rounded to {name} before it is rotated", lambda x, p: right(to(x), p)
    return [
        *(fault(f"{x} {name}", f"{x} {name}", partial(by_hand, **given)) for x, given in faults),
        fault(f"q cast to {name}", f"q {message}", turn, right),
        fault(f"k cast to {name}", f"k {message}", right, turn),
    ]


def unlike(name, rope, message, meant=HALF):
    return another(name, message, partial(right, rope=rope), meant=meant)


LAYOUTS = ("half", "interleaved", "interleaved_to_half")
LEFT = "which is unchanged"
MOVED = "turned differently with and without other tokens"
FACTOR = np.float32(YARN.attention_factor)
PHASES = np.sin(np.arange(N)).astype(np.float32)
FAULTS = [
    # Another RoPE.
    *(unlike(f"{one} for {other}", RoPE(layout=one), f"layout is '{one}', and not '{other}'",
             RoPE(layout=other))
      for one in LAYOUTS for other in LAYOUTS if one != other),
    unlike("another base", RoPE(layout="half", base=5e5), "base is 500000, and not 10000"),
    unlike("slice off by two", RoPE(layout="half", rotary_dim=16, rotary_offset=2),
          "rotary_offset is 2, and not 0", SLICE),
    unlike("exponents of the whole head", RoPE(layout="half", rotary_dim=16, base=100.0),
          "base is 100, and not 10000", SLICE),
    unlike("factor missing", HALF, "scaling is None, and not Linear(factor=4.0)", LINEAR),
    unlike("factor twice", RoPE(layout="half", scaling=Linear(16.0)),
          "scaling is Linear(factor=16.0), and not Linear(factor=4.0)", LINEAR),
    unlike("rule forgotten", RoPE(layout="half", base=5e5), "is None, and not Llama3", LLAMA3),
    fault("sections swapped", "position_axes is (0, 0, 0, 0, 2", partial(right, rope=SWAPPED),
          meant=SECTIONS, outcome="sections"),
    another("attention factor missing", "attention factor is 1, and not 1.13863",
          lambda x, p: right(x, p, YARN) / FACTOR, meant=YARN),
    another("attention factor twice", "attention factor is 1.29648, and not 1.13863",
          lambda x, p: right(x, p, YARN) * FACTOR, meant=YARN),
    another("frequencies learned", "scaling is Measured",
          partial(by_hand, frequencies=lambda w: w * (1 + 0.1 * np.sin(np.arange(len(w)) + 1)))),
    another("positions refused", "from 2048 on are rejected", refuse_large),
    # Angles.
    *rounded(),
    fault("TF32 product", "angles are computed in TF32",
          partial(by_hand, product=lambda p, w: cast_to_tf32(p) * cast_to_tf32(w))),
    fault("positions off by one", "are off by +1", lambda x, p: right(x, p + 1)),
    fault("negative angle", "q turns by the negative angle",
          lambda x, p: HALF.unrotate(x, p, axes="bhsd")),
    fault("positions clamped", "from 2048 on are treated as 2047",
          lambda x, p: right(x, np.minimum(p, 2047))),
    fault("positions modulo 2048", "restart at 0 from 2048", lambda x, p: right(x, p % 2048)),
    fault("int16 positions", "wrap around to -32768 at 32768",
          lambda x, p: right(x, p.astype(np.int16))),
    fault("largest position counts", "the largest position of a call",
          dynamic(lambda x, p: int(p.max()) + 1, 2048)),
    fault("number of tokens counts", "the number of tokens of a call",
          dynamic(lambda x, p: x.shape[2], 256)),
    error("positions ignored", "the function ignores positions",
          lambda x, p: right(x, np.arange(len(p)))),
    fault("cos and sin swapped", "cos and sin are swapped",
          partial(by_hand, tables=lambda cos, sin: (sin, cos))),
    error("a phase at position 0", "no offset of positions explains it",
          partial(by_hand, product=lambda p, w: p * w + PHASES)),
    error("some pairs backwards", "turn backwards, and the others forwards",
          partial(by_hand, frequencies=lambda w: w * (-1.0) ** np.arange(len(w)))),
    # Pairs.
    error("before the split, halves", "mixes heads", before_the_split("half")),
    error("before the split, neighbours", "angles differ between heads",
          before_the_split("interleaved"), meant=RoPE()),
    error("tables of neighbours",
          "cos and sin are laid out for neighbours, but the rotation reads halves",
          partial(by_hand, doubled="neighbours")),
    error("minus missing",
          "both parts add the other times sin; one must subtract it. The norm is not",
          partial(by_hand, signs=(1.0, 1.0))),
    error("half without sin", "the part with sin may be missing",
          partial(by_hand, signs=(0.0, 0.0))),
    error("half written early", "the norm is not kept", write_half_first),
    Fault("nothing rotated", "rotates nothing", lambda q, k, p: (q, k), outcome="error"),
    # Vectors.
    error("normalised as well", "it is not linear in q", normalise),
    error("length grows with position", "depend on the position", grow),
    error("large numbers clipped", "not linear in q", lambda x, p: right(np.clip(x, -2, 2), p)),
    error("small numbers flushed", "q at position",
          lambda x, p: right(np.where(abs(x) < 0.1, 0, x), p)),
    fault("result cast to bfloat16", "rounded to bfloat16",
          lambda x, p: cast(ml_dtypes.bfloat16)(right(x, p))),
    error("arguments written over", "is overwritten, but another array", write_scratch),
    # One of q, k and v.
    fault("another base for k", "for k, base is 1e+06, and not 10000", right,
          partial(right, rope=RoPE(layout="half", base=1e6))),
    fault("another layout for k", "for k, layout is 'interleaved', and not 'half'", right,
          partial(right, rope=RoPE())),
    fault("k backwards", "turn in opposite directions", right,
          lambda x, p: HALF.unrotate(x, p, axes="bhsd")),
    fault("k by positions of its own", "positions are off by +1", right,
          lambda x, p: right(x, p + 1)),
    error("k by positions reversed", MOVED, right, lambda x, p: right(x, p[::-1])),
    fault("k without the attention factor", "for k, attention factor is 1, and not 1.13863",
          partial(right, rope=YARN), lambda x, p: right(x, p, YARN) / FACTOR, meant=YARN),
    fault("k not rotated", "k is not turned", right, lambda x, p: x),
    Fault("q and k swapped", "", lambda q, k, p: (right(k, p), right(q, p)), outcome="error"),
    Fault("k made of q", "", lambda q, k, p: (right(q, p), right(q, p)), outcome="error"),
    Fault("v alone rotated", "v is rotated too", lambda q, k, v, p: (q, k, right(v, p))),
    Fault("v rotated as well", "v is rotated too",
          lambda q, k, v, p: tuple(right(x, p) for x in (q, k, v))),
    # Tokens, batch entries and heads.
    error("first 32 tokens only", LEFT, leave(lambda x: np.s_[:, :, 32:])),
    fault("the last token of an odd number left", LEFT,
          leave(lambda x: np.s_[:, :, x.shape[2] // 2 * 2 + (x.shape[2] == 1) :])),
    error("the last block of 16 tokens left where it is not full", LEFT,
          leave(lambda x: np.s_[:, :, max(16, x.shape[2] // 16 * 16) :])),
    error("vector of the token before", "q at position", lambda x, p: right(np.roll(x, 1, 2), p)),
    error("positions reversed", MOVED, lambda x, p: right(x, p[::-1])),
    error("position of the first token", "by the position of the first one",
          lambda x, p: right(x, np.full_like(p, p[0]))),
    error("places beside the first position", "index in the call matters too",
          lambda x, p: right(x, p[0] + np.arange(len(p)))),
    error("batch entries swapped", "", lambda x, p: right(x, p)[::-1]),
    error("the first batch entry for all", "",
          lambda x, p: np.broadcast_to(right(x, p)[:1], x.shape)),
    error("one batch entry left", LEFT, leave(lambda x: np.s_[1:2] if len(x) < 4 else [])),
    error("positions of the first batch entry for all", "q at position",
          require_rows(lambda x, p: right(x, np.broadcast_to(p[:1], p.shape)))),
    error("heads swapped", "mixes heads", lambda x, p: right(x, p)[:, ::-1]),
    error("half of the heads left", "heads differ: head 1 of q leaves component 0 alone",
          leave(lambda x: np.s_[:, x.shape[1] // 2 :])),
    error("two layouts", "heads differ: head 1 of q pairs components 0 and 1, and head 0 pairs",
          lambda x, p: np.concatenate([right(x[:, :1], p), right(x[:, 1:], p, RoPE())], 1)),
    error("four heads at most", LEFT, leave(lambda x: np.s_[:, 3:])),
    Fault("as many heads of q as of k", LEFT, rotate_as_many_heads_as_k, outcome="error"),
]  # fmt: skip
