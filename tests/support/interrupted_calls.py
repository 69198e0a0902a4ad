"""Rotate in place on several threads while a signal's handler raises, forks, or rotates itself.

When it comes is random, but has a seed. A call that never ends ends the program.
"""

import faulthandler
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import numpy as np

import rope_xp

ROPE = rope_xp.RoPE(layout="half")
RANDOM = random.Random(0)
X = np.random.default_rng(0).standard_normal((1, 4096, 8, 128)).astype(np.float32)  # 16 MiB
with rope_xp.use_path("portable"):
    EXPECTED = ROPE.rotate(X)

faulthandler.dump_traceback_later(100, exit=True)
parent, children, counts, y = os.getpid(), [], Counter(), X.copy()


def call():
    ROPE.rotate(y, out=y)


def handle(_, frame):
    while frame is not None and frame.f_code is not call.__code__:
        frame = frame.f_back
    if frame is None or os.getpid() != parent:
        return
    counts[kind] += 1
    if kind == "fork":
        children.append(os.fork())
    elif kind == "rotate":
        assert np.array_equal(ROPE.rotate(X), EXPECTED)
    else:
        raise TimeoutError  # an OSError, which much code expects and handles


signal.signal(signal.SIGALRM, handle)
while min(counts[kind] for kind in ("fork", "rotate", "raise")) < 12:
    kind = RANDOM.choice(("fork", "rotate", "raise"))
    y[...] = X
    signal.setitimer(signal.ITIMER_REAL, 1e-4 + RANDOM.random() * 1e-2)
    with suppress(TimeoutError):
        call()
        assert np.array_equal(y, EXPECTED)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if os.getpid() != parent:
        os._exit(not np.array_equal(ROPE.rotate(X), EXPECTED))
    now = y[0, ::8, 0, :2].copy()  # so few that no thread ends meanwhile
    time.sleep(4e-3)
    assert np.array_equal(now, y[0, ::8, 0, :2]), "a call that was over wrote to its array"
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
