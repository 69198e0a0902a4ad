"""The workflows call the gate and test what the project says it supports.

zizmor checks what they pin and what they may do, in .ci/release.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {file.stem: file for file in (ROOT / ".github" / "workflows").glob("*.yml")}


def read(name: str) -> dict[str, Any]:
    # YAML 1.1, which PyYAML reads, takes the key on for true.
    return {str(k): v for k, v in yaml.safe_load(WORKFLOWS[name].read_text()).items()}


def list_commands(job: dict[str, Any]) -> list[str]:
    return [line for step in job.get("steps", []) for line in step.get("run", "").splitlines()]


def test_workflows_call_scripts_that_can_run():
    jobs = [job for name in WORKFLOWS for job in read(name)["jobs"].values()]
    names = [line.split()[0] for job in jobs for line in list_commands(job)]
    scripts = [ROOT / name for name in names if "/" in name]
    assert scripts
    assert all(os.access(script, os.X_OK) for script in scripts)


def test_gate_runs_for_changes_and_before_a_release_is_published():
    gate, release = read("gate"), read("release")
    assert list_commands(gate["jobs"]["gate"]) == [".ci/run"]
    assert {"push", "pull_request", "workflow_call"} <= set(gate["True"])
    assert release["True"] == {"push": {"tags": ["v*"]}}
    assert set(release["jobs"]["attest"]["needs"]) == {"gate", "build"}
    assert release["jobs"]["publish"]["needs"] == "attest"


def test_each_python_of_the_classifiers_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    core = read("gate")["jobs"]["core"]
    assert core["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    assert ".ci/core python3 known" in list_commands(core)
