"""Make calls in parts, given as "parts" or "arrays", while handlers of signals raise.

What happens when is random, but each decision has a seed. A call that never ends ends the program.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time

import numpy as np
from rope_xp_backends.cpu import threads

import rope_xp

RAISING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1")]
ROPE = rope_xp.RoPE(layout="half")
RANDOM = random.Random(0)


class SignalError(TimeoutError):
    """TimeoutError is an OSError, which much code expects and handles."""


def run_interrupted(call, count, seconds):
    """Repeat a call until it was interrupted so many times; return True for each that was not.

    Signals arrive alone or several at once. Their handlers raise within calls alone.
    """
    raised, is_done = [], threading.Event()

    def handle(number, frame):
        while frame is not None and frame.f_code is not call.__code__:
            frame = frame.f_back
        if frame is not None:
            raised.append(number)
            raise SignalError

    def send():
        while not is_done.wait(RANDOM.random() * seconds):
            for number in RANDOM.sample(RAISING, RANDOM.choice([1, 1, 1, 2, 5])):
                os.kill(os.getpid(), number)

    for number in RAISING:
        signal.signal(number, handle)
    signal.signal(signal.SIGUSR2, lambda *_: threads.run_in_parts(lambda *_: None, 3, 3))
    RAISING.append(signal.SIGUSR2)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    interrupts = 0
    while interrupts < count:
        raised.clear()
        try:
            call()
        except SignalError:
            interrupts += 1
            yield False
        else:
            assert not raised, "an exception was lost"
            yield True
    is_done.set()
    sender.join()


def run_parts():
    """Parts are run once each, and none when a call is over, however threads start."""
    start = threading.Thread.start

    def start_or_fail(thread):
        if thread.name.startswith("rope_xp") and RANDOM.random() < 0.5:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = start_or_fail
    started, running = [], []

    def work(first, stop):
        # A part of this thread may be interrupted, and then is over.
        is_worker = threading.current_thread() is not threading.main_thread()
        started.extend(range(first, stop))
        running.extend([first] * is_worker)
        time.sleep(RANDOM.random() * 2e-3)
        if is_worker:
            running.remove(first)

    def call():
        threads.run_in_parts(work, 9, 4)

    for completed in run_interrupted(call, 100, 4e-3):
        now = len(started)
        assert not running, "a worker runs a part of a call that is over"
        assert now == len(set(started)), "a part was run twice"
        assert now == 9 or not completed, "a part was left out"
        if RANDOM.random() < 0.1:
            time.sleep(2e-3)
            threads._drop_pool_after_fork()
        assert now == len(started), "a part was run when its call was over"
        started.clear()


def rotate_arrays():
    """A call that raises has written to its arrays for the last time."""
    x = np.random.default_rng(0).standard_normal((1, 4096, 8, 128)).astype(np.float32)  # 16 MiB
    expected, y = ROPE.rotate(x), x.copy()
    with rope_xp.use_path("portable"):
        assert np.array_equal(ROPE.rotate(x), expected)

    def call():
        ROPE.rotate(y, out=y)

    for completed in run_interrupted(call, 40, 1e-2):
        now = y[0, ::8, 0, :2].copy()  # so few that no thread ends meanwhile
        assert not completed or np.array_equal(y, expected)
        time.sleep(4e-3)
        assert np.array_equal(now, y[0, ::8, 0, :2]), "a call that was over wrote to its arrays"
        y[...] = x


faulthandler.dump_traceback_later(100, exit=True)
{"parts": run_parts, "arrays": rotate_arrays}[sys.argv[1]]()
