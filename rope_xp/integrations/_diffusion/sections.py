"""How a head is shared out among the components of a position, from a configuration."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

Config = Mapping[str, Any]
Sections = Callable[[Config], tuple[int, ...]]

PRX = {"hidden_size": 1792, "num_heads": 28, "axes_dim": None}


def key(name: str) -> Sections:
    """As the configuration says."""
    return lambda config: tuple(config[name])


def whole(name: str) -> Sections:
    """One component, of a number of the configuration."""
    return lambda config: (config[name],)


def quotient(name: str, *divisors: str | int) -> Sections:
    """One component, of a number of the configuration divided by others."""

    def found(config: Config) -> tuple[int, ...]:
        return (config[name] // prod(config[d] if isinstance(d, str) else d for d in divisors),)

    return found


def thirds(config: Config) -> tuple[int, ...]:
    """Rows and columns have a third each, rounded down to whole pairs; frames have what is left."""
    head_dim = config["attention_head_dim"]
    third = 2 * (head_dim // 6)
    return head_dim - 2 * third, third, third


def eighths(config: Config) -> tuple[int, ...]:
    """Frames have a quarter, rows and columns three eighths each."""
    head_dim = config["attention_head_dim"]
    return head_dim // 4, head_dim // 8 * 3, head_dim // 8 * 3


def halves(config: Config) -> tuple[int, ...]:
    """Rows and columns have a half each."""
    return (config["attention_head_dim"] // 2,) * 2


def of_each(config: Config) -> tuple[int, ...]:
    """As many frequencies for each of three axes."""
    return (2 * config["rope_freq_dim"],) * 3


def prx(config: Config) -> tuple[int, ...]:
    """As the configuration says, or a half each."""
    if config["axes_dim"] is not None:
        return tuple(config["axes_dim"])
    return (config["hidden_size"] // config["num_heads"] // 2,) * 2


def ntk(config: Config, sections: tuple[int, ...]) -> tuple[float, ...]:
    """NTK-aware interpolation of each axis by a factor of its own: base * factor**(n / (n - 2)).

    As :class:`rope_xp.scaling.NTK` has it for one axis.
    """
    scales = config["rope_scale"]
    return tuple(10000.0 * s ** (n / (n - 2)) for s, n in zip(scales, sections, strict=True))


def strided(name: str) -> Sections:
    """Deal one series out: each third pair to rows, each third to columns, as M-RoPE does."""

    def found(config: Config) -> tuple[int, ...]:
        sections = config[name]
        axes = [0] * (config["attention_head_dim"] // 2)
        for axis in (1, 2):
            for pair in range(axis, 3 * sections[axis], 3):
                axes[pair] = axis
        return tuple(axes)

    return found
