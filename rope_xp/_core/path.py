"""The interface of a path: one way to run a call, which it may decline with a reason."""

from collections.abc import Callable
from typing import Protocol

from rope_xp._core.call import Call
from rope_xp._core.typing import Array


class PathUnavailable(Exception):  # noqa: N818  # no error: the next path runs
    """Raised by ``Path.run``, before it has written anything, to leave the call to the next path.

    Only for reasons that importing or compiling reveals. ``decline_reason`` returns all others.
    """


class Path:
    """One way to run a call."""

    name: str
    """The name in ``use_path`` and ``explain``."""
    normalizes = False
    """Whether it takes calls with a norm."""
    takes_slots = False
    """Whether it writes keys to slots of a cache."""

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Return why the path does not take the call, or None. It must not import or build.

        A ``forced`` path (chosen by name) declines only calls that it cannot run.
        """
        return None

    def run(self, call: Call) -> tuple[Array, ...]:
        """Return the rotated arrays, one for each of ``call.arrays``."""
        raise NotImplementedError


class ShardedExecutor(Protocol):
    """Runs calls on arrays that lie on several devices, by calls on their shards."""

    def local_call(self, call: Call) -> Call:
        """Return a call like those that ``run`` runs, without moving data between devices."""

    def run(self, call: Call, run: Callable[[Call], tuple[Array, ...]]) -> tuple[Array, ...]:
        """Run a call by calls on its shards, each run by the function given."""
