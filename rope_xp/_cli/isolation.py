"""Run what reads a stranger's file without network, pickles or output."""

import contextlib
import functools
import io
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from rope_xp._core.errors import RopeError

_ISOLATED = threading.Event()
"""Set while transformers reads a configuration, for all threads: it may name models elsewhere."""
_NETWORK = "socket.getaddrinfo", "socket.connect"
_PICKLES = ".bin", ".ckpt", ".pkl", ".pt", ".pth"


@contextlib.contextmanager
def isolate() -> Iterator[None]:
    """Reject network and pickles, and drop what is printed and logged, such as values of files."""
    _add_hook()
    disabled, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    _ISOLATED.set()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        _ISOLATED.clear()
        logging.disable(disabled)


@functools.cache  # a hook stays until the process ends
def _add_hook() -> None:
    def reject(event: str, arguments: tuple[Any, ...]) -> None:
        opened = str(arguments[0]) if event == "open" else ""
        if _ISOLATED.is_set() and (event in _NETWORK or opened.endswith(_PICKLES)):
            raise RopeError(
                f"this command uses no network and no pickle; rejected {event} {arguments}"
            )

    sys.addaudithook(reject)
