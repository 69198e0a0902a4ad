"""Checks and messages that rules share."""

from __future__ import annotations

from rope_xp._contract.errors import RopeError


def check_divides(name: str, parts: int, rotary_dim: int) -> None:
    """Check that the pairs can be shared out evenly."""
    if rotary_dim % (2 * parts):
        msg = f"{name} = {parts} does not divide the {rotary_dim // 2} rotated pairs evenly"
        raise RopeError(msg)


def check_entries(name: str, entries: int, rotary_dim: int) -> None:
    """Check that a list has one entry for each pair."""
    if entries != rotary_dim // 2:
        msg = (
            f"{name} has {entries} entries; {rotary_dim} rotated components have "
            f"{rotary_dim // 2} pairs. Set RoPE.rotary_dim if only a part of head_dim is rotated"
        )
        raise RopeError(msg)


def no_length(rule: str) -> RopeError:
    """Return the error of a rule whose frequencies depend on the length of the context."""
    return RopeError(
        f"the frequencies of {rule} depend on the length of the context; fix it first, by "
        "rope = rope.for_length(n). All keys of one attention need the same"
    )


def no_longrope_factor() -> RopeError:
    """Return the error of a LongRoPE whose attention factor cannot be computed."""
    return RopeError(
        "LongRoPE needs factor, max_position_embeddings or attention_factor to know by how much "
        "the context was extended"
    )


def no_series(rule: str) -> RopeError:
    """Return the error of a rule that divides by the logarithm of the base."""
    return RopeError(f"base must not be 1 with {rule}, as all pairs then turn alike")


def too_few_pairs(rule: str, rotary_dim: int) -> RopeError:
    """Return the error of a rule that leaves the first pair and slows the last."""
    return RopeError(f"{rule} needs two pairs or more; {rotary_dim} components are rotated")
