"""What to do with the name of a model on the Hugging Face Hub: rope_xp downloads nothing."""

import re
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def download_advice(target: str) -> str | None:
    """Return what to do if a target looks like ``organisation/model``, and no such file is there.

    Examples
    --------
    >>> download_advice("Qwen/Qwen3-8B")  # doctest: +ELLIPSIS
    'no file or folder is called Qwen/Qwen3-8B, and rope_xp downloads nothing. If it is a model ...'
    >>> download_advice("folder/config.json")
    """
    if not _ID.fullmatch(target) or Path(target).suffix == ".json" or Path(target).exists():
        return None
    name = target.partition("/")[2]
    return (
        f"no file or folder is called {target}, and rope_xp downloads nothing. If it is a model of "
        f"the Hugging Face Hub, fetch its config.json by: hf download {target} config.json "
        f"--local-dir {name}; then give the folder {name}"
    )
