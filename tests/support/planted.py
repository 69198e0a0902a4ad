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


def right(x: Any, positions: Any, rope: RoPE = HALF) -> Any:
    return rope.rotate(x, positions, axes="bhsd")


def of_both(rotate: Rotation, rotate_k: Rotation | None = None) -> Callable[[Any, Any, Any], Any]:
    return lambda q, k, positions: (rotate(q, positions), (rotate_k or rotate)(k, positions))


def cast(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: x.astype(dtype).astype(np.float32)


def cast_to_tf32(x: Any) -> Any:
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

    def split(t: Any) -> tuple[Any, Any]:
        neighbours = t[..., ::2], t[..., 1::2]
        return (t[..., : d // 2], t[..., d // 2 :]) if layout == "half" else neighbours

    def double(table: Any) -> tuple[Any, Any]:
        """Return the columns that each half of a pair reads."""
        if doubled == "neighbours":
            return split(np.repeat(table, 2, axis=-1))
        return split(np.concatenate([table, table], axis=-1)) if doubled else (table, table)

    (a, b), ((c1, c2), (s1, s2)) = split(x), map(double, tables(np.cos(angles), np.sin(angles)))
    first, second = a * c1 + signs[0] * b * s1, b * c2 + signs[1] * a * s2
    if layout == "half":
        return np.concatenate([first, second], axis=-1)
    return np.stack([first, second], axis=-1).reshape(x.shape)


def before_the_split(layout: Any) -> Rotation:
    """Rotate all heads as if they were one."""

    def rotate(x: Any, positions: Any) -> Any:
        b, h, s, d = x.shape
        joined = np.moveaxis(x, 1, 2).reshape(b, s, h * d)
        rotated = RoPE(layout=layout).rotate(joined, positions, axes="bsd")
        return np.moveaxis(rotated.reshape(b, s, h, d), 2, 1)

    return rotate


def leave(choose: Callable[[Any], Any]) -> Rotation:
    """Rotate all but a part of x."""

    def rotate(x: Any, positions: Any) -> Any:
        y = np.array(right(x, positions))
        part = choose(x)
        y[part] = x[part]
        return y

    return rotate


def from_token(start: int) -> Callable[[Any], Any]:
    return lambda x: np.s_[:, :, start:]


def dynamic(length: Callable[[Any, Any], int], trained: int) -> Rotation:
    """Let the base grow with the length of a call."""

    def rotate(x: Any, positions: Any) -> Any:
        n, d = max(length(x, positions), trained), HEAD_DIM
        base = 1e4 * (2.0 * n / trained - 1.0) ** (d / (d - 2))
        return right(x, positions, RoPE(layout="half", base=base))

    return rotate


def refuse_large(x: Any, positions: Any) -> Any:
    if positions.max() >= 2048:
        raise IndexError(f"index {positions.max()} is out of bounds for 2048 rows")
    return right(x, positions)


def normalise(x: Any, positions: Any) -> Any:
    """Divide by the norm first, as QK-norm does."""
    return right(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6), positions)


def grow(x: Any, positions: Any) -> Any:
    """Grow with the position, as xPos does."""
    return right(x, positions) * np.minimum(1.0005**positions, 3.0).astype(np.float32)[:, None]


def write_half_first(x: Any, positions: Any) -> Any:
    """Write the first half before the second half has read it."""
    cos, sin = HALF.cos_sin(positions, HEAD_DIM)
    y = np.array(x)
    y[..., :N] = y[..., :N] * cos - y[..., N:] * sin
    y[..., N:] = y[..., N:] * cos + y[..., :N] * sin
    return y


def write_scratch(x: Any, positions: Any) -> Any:
    """Return a copy of what is written over the argument."""
    x[...] = right(x, positions)
    return x.copy()


def require_rows(rotate: Rotation) -> Rotation:
    """Take positions (batch, tokens) alone."""

    def function(x: Any, positions: Any) -> Any:
        if positions.ndim != 2:
            raise ValueError("positions must be (batch, tokens)")
        return rotate(x, positions)

    return function


def rotate_as_many_heads_as_k(q: Any, k: Any, positions: Any) -> Any:
    n = k.shape[1]
    return np.concatenate([right(q[:, :n], positions), q[:, n:]], axis=1), right(k, positions)


@dataclass(frozen=True)
class Fault:
    """A rotation, the message of its fault, and the RoPE that was meant."""

    name: str
    function: Callable[..., Any]
    message: str
    outcome: str = "fault"
    """Of identify: it lists a "fault", raises an "error", or returns "another" RoPE."""
    meant: RoPE = HALF


def rounded(dtype: Any, name: str) -> list[Fault]:
    to = cast(dtype)
    faults = [
        ("cos and sin are rounded to", {"tables": lambda cos, sin: (to(cos), to(sin))}),
        ("frequencies are rounded to", {"frequencies": to}),
        ("positions are rounded to", {"product": lambda p, w: to(p) * w}),
        ("angles are computed in", {"product": lambda p, w: to(to(p) * to(w))}),
    ]
    return [
        Fault(f"{cause} {name}", of_both(partial(by_hand, **options)), f"{cause} {name}")
        for cause, options in faults
    ] + [
        Fault(f"{x} cast to {name}", function, f"{x} is rounded to {name} before it is rotated")
        for x, function in (
            ("q", of_both(lambda x, p: right(to(x), p))),
            ("k", of_both(right, lambda x, p: right(to(x), p))),
        )
    ]


def unlike(name: str, rope: RoPE, message: str, meant: RoPE = HALF) -> Fault:
    """Return the fault of a right rotation by another RoPE than was meant."""
    return Fault(name, of_both(partial(right, rope=rope)), message, "another", meant)


LAYOUTS: tuple[Any, ...] = ("half", "interleaved", "interleaved_to_half")
LEFT = "which is left as it is"
MOVED = "turned otherwise alone in a call than with others"
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
    unlike("slice at the end", RoPE(layout="half", rotary_dim=16, rotary_offset=16),
           "rotary_offset is 16, and not 0", SLICE),
    unlike("slice of half the length", SLICE, "rotary_dim is 16, and not 32"),
    unlike("exponents of the whole head", RoPE(layout="half", rotary_dim=16, base=100.0),
           "base is 100, and not 10000", SLICE),
    unlike("factor missing", HALF, "scaling is None, and not Linear(factor=4.0)", LINEAR),
    unlike("factor twice", RoPE(layout="half", scaling=Linear(16.0)),
           "scaling is Linear(factor=16.0), and not Linear(factor=4.0)", LINEAR),
    unlike("rule forgotten", RoPE(layout="half", base=5e5), "is None, and not Llama3", LLAMA3),
    Fault("sections swapped", of_both(partial(right, rope=SWAPPED)),
          "position_axes is (0, 0, 0, 0, 2", "sections", SECTIONS),
    Fault("attention factor missing", of_both(lambda x, p: right(x, p, YARN) / FACTOR),
          "attention factor is 1, and not 1.13863", "another", YARN),
    Fault("attention factor twice", of_both(lambda x, p: right(x, p, YARN) * FACTOR),
          "attention factor is 1.29648, and not 1.13863", "another", YARN),
    Fault("frequencies learned", of_both(partial(
          by_hand, frequencies=lambda w: w * (1 + 0.1 * np.sin(np.arange(len(w)) + 1)))),
          "scaling is Measured", "another"),
    Fault("positions refused", of_both(refuse_large), "from 2048 on are refused", "another"),
    # Angles.
    *rounded(ml_dtypes.bfloat16, "bfloat16"), *rounded(np.float16, "float16"),
    Fault("TF32 product",
          of_both(partial(by_hand, product=lambda p, w: cast_to_tf32(p) * cast_to_tf32(w))),
          "angles are computed in TF32"),
    Fault("positions off by one", of_both(lambda x, p: right(x, p + 1)), "are off by +1"),
    Fault("positions off by minus one", of_both(lambda x, p: right(x, p - 1)), "are off by -1"),
    Fault("negative angle", of_both(lambda x, p: HALF.unrotate(x, p, axes="bhsd")),
          "q turns by the negative angle"),
    Fault("positions clamped", of_both(lambda x, p: right(x, np.minimum(p, 2047))),
          "from 2048 on are taken for 2047"),
    Fault("positions modulo 2048", of_both(lambda x, p: right(x, p % 2048)), "anew at 2048"),
    Fault("positions modulo 65536", of_both(lambda x, p: right(x, p % 65536)), "anew at 65536"),
    Fault("int16 positions", of_both(lambda x, p: right(x, p.astype(np.int16))),
          "wrap around to -32768 at 32768"),
    Fault("largest position counts", of_both(dynamic(lambda x, p: int(p.max()) + 1, 2048)),
          "the largest position of a call"),
    Fault("number of tokens counts", of_both(dynamic(lambda x, p: x.shape[2], 256)),
          "the number of tokens of a call"),
    Fault("positions ignored", of_both(lambda x, p: right(x, np.arange(len(p)))),
          "the function ignores positions", "error"),
    Fault("cos and sin swapped", of_both(partial(by_hand, tables=lambda cos, sin: (sin, cos))),
          "cos and sin are swapped"),
    Fault("a phase at position 0",
          of_both(partial(by_hand, product=lambda p, w: p * w + PHASES)),
          "no offset of positions explains it", "error"),
    Fault("some pairs backwards",
          of_both(partial(by_hand, frequencies=lambda w: w * (-1.0) ** np.arange(len(w)))),
          "turn backwards, and the others forwards", "error"),
    # Pairs.
    Fault("before the split, halves", of_both(before_the_split("half")), "mixes heads", "error"),
    Fault("before the split, neighbours", of_both(before_the_split("interleaved")),
          "angles differ between heads", "error", RoPE()),
    Fault("tables of neighbours", of_both(partial(by_hand, doubled="neighbours")),
          "cos and sin are laid out for neighbours, and the rotation takes halves", "error"),
    Fault("tables of halves",
          of_both(partial(by_hand, layout="interleaved", doubled="halves")),
          "cos and sin are laid out for halves, and the rotation takes", "error", RoPE()),
    Fault("minus missing", of_both(partial(by_hand, signs=(1.0, 1.0))),
          "both parts add the other times sin; one must subtract it. The norm is not", "error"),
    Fault("half without sin", of_both(partial(by_hand, signs=(0.0, 0.0))),
          "the part with sin may be missing", "error"),
    Fault("half written early", of_both(write_half_first), "the norm is not kept", "error"),
    Fault("nothing rotated", lambda q, k, p: (q, k), "turns nothing", "error"),
    # Vectors.
    Fault("normalised as well", of_both(normalise), "it is not linear in q", "error"),
    Fault("length grows with position", of_both(grow), "depend on the position", "error"),
    Fault("large numbers clipped", of_both(lambda x, p: right(np.clip(x, -2, 2), p)),
          "not linear in q", "error"),
    Fault("small numbers flushed", of_both(lambda x, p: right(np.where(abs(x) < 0.1, 0, x), p)),
          "q at position", "error"),
    Fault("result cast to bfloat16",
          of_both(lambda x, p: cast(ml_dtypes.bfloat16)(right(x, p))), "rounded to bfloat16"),
    Fault("arguments written over", of_both(write_scratch), "is written over, and another array",
          "error"),
    # One of q, k and v.
    Fault("another base for k", of_both(right, partial(right, rope=RoPE(layout="half", base=1e6))),
          "of k, base is 1e+06, and not 10000"),
    Fault("another layout for k", of_both(right, partial(right, rope=RoPE())),
          "of k, layout is 'interleaved', and not 'half'"),
    Fault("k backwards", of_both(right, lambda x, p: HALF.unrotate(x, p, axes="bhsd")),
          "turn against each other"),
    Fault("k by positions of its own", of_both(right, lambda x, p: right(x, p + 1)),
          "positions are off by +1"),
    Fault("k by positions reversed", of_both(right, lambda x, p: right(x, p[::-1])), MOVED,
          "error"),
    Fault("k without the attention factor",
          of_both(partial(right, rope=YARN), lambda x, p: right(x, p, YARN) / FACTOR),
          "of k, attention factor is 1, and not 1.13863", "fault", YARN),
    Fault("k not rotated", of_both(right, lambda x, p: x), "k is not turned"),
    Fault("q and k swapped", lambda q, k, p: (right(k, p), right(q, p)), "", "error"),
    Fault("k made of q", lambda q, k, p: (right(q, p), right(q, p)), "", "error"),
    Fault("v alone rotated", lambda q, k, v, p: (q, k, right(v, p)), "v is turned as well"),
    Fault("v rotated as well", lambda q, k, v, p: tuple(right(x, p) for x in (q, k, v)),
          "v is turned as well"),
    # Tokens, batch entries and heads.
    Fault("first 32 tokens only", of_both(leave(from_token(32))), LEFT, "error"),
    Fault("first 1024 tokens only", of_both(leave(from_token(1024))), LEFT, "error"),
    Fault("the last token of an odd number left",
          of_both(leave(lambda x: np.s_[:, :, x.shape[2] // 2 * 2 + (x.shape[2] == 1) :])), LEFT),
    Fault("the last block of 16 tokens left where it is not full",
          of_both(leave(lambda x: np.s_[:, :, max(16, x.shape[2] // 16 * 16) :])), LEFT, "error"),
    Fault("tokens reversed", of_both(lambda x, p: right(x, p)[:, :, ::-1]), MOVED, "error"),
    Fault("vectors of reversed tokens", of_both(lambda x, p: right(x[:, :, ::-1], p)),
          "q at position", "error"),
    Fault("vector of the token before", of_both(lambda x, p: right(np.roll(x, 1, 2), p)),
          "q at position", "error"),
    Fault("positions reversed", of_both(lambda x, p: right(x, p[::-1])), MOVED, "error"),
    Fault("position of the token before", of_both(lambda x, p: right(x, np.roll(p, 1))), MOVED,
          "error"),
    Fault("position of the first token", of_both(lambda x, p: right(x, np.full_like(p, p[0]))),
          "function turns nothing", "error"),
    Fault("places beside the first position",
          of_both(lambda x, p: right(x, p[0] + np.arange(len(p)))),
          "place in the call counts too", "error"),
    Fault("batch entries swapped", of_both(lambda x, p: right(x, p)[::-1]), "", "error"),
    Fault("the next batch entry", of_both(lambda x, p: np.roll(right(x, p), 1, 0)), "", "error"),
    Fault("the first batch entry for all",
          of_both(lambda x, p: np.broadcast_to(right(x, p)[:1], x.shape)), "", "error"),
    Fault("one batch entry left", of_both(leave(lambda x: np.s_[1:2] if len(x) < 4 else [])), LEFT,
          "error"),
    Fault("positions of the first batch entry for all", of_both(require_rows(
          lambda x, p: right(x, np.broadcast_to(p[:1], p.shape)))), "q at position", "error"),
    Fault("positions of batch entries swapped", of_both(require_rows(
          lambda x, p: right(x, p[::-1]))), "q at position", "error"),
    Fault("heads swapped", of_both(lambda x, p: right(x, p)[:, ::-1]), "mixes heads", "error"),
    Fault("half of the heads left", of_both(leave(lambda x: np.s_[:, x.shape[1] // 2 :])),
          "angles differ between heads", "error"),
    Fault("four heads at most", of_both(leave(lambda x: np.s_[:, 3:])), LEFT, "error"),
    Fault("as many heads of q as of k", rotate_as_many_heads_as_k, LEFT, "error"),
]  # fmt: skip
