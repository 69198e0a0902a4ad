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
