"""Kernel cache on disk, shared by processes."""

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
"""Only files with it are deleted."""
_DAY = 24 * 60 * 60
_DAYS_UNUSED = 30
"""Older kernels are most likely of another version or processor."""
_OTHERS_MAY_WRITE = 0o022
_DIGEST = hashlib.sha256().digest_size


def read_kernel(name: str) -> bytes | None:
    """Return the code of a kernel, None if it is missing or damaged."""
    folder = _find_folder()
    if folder is None:
        return None
    file = folder / (name + _SUFFIX)
    try:
        content = file.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a read-only folder evicts nothing either
        if time.time() - file.stat().st_mtime > _DAY:
            os.utime(file)
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if digest == hashlib.sha256(code).digest() else None


def write_kernel(name: str, code: bytes) -> None:
    """Write the code of a kernel, if there is a folder. Readers see all of it or none."""
    folder = _find_folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):  # a full or read-only disk
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
    setting = os.environ.get(VARIABLE, "")
    if setting == "0":
        return None
    try:
        folder = Path(setting) if setting else _find_caches() / "rope_xp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _is_private(folder) else None
    except (OSError, RuntimeError):  # a read-only place, or no home
        return None


def _find_caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    windows = sys.platform == "win32"
    folder = Path(os.environ.get("LOCALAPPDATA" if windows else "XDG_CACHE_HOME", ""))
    if folder.is_absolute():  # https://specifications.freedesktop.org/basedir-spec/latest/
        return folder
    return Path.home() / "AppData" / "Local" if windows else Path.home() / ".cache"


def _is_private(folder: Path) -> bool:
    """Return whether only this user may write to a folder, whose code this process will run."""
    if not hasattr(os, "geteuid"):  # Windows has no such bits, but protects a user's profile
        profile = (place.resolve() for place in (Path.home(), _find_caches()))
        return any(map(folder.resolve().is_relative_to, profile))
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE
