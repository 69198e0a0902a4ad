"""Load a model for ``check --weights``, from its configuration and safetensors alone.

transformers gets both, and not the folder, so it finds no pickle, adapter or code there.
"""

import contextlib
import functools
import importlib
import importlib.util
import io
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rope_xp._core.errors import RopeError
from rope_xp.hf import _files

_INDEX_BYTES = 1 << 28
_ISOLATED = threading.Event()
"""Set while transformers reads a configuration, for all threads: it may name models elsewhere."""
_NETWORK = "socket.getaddrinfo", "socket.connect"
_PICKLES = ".bin", ".ckpt", ".pkl", ".pt", ".pth"


def load_model(folder: Path) -> Any:
    if missing := [n for n in ("torch", "transformers") if importlib.util.find_spec(n) is None]:
        names = " and ".join(missing)
        raise RopeError(f"--weights needs {names} (pip install torch transformers)")
    config, files = _files.read_json(folder / "config.json"), _list_files(folder)
    try:
        with isolate():
            return _build_model(config, files)
    except RopeError:
        raise
    except Exception as error:  # each package that transformers calls has errors of its own
        reason = f"{type(error).__name__}: {error}"
        raise RopeError(f"{folder}: transformers cannot load it: {reason}") from error


def _list_files(folder: Path) -> list[Path]:
    """Return the files that have the weights: one, or those that the index names."""
    names, index = ["model.safetensors"], folder / "model.safetensors.index.json"
    if not (folder / names[0]).is_file() and index.exists():
        shards = _files.read_json(index, _INDEX_BYTES).get("weight_map")
        names = sorted({str(n) for n in shards.values()}) if isinstance(shards, dict) else []
    for name in names or [index.name]:
        file = folder / name
        if file.name != name or file.suffix != ".safetensors" or not file.is_file():
            msg = f"{folder} has no *.safetensors file {name!r}; --weights reads no other format"
            raise RopeError(msg)
    return [folder / name for name in names]


def _build_model(config: dict[str, Any], files: list[Path]) -> Any:
    transformers = importlib.import_module("transformers")
    load_file = importlib.import_module("safetensors.torch").load_file
    name = config.get("model_type")
    if name not in transformers.CONFIG_MAPPING:
        raise RopeError(f"--weights runs no code of a model, and transformers has no {name!r}")
    config_class = transformers.CONFIG_MAPPING[name]
    return transformers.MODEL_MAPPING[config_class].from_pretrained(
        None,
        config=config_class.from_dict(config),
        state_dict={name: x for file in files for name, x in load_file(file).items()},
        attn_implementation="eager",  # whatever the configuration says, perhaps a kernel on the Hub
    )


@contextlib.contextmanager
def isolate() -> Iterator[None]:
    """Reject network and pickles, and drop what is printed and logged, such as values of files."""
    _add_hook()
    disabled, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    _ISOLATED.set()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        _ISOLATED.clear()
        logging.disable(disabled)


@functools.cache  # a hook stays until the process ends
def _add_hook() -> None:
    def reject(event: str, arguments: tuple[Any, ...]) -> None:
        opened = str(arguments[0]) if event == "open" else ""
        if _ISOLATED.is_set() and (event in _NETWORK or opened.endswith(_PICKLES)):
            raise RopeError(
                f"this command uses no network and no pickle; rejected {event} {arguments}"
            )

    sys.addaudithook(reject)
