"""Read a configuration from a file, a dictionary or an object. rope_xp downloads nothing."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rope_xp._core.errors import RopeConfigError, rewording
from rope_xp.hf import _limits

_MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def read_mapping(config: object) -> Mapping[str, Any]:
    """Return the configuration as a dictionary, whose size and depth are within the limits."""
    if isinstance(config, str | os.PathLike):
        path = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
        try:
            config = read_json(path)
        except FileNotFoundError as error:
            if (advice := download_advice(str(path))) is None:
                raise
            raise FileNotFoundError(error.errno, advice, str(path)) from error
    return read_part(config)


def read_part(config: object) -> Mapping[str, Any]:
    """Return a configuration, or a part of one, that is no file."""
    content = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(content, Mapping):
        raise TypeError(
            "config must be a dictionary, the path of a config.json or an object with to_dict(); "
            f"got {type(config).__name__}"
        )
    _limits.check_content(content)
    return content


def read_json(path: Path, most: int = _limits.FILE_BYTES) -> dict[str, Any]:
    """Return the JSON object in a regular file of at most so many bytes."""
    if path.exists() and not path.is_file():  # which may block, or never end
        raise RopeConfigError(f"{path} is no regular file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise RopeConfigError(f"{path} has more than {most} bytes, which no configuration needs")
    with rewording((ValueError, RecursionError), f"{path} is no JSON: ", into=RopeConfigError):
        content = json.loads(data.decode())
    if not isinstance(content, dict):
        raise RopeConfigError(f"{path} must hold one JSON object; got {type(content).__name__}")
    return content


def download_advice(target: str) -> str | None:
    """Return how to fetch a model of the Hub, if a target without a file looks like one."""
    if not _MODEL_ID.fullmatch(target) or Path(target).suffix == ".json" or Path(target).exists():
        return None
    name = target.partition("/")[2]
    return (
        f"no such file or folder, and rope_xp downloads nothing. If {target} is a model on the "
        f"Hugging Face Hub, run: hf download {target} config.json --local-dir {name}; then pass "
        f"the folder {name}"
    )
