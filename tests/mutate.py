"""Plant faults at random in a copy of the repository, and count those that the tests notice.

    python tests/mutate.py [--count 60] [--seed 0] [--folder core|native|hf]

Each fault changes one operator, bound, number, order of arguments or check. The tests of its part
run first, then all of ``pytest``. Some faults change nothing that can be observed, so the count is
compared with that of an earlier commit, and the survivors are printed. It takes an hour or two.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "core": (
        ("rope_xp/_rotation", "rope_xp/_arguments", "rope_xp/_core", "rope_xp/_dispatch"),
        ("tests/core",),
    ),
    "native": (("backends/rope_xp_backends/cpu",), ("tests/backends/cpu", "tests/core")),
    "hf": (("rope_xp/hf", "rope_xp/scaling", "rope_xp/positions"), ("tests/models", "tests/core")),
}
"""Folders of sources, and the tests that run first."""
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SWAPS |= {"+": "-", "-": "+", "*": "+", "and": "or", "or": "and", "&&": "||", "||": "&&"}
OPERATORS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.And: "and", ast.Or: "or",
}  # fmt: skip


class Fault(NamedTuple):
    path: str
    start: int  # of the characters that are replaced
    stop: int
    text: str

    def plant(self, root: Path) -> str:
        """Change the file, and return the line with the fault."""
        source = (root / self.path).read_text("utf-8")
        changed = source[: self.start] + self.text + source[self.stop :]
        (root / self.path).write_text(changed, "utf-8")
        number = source.count("\n", 0, self.start)
        return f"{self.path}:{number + 1}: {changed.splitlines()[number].strip()}"


def find_faults(part: str) -> list[Fault]:
    """Return every fault that could be planted in the sources of a part."""
    paths = [path for folder in PARTS[part][0] for path in sorted((ROOT / folder).rglob("*"))]
    return [
        Fault(path.relative_to(ROOT).as_posix(), *change)
        for path in paths
        if path.suffix in (".py", ".cpp")
        for change in (_find_in_python if path.suffix == ".py" else _find_in_cpp)(path.read_text())
    ]


def _find_in_cpp(source: str) -> Iterator[tuple[int, int, str]]:
    code = re.sub(r"//.*|#.*|\"[^\"\n]*\"", lambda found: " " * len(found[0]), source)
    for found in re.finditer(r" (<=|>=|<|>|==|!=|\+|-|\*|&&|\|\|) ", code):
        yield found.start(1), found.end(1), SWAPS[found[1]]
    for found in re.finditer(r"(?<=[ (\[])\d+(?=[;,)\] ])", code):
        yield found.start(), found.end(), str(int(found[0]) + 1)
    for found in re.finditer(r"\bif \((?=.*\)\s*return)", code):
        yield found.end(), found.end(), "false && "


def _find_in_python(source: str) -> Iterator[tuple[int, int, str]]:
    lines = [0, *(found.end() for found in re.finditer("\n", source))]

    def at(node: Any) -> tuple[int, int]:
        start, stop = node.lineno - 1, node.end_lineno - 1
        return lines[start] + node.col_offset, lines[stop] + node.end_col_offset

    if not source.isascii():
        return  # offsets of the parser are bytes
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=a, ops=[op], comparators=[b]):
                pairs = [(a, op, b)]
            case ast.BinOp(left=a, op=op, right=b):
                pairs = [(a, op, b)]
            case ast.BoolOp(op=op, values=values):
                pairs = [(a, op, b) for a, b in itertools.pairwise(values)]
            case ast.Constant(value=int()) if not isinstance(node.value, bool):
                start, stop = at(node)
                yield start, stop, str(node.value + 1)
                continue
            case ast.If(test=test, body=[ast.Raise()], orelse=[]):
                start, stop = at(test)
                yield start, stop, "False"
                continue
            case ast.Call(args=[a, b, *_]) if not any(isinstance(x, ast.Starred) for x in (a, b)):
                (start, end), (begin, stop) = at(a), at(b)
                yield start, stop, source[begin:stop] + source[end:begin] + source[start:end]
                continue
            case _:
                continue
        for a, op, b in pairs:
            sign = OPERATORS.get(type(op), "")
            start, stop = at(a)[1], at(b)[0]
            if sign and source[start:stop].strip() == sign:  # without parentheses or new lines
                yield start, stop, source[start:stop].replace(sign, SWAPS[sign])


def is_noticed(root: Path, tests: tuple[str, ...], needs_build: bool) -> bool | None:
    """Return whether a test fails; None if the fault does not compile."""
    found_first = os.pathsep.join(map(str, (root, root / "backends")))  # not what is installed
    run: dict[str, Any] = {"cwd": root, "env": {**os.environ, "PYTHONPATH": found_first}}
    run |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if needs_build and subprocess.call([sys.executable, "backends/build.py"], **run):
        return None
    for paths in (tests, ()):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", *paths]
        try:
            if subprocess.call([*command, "-p", "no:cacheprovider"], timeout=600, **run):
                return True
        except subprocess.TimeoutExpired:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", choices=PARTS)
    options = parser.parse_args()
    parts = [options.folder] if options.folder else [*PARTS]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".git", ".asv", ".hypothesis"))
        for part in parts:
            draw, noticed, planted = random.Random(options.seed), 0, 0
            faults = find_faults(part)
            while planted < options.count // len(parts):
                fault = draw.choice(faults)
                line = fault.plant(root)
                found = is_noticed(root, PARTS[part][1], fault.path.endswith(".cpp"))
                shutil.copy2(ROOT / fault.path, root / fault.path)
                planted, noticed = planted + (found is not None), noticed + bool(found)
                if not found:
                    print(f"{'survives' if found is False else 'does not compile'}: {line}")
                print(f"{part}: {noticed} of {planted} noticed", flush=True)
            if part == "native":  # whose module is that of the last fault
                subprocess.check_call([sys.executable, "backends/build.py"], cwd=root)


if __name__ == "__main__":
    main()
