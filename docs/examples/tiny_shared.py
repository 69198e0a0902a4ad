"""What train_tiny.py and its twin in jax share: sizes, text and files of weights. No framework.

The text is the documentation strings of modules of the standard library, read from their sources
and not imported. Other modules are held out, so that the loss is that on pages of another author,
as far as the standard library has them. Docstrings differ a little between versions of Python.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRAIN = (
    *("argparse", "ast", "asyncio", "base64", "bdb", "calendar", "cmd", "collections"),
    *("concurrent", "configparser", "csv", "ctypes", "datetime", "difflib", "dis", "doctest"),
    *("email", "fileinput", "ftplib", "gettext", "graphlib", "gzip", "hmac", "html", "http"),
    *("imaplib", "importlib", "ipaddress", "json", "locale", "logging", "lzma", "mailbox"),
    *("mimetypes", "multiprocessing", "numbers", "optparse", "pathlib", "pdb", "pickle"),
    *("pickletools", "pkgutil", "platform", "pydoc", "queue", "sched", "selectors", "shelve"),
    *("shutil", "smtplib", "socket", "socketserver", "ssl", "subprocess", "tarfile", "threading"),
    *("timeit", "tokenize", "traceback", "typing", "unittest", "urllib", "uuid", "warnings"),
    *("wave", "weakref", "wsgiref", "xml", "xmlrpc", "zipfile"),
)
HELD_OUT = (
    *("bisect", "contextlib", "copy", "dataclasses", "enum", "fractions", "functools", "heapq"),
    *("inspect", "random", "statistics", "tempfile", "textwrap"),
)
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""A token each; other characters are left out."""

# Shaw's term is a part of a score, and linear attention forms no scores to add it to.
COMBINATIONS = (
    ("softmax", "none"),
    ("softmax", "sinusoidal"),
    ("softmax", "shaw"),
    ("softmax", "rope"),
    ("linear", "none"),
    ("linear", "sinusoidal"),
    ("linear", "rope"),
)


@dataclass(frozen=True)
class Config:
    """A model: how it attends, where positions come in, and its sizes."""

    attention: str
    encoding: str
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    """Tokens of a window in training."""
    clip: int = 16
    """Distance in tokens from which Shaw's encodings are those of this distance."""

    @property
    def head_dim(self) -> int:
        """Components of a head."""
        return self.width // self.heads


# --- text ----------------------------------------------------------------------------------------


def text() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens to train on, and those held out."""
    train = [doc for name in TRAIN for doc in docstrings(name)]
    seen = set(train)
    held_out = [doc for name in HELD_OUT for doc in docstrings(name) if doc not in seen]
    return tokens("\n\n".join(train)), tokens("\n\n".join(held_out))


def docstrings(module: str) -> Iterator[str]:
    """Yield the documentation strings of a module, or of all modules of a package."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    package = spec.submodule_search_locations is not None
    for file in sorted(path.parent.rglob("*.py")) if package else [path]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ) and (doc := ast.get_docstring(node)):
                yield doc


def tokens(characters: str) -> NDArray[np.int64]:
    """Return the places of characters in the alphabet."""
    places = {character: i for i, character in enumerate(ALPHABET)}
    return np.array([places[c] for c in characters if c in places], np.int64)


def loss_of_counts(train: NDArray[np.int64], held_out: NDArray[np.int64], before: int) -> float:
    """Return the loss, in nats per character, of no model but counts.

    They say how often each character came after the last ``before`` ones. Each is raised by 0.1,
    so that what never came has a share too.
    """
    counts = np.full((len(ALPHABET),) * (before + 1), 0.1)
    np.add.at(counts, _runs(train, before + 1), 1.0)
    shares = counts / counts.sum(axis=-1, keepdims=True)
    return float(-np.log(shares[_runs(held_out, before + 1)]).mean())


def _runs(tokens: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], ...]:
    """Return each run of so many tokens, as an index."""
    return tuple(np.lib.stride_tricks.sliding_window_view(tokens, length).T)


# --- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """A trained model, and what it answers."""

    config: Config
    seed: int
    weights: dict[str, NDArray[np.float32]]
    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    """Of tokens, as computed where the model was trained."""


def save(path: Path, runs: list[Saved]) -> None:
    """Write models to one file of numpy."""
    arrays: dict[str, NDArray[Any]] = {}
    for i, run in enumerate(runs):
        arrays |= {f"{i}/weights/{name}": w for name, w in run.weights.items()}
        arrays |= {f"{i}/tokens": run.tokens, f"{i}/logits": run.logits}
    made_by = json.dumps([{"config": asdict(run.config), "seed": run.seed} for run in runs])
    np.savez(path, runs=np.array(made_by), **arrays)


def load(path: Path) -> list[Saved]:
    """Read what :func:`save` wrote."""
    with np.load(path) as file:
        runs = []
        for i, made_by in enumerate(json.loads(str(file["runs"]))):
            start = f"{i}/weights/"
            weights = {
                name.removeprefix(start): file[name]
                for name in file.files
                if name.startswith(start)
            }
            config, seed = Config(**made_by["config"]), made_by["seed"]
            runs.append(Saved(config, seed, weights, file[f"{i}/tokens"], file[f"{i}/logits"]))
        return runs
