"""What a command shows in a terminal of 80 columns."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def raw(*arguments: str, columns: int = 80) -> tuple[int, str]:
    """Return the status of ``python *arguments`` and all that it writes to a terminal."""
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "50"}
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, env=env)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(leader)
    return process.wait(300), seen.decode()


def shown(*arguments: str, columns: int = 80) -> str:
    """Return the lines that remain, without colours and what a bar of progress overwrote."""
    _, text = raw(*arguments, columns=columns)
    lines = without_colours(text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines)


def without_colours(text: str) -> str:
    """Return what a terminal was sent, without the signs that set colours and move the cursor."""
    return _COLOURS.sub("", text)
