"""Kernel cache on disk: machine code that one process compiles and the next ones read."""

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

VARIABLE = "ROPE_XP_KERNEL_CACHE"
"""A folder to keep code in, or 0 for none."""
_SUFFIX = ".rope_xp"
"""Of files that are ours to delete, whatever else lies in the folder."""
_DAY = 24 * 60 * 60
_DAYS_UNUSED = 30
"""Then a kernel is of an older version, most likely, or of another processor."""
_OTHERS_MAY_WRITE = 0o022


def read(name: str) -> bytes | None:
    """Return the code of a kernel, None where there is none, or where it is not what was kept."""
    home = _home()
    if home is None:
        return None
    file = home / (name + _SUFFIX)
    try:
        content = file.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # where nothing can be written nothing is evicted either
        if time.time() - file.stat().st_mtime > _DAY:
            os.utime(file)
    size = hashlib.sha256().digest_size
    check, code = content[:size], content[size:]
    return code if check == hashlib.sha256(code).digest() else None


def keep(name: str, code: bytes) -> None:
    """Keep the code of a kernel, if there is a place for it. Whoever reads it finds all or none."""
    home = _home()
    if home is None:
        return
    with contextlib.suppress(OSError):  # a full disk, or one that cannot be written to
        handle, unfinished = tempfile.mkstemp(suffix=_SUFFIX, dir=home)
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(hashlib.sha256(code).digest() + code)
            Path(unfinished).replace(home / (name + _SUFFIX))
        except OSError:
            Path(unfinished).unlink()
            raise
        _evict(home)


def _evict(home: Path) -> None:
    """Delete kernels that no process has read for long, and what was left unfinished."""
    for file in home.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # another process deletes it too, or has it open
            if time.time() - file.stat().st_mtime > _DAYS_UNUSED * _DAY:
                file.unlink()


def _home() -> Path | None:
    """Return this user's folder, None where nothing is to be kept, or cannot be."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "0":
        return None
    try:
        home = Path(wanted) if wanted else _caches() / "rope_xp"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home if _own(home) else None
    except (OSError, RuntimeError):  # nothing can be written there, or there is no home
        return None


def _caches() -> Path:
    """Return where programs keep files of a user that can be made again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # https://specifications.freedesktop.org/basedir-spec/latest/ has relative paths ignored.
    windows = sys.platform == "win32"
    named = Path(os.environ.get("LOCALAPPDATA" if windows else "XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    return Path.home() / "AppData" / "Local" if windows else Path.home() / ".cache"


def _own(folder: Path) -> bool:
    """Return whether a folder is this user's, and nobody else may write to it.

    Whoever can could have this process run anything. Windows does not say who may, but keeps
    others out of a user's profile.
    """
    if not hasattr(os, "geteuid"):
        places = (place.resolve() for place in (Path.home(), _caches()))
        return any(map(folder.resolve().is_relative_to, places))
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
