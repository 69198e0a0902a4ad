"""Draw the wavelengths of each scaling beside those of none.

The examples are those of real models where there are some.
"""

from __future__ import annotations

from pathlib import Path

from plots import write_wavelengths

from rope_xp import RoPE
from rope_xp.scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, YaRN

LONG = tuple(1.0 + 63.0 * (i / 47) ** 2 for i in range(48))

# Name, base, head_dim, rules by what the legend calls them, context before and after.
PICTURES = {
    "linear": (1e4, 128, {"Linear, factor 4": Linear(4.0)}, (4096, 16384)),
    "ntk": (
        1e4,
        128,
        {"NTK, factor 4": NTK(4.0), "Linear, factor 4": Linear(4.0)},
        (4096, 16384),
    ),
    "dynamic": (
        1e4,
        128,
        {
            f"DynamicNTK, factor 2, at {n} tokens": DynamicNTK(2.0, 4096, length=n)
            for n in (8192, 32768)
        },
        (4096, 32768),
    ),
    "yarn": (1.5e5, 64, {"YaRN of gpt-oss": YaRN(32.0, 4096, truncate=False)}, (4096, 131072)),
    "longrope": (
        1e4,
        96,
        {
            f"LongRoPE, at {n} tokens": LongRoPE((1.0,) * 48, LONG, 4096, factor=32.0, length=n)
            for n in (4096, 131072)
        },
        (4096, 131072),
    ),
    "llama3": (5e5, 128, {"Llama3 of Llama 3.1": Llama3(8.0, 1.0, 4.0, 8192)}, (8192, 131072)),
    "proportional": (1e6, 512, {"Proportional of Gemma 4": Proportional(0.25)}, (131072,)),
}


def write(folder: Path) -> None:
    """Write every picture to a folder."""
    for name, (base, head_dim, rules, lengths) in PICTURES.items():
        ropes = {"without scaling": RoPE(base=base)} | {
            title: RoPE(base=base, scaling=rule) for title, rule in rules.items()
        }
        contexts = dict(zip(("trained context", "extended"), lengths, strict=False))
        title = f"base {base:g}, {head_dim} components"
        write_wavelengths(folder / f"rule_{name}.svg", {title: (ropes, head_dim, contexts)})
