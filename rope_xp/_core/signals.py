"""Signal handlers that raise, where their exceptions would be lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def defer_interrupts() -> Iterator[list[BaseException]]:
    """Raise what signal handlers raise at the end, and give it as a list until then.

    Within, C code might drop it or turn it into another error, and except clauses might take it
    for a failure. Handlers run at once, and in the main thread alone. Those that Python did not
    set cannot be replaced.
    """
    interrupts: list[BaseException] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    is_deferred = True

    def wrap(handler: Callable[..., Any]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            try:
                handler(*arguments)
            except BaseException as error:
                if not is_deferred:  # an exception has kept the handler from being restored
                    raise
                interrupts[:] = [error]

        return run

    handlers = {number: signal.getsignal(number) for number in range(1, signal.NSIG)}
    wrapped = {number: wrap(handler) for number, handler in handlers.items() if callable(handler)}
    try:
        for number, handler in wrapped.items():
            signal.signal(number, handler)
        yield interrupts
    finally:
        is_deferred = False
        try:
            for number, handler in wrapped.items():
                if signal.getsignal(number) is handler:
                    signal.signal(number, handlers[number])
        finally:
            if interrupts:
                raise interrupts.pop()
