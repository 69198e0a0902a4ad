"""Replay commits on this machine, in the environment that runs this: without network, or on a GPU.

    python -m asv_benchmarks.report.history main~10..main
    python -m asv_benchmarks.report.history 6906c1c 0de7a1b main --bench 'apply|rivals'
    python -m asv_benchmarks.report.history --landmarks --machine=NAME --keep

asv itself builds an environment for every commit, which takes a network. This one gives the
benchmarks of this tree the library of each commit from a folder of its own, oldest commit first,
and has asv keep the results under that commit. Nothing is installed, and what is installed is left
alone. Options that are not its own, as --name=value, go to ``asv run``.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "benchmarks"
SOURCES = ("rope_xp", "backends")
# A few minutes a commit on two cores: ratios, which mean something on other machines too, and
# what a call costs on the host.
DEFAULT = (
    r"^accuracy|^dispatch|^imports|^apply\.Decode|^apply\.(Prefill|Memory)\.track_time"
    r"|^rivals\.Usual|^gradients.*track|^memory.*results"
)
EXPECTED = 0, 2
"""The exit statuses of ``asv run`` after which there are results: 2 if a benchmark failed."""


def git(*arguments: str) -> bytes:
    """Return what git prints."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout  # noqa: S603  # git


def commits(named: list[str]) -> list[str]:
    """Return the hashes of commits and of the first parents in ranges, oldest first."""
    found: set[str] = set()
    for name in named:
        only = [] if ".." in name else ["-1"]
        found |= set(git("rev-list", "--first-parent", *only, name).decode().split())
    inherited = git("rev-list", "--topo-order", "--reverse", *sorted(found)).decode().split()
    return [commit for commit in inherited if commit in found]


def unpack(commit: str, folder: Path) -> str:
    """Write the library of a commit to a folder; return the PYTHONPATH on which it lies."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *SOURCES))) as archive:
        archive.extractall(folder, filter="data")
    build = folder / "backends" / "build.py"
    if build.exists():  # else the commit has no native module
        subprocess.run([sys.executable, build], check=True)  # noqa: S603  # this Python
    return os.pathsep.join([str(folder), str(folder / "backends")])


def replay(commit: str, bench: str, options: list[str]) -> int:
    """Run the benchmarks of this tree over the library of a commit; return asv's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = unpack(commit, Path(folder))
        environment = {**os.environ, "ASV_PYTHONPATH": path}
        check_is_used(Path(folder), {**os.environ, "PYTHONPATH": path})
        command = [
            *(sys.executable, "-m", "asv", "run", "-E", f"existing:{sys.executable}"),
            *("--set-commit-hash", commit, "--bench", bench, *options),
        ]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode  # noqa: S603  # asv


def check_is_used(folder: Path, environment: dict[str, str]) -> None:
    """Raise RuntimeError if what Python finds is not the library in the folder."""
    code = "import rope_xp; print(rope_xp.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(  # noqa: S603  # this Python
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    if not Path(done.stdout.strip()).is_relative_to(folder):
        msg = f"{done.stdout.strip()} hides the library of the commit in {folder}"
        raise RuntimeError(msg)


def landmarks() -> dict[str, str]:
    """Return the commits of docs/benchmarks/landmarks.txt, and what each of them brought."""
    lines = (KEPT / "landmarks.txt").read_text("utf-8").splitlines()
    return {commit: words for commit, _, words in (line.partition(" ") for line in lines)}


def keep() -> None:
    """Copy all results to docs/benchmarks, where environments have no paths of this machine."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"existing-py{python}"
    kept, measured = ROOT / ".asv" / "results", set[str]()
    for path in sorted(kept.glob("*/*.json")):
        found = json.loads(path.read_text("utf-8"))
        to = KEPT / "results" / path.relative_to(kept)
        if "commit_hash" in found:
            to = to.with_name(f"{found['commit_hash'][:8]}-{name}.json")
            found["env_name"], found["python"] = name, python
            found["params"]["python"] = python
            measured |= set(found["results"])
        write(to, found)
    # asv draws an empty graph for each benchmark that it knows and has no results of.
    known = json.loads((kept / "benchmarks.json").read_text("utf-8"))
    used = {k: v for k, v in known.items() if k in measured or k == "version"}
    write(KEPT / "results" / "benchmarks.json", used)


def write(path: Path, found: dict[str, object]) -> None:
    """Write JSON, with the floats that asv writes: NaN stands for what was skipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def main() -> int:
    """Replay what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commits", nargs="*", help="commits, or ranges of first parents as A..B")
    parser.add_argument("--landmarks", action="store_true", help="those that docs/benchmarks lists")
    parser.add_argument("--keep", action="store_true", help="copy all results to docs/benchmarks")
    parser.add_argument("--bench", default=DEFAULT, help="a regular expression, as asv takes it")
    known, options = parser.parse_known_args()
    status = 0
    found = commits(known.commits + (list(landmarks()) if known.landmarks else []))
    for i, commit in enumerate(found):
        print(f"=== {i + 1} of {len(found)}: {commit}", flush=True)
        done = replay(commit, known.bench, options)
        if done not in EXPECTED:
            return done
        status = max(status, done)
    if known.keep:
        keep()
    return status


if __name__ == "__main__":
    sys.exit(main())
