"""What a release says of itself agrees with what it is, and workflows test what it says.

zizmor checks what workflows pin and what they may do, in .ci/release.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import rope_xp

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_agrees_with_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == rope_xp.__version__
    assert citation["license"] == PROJECT["license"]
    assert set(citation["keywords"]) <= set(PROJECT["keywords"])
    assert [set(author) for author in citation["authors"]] == [{"name"}]  # nobody is made up
    assert "arXiv:2104.09864" in str(citation["references"])


def test_the_conda_recipe_installs_what_the_wheel_requires() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == rope_xp.__version__
    python, *others = recipe["requirements"]["run"]
    assert python == f"python {PROJECT['requires-python']}"
    required = [re.split(r"[; ]", one)[0] for one in PROJECT["dependencies"]]
    assert [one.replace(" ", "") for one in others] == required
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {one.replace(" ", "") for one in recipe["requirements"]["host"]} >= set(build)


def test_compiled_kernels_are_for_the_first_python_and_all_later_ones() -> None:
    """By the stable ABI. So one conda package serves all of them, as one wheel does."""
    major, minor = map(int, PROJECT["requires-python"].removeprefix(">=").split("."))
    source = (ROOT / "backends" / "rope_xp_backends" / "cpu" / "arrays.h").read_text()
    assert f"#define Py_LIMITED_API 0x{major:02X}{minor:02X}0000\n" in source
    assert f"cp{major}{minor}-abi3" in (ROOT / "backends" / "build.py").read_text()
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    assert "noarch" not in recipe["build"]
    assert recipe["build"]["python"]["version_independent"]
    assert '${{ compiler("cxx") }}' in recipe["requirements"]["build"]
    assert f"python-abi3 {major}.{minor}.*" in recipe["requirements"]["host"]


def test_the_address_of_the_repository_stands_in_one_place():
    text = (ROOT / "pyproject.toml").read_text()
    address = PROJECT["urls"]["Source"].removeprefix("https://")
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.*")]
    assert text.count(address) == 1
    assert [file for file in files if address in file.read_text()] == []


def test_pins_of_releases_are_those_of_tests():
    def pins(name: str) -> dict[str, str]:
        lines = (ROOT / "constraints" / name).read_text().splitlines()
        matches = (re.match(r"([\w.-]+)==([^ ;]+)", line) for line in lines)
        return {re.sub(r"[-_.]+", "-", m[1]).lower(): m[2] for m in matches if m}

    tests, releases = pins("test.txt"), pins("release.txt")
    shared = set(tests) & set(releases)
    assert {"build", "hatchling", "hatch-fancy-pypi-readme", "ziglang"} <= shared
    assert {name: releases[name] for name in shared} == {name: tests[name] for name in shared}
    # torch for GPUs pins its own versions of these, and could not be installed beside others.
    assert not [name for name in tests if name.startswith("nvidia-")]


# --- workflows -----------------------------------------------------------------------------------

WORKFLOWS = [*(ROOT / ".github" / "workflows").glob("*.yml")]


def read(name: str) -> dict[str, Any]:
    file = ROOT / ".github" / "workflows" / f"{name}.yml"
    # YAML 1.1, which PyYAML reads, takes the key on for true.
    return {str(k): v for k, v in yaml.safe_load(file.read_text()).items()}


def list_commands(job: dict[str, Any]) -> list[str]:
    return [line for step in job.get("steps", []) for line in step.get("run", "").splitlines()]


def test_workflows_call_scripts_that_can_run():
    jobs = [job for file in WORKFLOWS for job in read(file.stem)["jobs"].values()]
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
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    core = read("gate")["jobs"]["core"]
    assert core["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert ".ci/core python3 known" in list_commands(core)


# --- sources -------------------------------------------------------------------------------------

FOLDERS = "rope_xp", "backends", "tests", "asv_benchmarks", "docs"
# fmt: skip is none of them: it keeps a table a table, as anyone sees.
UNEXPLAINED = re.compile(r".*# *(?:type: *ignore(?:\[[^]]*\])?|noqa(?::[ A-Z\d,]*)?) *\n")


def test_every_check_that_is_muted_says_why_behind_the_mute():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files = [file for file in files if "_build" not in file.parts]
    assert [line for file in files for line in UNEXPLAINED.findall(file.read_text("utf-8"))] == []
    assert UNEXPLAINED.search("x = 1\ny = 2  # noqa: E501\n")
    assert not UNEXPLAINED.search("y = 2  # noqa: E501  # as here\n")
