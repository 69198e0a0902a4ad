"""Somebody else's code on a GPU may raise anything: the others are measured without it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Failed(NamedTuple):
    """What an action raised."""

    error: Exception

    def __str__(self) -> str:
        return " ".join(str(self.error).split())[:300] or type(self.error).__name__


def attempt(action: Callable[[], Any]) -> Any:
    """Return what an action returns, or Failed."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001  # see above
        return Failed(error)
