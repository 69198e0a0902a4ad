"""What a path is: one way to run a call, which it may decline with a reason.

The portable path follows all others and declines nothing, so it is the truth that fast paths are
tested against.
"""

from collections.abc import Callable
from typing import Any, Protocol

from rope_xp._core.call import Call
from rope_xp._core.typing import Array


class PathUnavailable(Exception):  # noqa: N818  # no error: the next path runs
    """Raised by ``Path.run``, before it has written anything, to leave the call to the next path.

    Only for what cannot be known without importing or compiling; ``decline_reason`` tells all else.
    """


class Path:
    """One way to run a call."""

    name: str
    """By which ``use_path`` and ``explain`` call the path."""
    makes_tables = False
    """Whether it makes cos and sin sooner than a library's own operations do."""

    def decline_reason(self, call: Call, *, forced: bool) -> str | None:
        """Return why the path does not take the call, or None if it does.

        It must not import or build. Where it was ``forced`` for by name, only what it cannot do
        counts, and not that another path is better.
        """
        return None

    def run(self, call: Call) -> tuple[Array, ...]:
        """Return the rotated arrays, one for each of ``call.arrays``."""
        raise NotImplementedError

    def specialize(self, call: Call, signature: Any, results: tuple[Array, ...]) -> Any:
        """Return what runs every call of the signature of one that has just run here.

        A ``Launch`` of :mod:`rope_xp._dispatch.call_cache`, given a ``CallSignature`` of it. None
        has :meth:`run` called again, without the checks before it.
        """
        return None


class ShardedExecutor(Protocol):
    """The one way to run a call on arrays that lie on several devices: by calls on their parts."""

    def local_call(self, call: Call) -> Call:
        """Return a call like that which ``run`` will run, moving nothing between devices."""
        ...

    def run(self, call: Call, run: Callable[[Call], tuple[Array, ...]]) -> tuple[Array, ...]:
        """Run a call, by having others run on what its arrays consist of."""
        ...
