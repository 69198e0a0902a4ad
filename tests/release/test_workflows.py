"""The workflows call the gate, pin what they use, and may do no more than they need."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ALL = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)

PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
MAY = {
    "gate/gate": {"contents": "read"},
    "gate/core": {"contents": "read"},
    "gate/platforms": {"contents": "read"},
    **{f"newest/{key}": {"contents": "read"} for key in ("core", "versions", "faults")},
    "release/gate": {"contents": "read"},
    "release/build": {"contents": "read"},
    "release/attest": {"id-token": "write", "attestations": "write"},
    "release/publish": {"id-token": "write"},
    "scoreboard/scoreboard": {"contents": "read"},
}
"""All that a job is granted. What may write runs no code of the repository."""


def read(file: Path) -> dict[str, Any]:
    # YAML 1.1, which PyYAML reads, takes the key on for true.
    return {str(k): v for k, v in yaml.safe_load(file.read_text()).items()}


def list_jobs(file: Path) -> dict[str, dict[str, Any]]:
    return {f"{file.stem}/{name}": job for name, job in read(file)["jobs"].items()}


def list_commands(job: dict[str, Any]) -> list[str]:
    return [line for step in job.get("steps", []) for line in step.get("run", "").splitlines()]


@ALL
def test_actions_are_pinned_by_commit(file):
    actions = re.findall(r"\buses: *(.+)", file.read_text())
    assert actions
    local = [action for action in actions if action.startswith("./")]
    assert all((ROOT / action.split(" #")[0]).is_file() for action in local)
    assert [a for a in actions if a not in local and not PINNED.fullmatch(a)] == []


@ALL
def test_jobs_may_do_no_more_than_they_need(file):
    """What may write runs no code of the repository, and no expression becomes a command."""
    assert read(file)["permissions"] == {}
    granted = {name: job.get("permissions") for name, job in list_jobs(file).items()}
    assert granted == {n: may for n, may in MAY.items() if n.startswith(f"{file.stem}/")}
    for name, job in list_jobs(file).items():
        steps = job.get("steps", [])
        checkouts = [s for s in steps if s.get("uses", "").startswith("actions/checkout@")]
        if "write" in MAY[name].values():
            assert not checkouts
            assert not list_commands(job)
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)
        assert [line for line in list_commands(job) if "${{" in line] == []


@ALL
def test_every_script_that_is_called_can_be(file):
    names = [line.split()[0] for job in list_jobs(file).values() for line in list_commands(job)]
    scripts = [ROOT / name for name in names if "/" in name]
    assert scripts
    assert all(os.access(script, os.X_OK) for script in scripts)


def test_the_gate_is_called_for_changes_and_for_releases():
    gate, _, release, _ = (read(file) for file in WORKFLOWS)
    assert list_commands(gate["jobs"]["gate"]) == [".ci/run"]
    assert {"push", "pull_request", "workflow_call"} <= set(gate["True"])
    assert release["True"] == {"push": {"tags": ["v*"]}}
    assert release["jobs"]["gate"]["uses"] == "./.github/workflows/gate.yml"
    assert ".ci/release release" in list_commands(release["jobs"]["build"])
    assert set(release["jobs"]["attest"]["needs"]) == {"gate", "build"}
    assert release["jobs"]["publish"]["needs"] == "attest"


def test_each_python_of_the_classifiers_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    core = read(WORKFLOWS[0])["jobs"]["core"]
    assert core["strategy"]["matrix"]["python"][: len(named)] == named
    assert project["requires-python"] == f">={named[0]}"
    assert ".ci/core python3 known" in list_commands(core)
