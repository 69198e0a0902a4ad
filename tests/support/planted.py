"""Rotations with a fault planted in each, in the array API, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import numpy as numpy_namespace

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, YaRN

HEAD_DIM = 32
HALF = RoPE(layout="half")
LLAMA3 = Llama3(8.0, 1.0, 4.0, original_max_position_embeddings=8192)
YARN = YaRN(4.0, 4096)
SECTIONS = RoPE(layout="half", position_axes=(0,) * 4 + (1,) * 6 + (2,) * 6)


@dataclass(frozen=True)
class HandRotation:
    """A rotation written by hand; each field is a place where one goes wrong."""

    xp: Any
    base: float = 10000.0
    layout: str = "half"
    rotary_dim: int = HEAD_DIM
    start: int = 0
    power: int = 0
    """What exponents are divided by; 0 for rotary_dim."""
    frequencies: Callable[[np.ndarray], np.ndarray] = lambda w: w
    positions: Callable[[Any, Any], Any] = lambda xp, p: p
    product: Callable[[Any, Any, Any], Any] = lambda xp, p, w: p * w
    cos_sin: Callable[[Any, Any, Any], tuple[Any, Any]] = lambda xp, cos, sin: (cos, sin)
    doubled: str = ""
    """The layout of tables, where it is not that of the rotation."""
    signs: tuple[float, float] = (-1.0, 1.0)
    axes: tuple[int, ...] | None = None

    def __call__(self, x: Any, positions: Any) -> Any:
        xp, r = self.xp, self.rotary_dim
        exact = self.frequencies(self.base ** (-np.arange(0, r, 2) / (self.power or r)))
        w = xp.asarray(exact.astype(np.float32))
        p = self.positions(xp, xp.astype(positions, xp.float32))
        if self.axes is not None:  # (components, batch, tokens)
            p = xp.stack([p[c, :, None] for c in self.axes], axis=-1)
        else:
            p = p[..., None]
        angles = self.product(xp, p, w)
        cos, sin = self.cos_sin(xp, xp.cos(angles), xp.sin(angles))
        return self.rotate(x, cos, sin)

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        xp, start, r = self.xp, self.start, self.rotary_dim
        before, y, after = x[..., :start], x[..., start : start + r], x[..., start + r :]

        def split(t: Any) -> tuple[Any, Any]:
            if self.layout == "half":
                return t[..., : r // 2], t[..., r // 2 :]
            return t[..., ::2], t[..., 1::2]

        def double(table: Any) -> tuple[Any, Any]:
            """Return the columns that each half of a pair reads."""
            if not self.doubled:
                return table, table
            join = xp.stack if self.doubled == "neighbours" else xp.concat
            both = join([table, table], axis=-1)
            return split(xp.reshape(both, (*table.shape[:-1], 2 * table.shape[-1])))

        (a, b), (c1, c2), (s1, s2) = split(y), double(cos), double(sin)
        minus, plus = self.signs
        first, second = a * c1 + minus * b * s1, b * c2 + plus * a * s2
        if self.layout == "interleaved":
            rotated = xp.reshape(xp.stack([first, second], axis=-1), y.shape)
        else:
            rotated = xp.concat([first, second], axis=-1)
        return xp.concat([before, rotated, after], axis=-1)


def narrow(name: str) -> Callable[[Any, Any], Any]:
    """Return what rounds to a format of 16 bits, in the library's own arithmetic."""

    def rounded(xp: Any, x: Any) -> Any:
        if name == "bfloat16" and not hasattr(xp, "bfloat16"):  # numpy
            import ml_dtypes

            return x.astype(ml_dtypes.bfloat16).astype(np.float32)
        return xp.astype(xp.astype(x, getattr(xp, name)), xp.float32)

    return rounded


def tf32(xp: Any, x: Any) -> Any:
    """Round to ten bits, as tensor cores read float32."""
    host = np.asarray(x, np.float32)
    bits = (host.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return xp.asarray(bits.view(np.float32))


def both(to: Callable[[Any, Any], Any], *, product: bool = True) -> Callable[[Any, Any, Any], Any]:
    """Return a function that rounds the factors, and by default the product."""

    def multiplied(xp: Any, p: Any, w: Any) -> Any:
        angles = to(xp, p) * to(xp, w)
        return to(xp, angles) if product else angles

    return multiplied


def scaled_by(rule: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda w: rule.frequencies(10000.0, 2 * len(w))


# --- whole functions -----------------------------------------------------------------------------

Maker = Callable[[Any], Callable[..., Any]]


def two(of_q: dict[str, Any], of_k: dict[str, Any]) -> Maker:
    def make(xp: Any) -> Callable[..., Any]:
        rotate_q, rotate_k = HandRotation(xp, **of_q), HandRotation(xp, **of_k)
        return lambda q, k, positions: (rotate_q(q, positions), rotate_k(k, positions))

    return make


def one(**fields: Any) -> Maker:
    """Return what makes a function of q, k and positions that rotates both so."""
    return two(fields, fields)


def k_not_turned(xp: Any) -> Callable[..., Any]:
    return lambda q, k, positions: (HandRotation(xp)(q, positions), k)


def nothing_turned(xp: Any) -> Callable[..., Any]:
    return lambda q, k, positions: (q, k)


def v_turned(xp: Any) -> Callable[..., Any]:
    turn = HandRotation(xp)
    return lambda q, k, v, positions: tuple(turn(x, positions) for x in (q, k, v))


def before_the_split(layout: str) -> Maker:
    """Turn all heads as if they were one."""

    def make(xp: Any) -> Callable[..., Any]:
        def function(x: Any, positions: Any) -> Any:
            b, h, s, d = x.shape
            wide = xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (b, s, h * d))
            turned = HandRotation(xp, layout=layout, rotary_dim=h * d)(wide, positions)
            return xp.permute_dims(xp.reshape(turned, (b, s, h, d)), (0, 2, 1, 3))

        return function

    return make


def to_half(xp: Any) -> Callable[..., Any]:
    """Read neighbours, write halves."""
    turn = HandRotation(xp, layout="interleaved_to_half")
    return lambda x, positions: turn(x, positions)


def places(xp: Any) -> Callable[..., Any]:
    """Count tokens, and heed no positions."""
    turn = HandRotation(xp)
    return lambda x, positions: turn(x, xp.asarray(np.arange(x.shape[-2])))


def reaching(xp: Any, x: Any, positions: Any) -> int:
    return int(positions.max()) + 1


def counting(xp: Any, x: Any, positions: Any) -> int:
    return int(x.shape[-2])


def dynamic(length: Callable[..., int], trained: int) -> Maker:
    """Have the base grow with a call."""

    def make(xp: Any) -> Callable[..., Any]:
        def function(x: Any, positions: Any) -> Any:
            n, r = max(length(xp, x, positions), trained), HEAD_DIM
            base = 10000.0 * (2.0 * n / trained - 1.0) ** (r / (r - 2))
            return HandRotation(xp, base=base)(x, positions)

        return function

    return make


def from_table(rows: int, *, wrapped: bool = False, clamped: bool = False) -> Maker:
    """Look angles up in a table of so many positions."""

    def make(xp: Any) -> Callable[..., Any]:
        angles = np.arange(rows)[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        cos, sin = (xp.asarray(f(angles).astype(np.float32)) for f in (np.cos, np.sin))

        def function(x: Any, positions: Any) -> Any:
            at = np.asarray(positions)
            at = at % rows if wrapped else np.minimum(at, rows - 1) if clamped else at
            if at.max() >= rows:  # what numpy and torch say; jax would take the last
                msg = f"index {at.max()} is out of bounds for {rows} rows"
                raise IndexError(msg)
            rows_at = xp.asarray(at)
            return HandRotation(xp).rotate(
                x, xp.take(cos, rows_at, axis=0), xp.take(sin, rows_at, axis=0)
            )

        return function

    return make


def int16(xp: Any, p: Any) -> Any:
    return xp.asarray(np.asarray(p).astype(np.int64).astype(np.int16).astype(np.float32))


def normalised(xp: Any) -> Callable[..., Any]:
    """Divide by the norm first, as QK-norm does."""
    turn = HandRotation(xp)

    def function(x: Any, positions: Any) -> Any:
        return turn(x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6), positions)

    return function


def xpos(xp: Any) -> Callable[..., Any]:
    def function(x: Any, positions: Any) -> Any:
        grows = 1.0005 ** xp.astype(positions, xp.float32)
        return HandRotation(xp)(x, positions) * xp.minimum(grows, grows * 0 + 3.0)[:, None]

    return function


def times(factor: float) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    return lambda xp, cos, sin: (cos * factor, sin * factor)


def rounding(name: str) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    return lambda xp, cos, sin: (narrow(name)(xp, cos), narrow(name)(xp, sin))


def host_rounded(name: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda w: narrow(name)(numpy_namespace, w.astype(np.float32)).astype(float)


@dataclass(frozen=True)
class Fault:
    """A kind of fault: its maker, words of its message, and the RoPE that was meant."""

    kind: str
    make: Maker
    words: str
    meant: RoPE = HALF
    alone: bool = True
    """Whether it is wrong whatever was meant, so that identify says it too."""


def _layouts() -> list[Fault]:
    makers = {
        "half": one(),
        "interleaved": one(layout="interleaved"),
        "interleaved_to_half": to_half,
    }
    return [
        Fault(
            f"{have} for {want}", make, f"layout is '{have}', and not '{want}'",
            RoPE(layout=want), alone=False,  # type: ignore[arg-type]  # a layout
        )
        for have, make in makers.items()
        for want in makers
        if want != have
    ]  # fmt: skip


bf16, f16 = narrow("bfloat16"), narrow("float16")
PHASES = np.sin(np.arange(HEAD_DIM // 2)).astype(np.float32)
SWAPPED = (0,) * 4 + (2,) * 6 + (1,) * 6
FAULTS = (
    *_layouts(),
    Fault("positions off by one", one(positions=lambda xp, p: p + 1), "positions are off by +1"),
    Fault("positions off by minus one", one(positions=lambda xp, p: p - 1), "are off by -1"),
    Fault("negative angle", one(signs=(1.0, -1.0)), "turns by the negative angle"),
    Fault("another base", one(base=5e5), "base is 500000, and not 10000", alone=False),
    Fault("bfloat16 tables", one(cos_sin=rounding("bfloat16")), "cos and sin are rounded to bfl"),
    Fault("float16 tables", one(cos_sin=rounding("float16")), "cos and sin are rounded to float16"),
    Fault("bfloat16 frequencies", one(frequencies=host_rounded("bfloat16")),
          "frequencies are rounded to bfloat16"),
    Fault("float16 frequencies", one(frequencies=host_rounded("float16")),
          "frequencies are rounded to float16"),
    Fault("bfloat16 positions", one(positions=bf16), "positions are rounded to bfloat16"),
    Fault("float16 positions", one(positions=f16), "positions are rounded to float16"),
    Fault("bfloat16 product", one(product=both(bf16)), "angles are computed in bfloat16"),
    Fault("float16 product", one(product=both(f16)), "angles are computed in float16"),
    Fault("TF32 product", one(product=both(tf32, product=False)), "angles are computed in TF32"),
    Fault("slice off by two", one(rotary_dim=16, start=2), "rotary_offset is 2, and not 0",
          RoPE(layout="half", rotary_dim=16), alone=False),
    Fault("slice at the wrong end", one(rotary_dim=16, start=16), "rotary_offset is 16, and not 0",
          RoPE(layout="half", rotary_dim=16), alone=False),
    Fault("slice of half the length", one(rotary_dim=16), "rotary_dim is 16, and not 32",
          alone=False),
    Fault("exponents of the whole head", one(rotary_dim=16, power=32), "base is 100, and not 10000",
          RoPE(layout="half", rotary_dim=16), alone=False),
    Fault("turned before the split, halves", before_the_split("half"), "mixes heads"),
    Fault("turned before the split, neighbours", before_the_split("interleaved"),
          "angles differ between heads", RoPE()),
    Fault("sections swapped", one(axes=SWAPPED), "position_axes is (0, 0, 0, 0, 2", SECTIONS,
          alone=False),
    Fault("attention factor missing", one(frequencies=scaled_by(YARN)),
          "attention factor is 1, and not 1.13863", RoPE(layout="half", scaling=YARN), alone=False),
    Fault("attention factor twice",
          one(frequencies=scaled_by(YARN), cos_sin=times(YARN.effective_attention_factor**2)),
          "attention factor is 1.29648, and not 1.13863", RoPE(layout="half", scaling=YARN),
          alone=False),
    Fault("k not turned", k_not_turned, "k is not turned"),
    Fault("nothing turned", nothing_turned, "turns nothing"),
    Fault("v turned", v_turned, "v is turned as well"),
    Fault("positions clamped", from_table(2048, clamped=True), "from 2048 on are taken for 2047"),
    Fault("positions start anew", from_table(2048, wrapped=True), "start anew at 2048"),
    Fault("positions refused", from_table(2048), "positions from 2048 on are refused",
          alone=False),
    Fault("int16 positions", one(positions=int16), "wrap around to -32768 at 32768"),
    Fault("largest position counts", dynamic(reaching, 2048), "the largest position of a call"),
    Fault("number of tokens counts", dynamic(counting, 256), "the number of tokens of a call"),
    Fault("positions ignored", places, "the function ignores positions"),
    Fault("cos and sin swapped", one(cos_sin=lambda xp, cos, sin: (sin, cos)),
          "cos and sin are swapped"),
    Fault("tables of neighbours", one(doubled="neighbours"),
          "cos and sin are laid out for neighbours, and the rotation takes halves"),
    Fault("tables of halves", one(layout="interleaved", doubled="halves"),
          "cos and sin are laid out for halves, and the rotation takes neighbours", RoPE()),
    Fault("minus missing", one(signs=(1.0, 1.0)), "both parts add the other times sin"),
    Fault("half without sin", one(signs=(0.0, 0.0)), "the part with sin may be missing"),
    Fault("one part reflected", one(cos_sin=lambda xp, cos, sin: (cos, sin), signs=(1.0, 1.0),
          layout="half", doubled=""), "The norm is not kept"),
    Fault("factor missing", one(), "scaling is None, and not Linear(factor=4.0)",
          RoPE(layout="half", scaling=Linear(4.0)), alone=False),
    Fault("factor twice", one(frequencies=lambda w: w / 16),
          "scaling is Linear(factor=16.0), and not Linear(factor=4.0)",
          RoPE(layout="half", scaling=Linear(4.0)), alone=False),
    Fault("rule forgotten", one(base=5e5), "scaling is None, and not Llama3",
          RoPE(layout="half", base=5e5, scaling=LLAMA3), alone=False),
    Fault("frequencies learned",
          one(frequencies=lambda w: w * (1 + 0.1 * np.sin(np.arange(len(w)) + 1))),
          "scaling is Measured", alone=False),
    Fault("normalised as well", normalised, "it is not linear in q"),
    Fault("length grows with position", xpos, "depend on the position"),
    Fault("another base for k", two({}, {"base": 1e6}), "of k, base is 1e+06, and not 10000"),
    Fault("another layout for k", two({}, {"layout": "interleaved"}),
          "of k, layout is 'interleaved', and not 'half'"),
    Fault("k turns backwards", two({}, {"signs": (1.0, -1.0)}), "turn against each other"),
    Fault("a phase at position 0",
          one(product=lambda xp, p, w: p * w + xp.asarray(PHASES)),
          "no offset of positions explains it"),
    Fault("some pairs backwards", one(frequencies=lambda w: w * (-1.0) ** np.arange(len(w))),
          "turn backwards, and the others forwards"),
)  # fmt: skip
