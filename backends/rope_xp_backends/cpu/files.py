"""Where machine code is kept between processes, so that only the first one compiles it."""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from rope_xp._contract import call
from rope_xp._rotation import fractions

VARIABLE = "ROPE_XP_KERNEL_CACHE"
"""A folder to keep code in, or 0 for none."""
_OTHERS_MAY_WRITE = 0o022


def read(digest: str, name: str) -> bytes | None:
    """Return the code of a kernel, None where there is none, or where it is not what was kept."""
    home = _home()
    if home is None:
        return None
    try:
        kept = _file(home, digest, name).read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    check, code = kept[:size], kept[size:]
    return code if check == hashlib.sha256(code).digest() else None


def keep(digest: str, name: str, code: bytes) -> None:
    """Keep the code of a kernel, if there is a place for it. Whoever reads it finds all or none."""
    home = _home()
    if home is None:
        return
    try:
        file = _file(home, digest, name)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as target:
                target.write(hashlib.sha256(code).digest() + code)
            Path(unfinished).replace(file)
        except OSError:
            Path(unfinished).unlink()
            raise
    except OSError:  # a full disk, or one that cannot be written to
        return


def sources() -> list[bytes]:
    """Return all that kernels are written by."""
    folders = Path(__file__).parent, Path(fractions.__file__).parent
    files = [*(file for folder in folders for file in folder.glob("*.py")), Path(call.__file__)]
    return [file.read_bytes() for file in sorted(files)]


def _file(home: Path, digest: str, name: str) -> Path:
    return home / digest / name


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
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # https://specifications.freedesktop.org/basedir-spec/latest/
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _own(folder: Path) -> bool:
    """Return whether a folder is this user's, and nobody else may write to it.

    Whoever can could have this process run anything.
    """
    if not hasattr(os, "geteuid"):
        return True
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
