"""Kernel cache on disk: machine code that one process compiles and the next ones read."""

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

VARIABLE = "ROPE_XP_KERNEL_CACHE"
"""A folder for kernels, or 0 for no cache."""
_SUFFIX = ".rope_xp"
"""Only files with it are deleted, whatever else lies in the folder."""
_DAY = 24 * 60 * 60
_DAYS_UNUSED = 30
"""After which a kernel belongs to an older version, most likely, or to another processor."""
_OTHERS_MAY_WRITE = 0o022


def read(name: str) -> bytes | None:
    """Return the code of a kernel, None if it is missing or damaged."""
    folder = _find_folder()
    if folder is None:
        return None
    file = folder / (name + _SUFFIX)
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
    """Write the code of a kernel, if there is a folder for it. Readers see all of it or none."""
    folder = _find_folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):  # a full disk, or one that cannot be written to
        handle, unfinished = tempfile.mkstemp(suffix=_SUFFIX, dir=folder)
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(hashlib.sha256(code).digest() + code)
            Path(unfinished).replace(folder / (name + _SUFFIX))
        except OSError:
            Path(unfinished).unlink()
            raise
        _evict(folder)


def _evict(folder: Path) -> None:
    """Delete kernels that no process has read for long, and unfinished files."""
    for file in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # another process deletes it too, or has it open
            if time.time() - file.stat().st_mtime > _DAYS_UNUSED * _DAY:
                file.unlink()


def _find_folder() -> Path | None:
    """Return the folder of the cache, None if it is off or there is no safe one."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "0":
        return None
    try:
        folder = Path(wanted) if wanted else _find_caches() / "rope_xp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _is_private(folder) else None
    except (OSError, RuntimeError):  # nothing can be written there, or there is no home
        return None


def _find_caches() -> Path:
    """Return the folder for caches of this user's programs."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # https://specifications.freedesktop.org/basedir-spec/latest/ has relative paths ignored.
    windows = sys.platform == "win32"
    named = Path(os.environ.get("LOCALAPPDATA" if windows else "XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named
    return Path.home() / "AppData" / "Local" if windows else Path.home() / ".cache"


def _is_private(folder: Path) -> bool:
    """Return whether a folder is this user's, and nobody else may write to it.

    Whoever can could have this process run anything. Windows does not say who may, but keeps
    others out of a user's profile.
    """
    if not hasattr(os, "geteuid"):
        places = (place.resolve() for place in (Path.home(), _find_caches()))
        return any(map(folder.resolve().is_relative_to, places))
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
