"""The backend fixture, and what each process sets before it collects tests."""

import ctypes
import gc
import importlib.util
import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator

import numpy as np
import pytest
from hypothesis import settings
from support.cases import leave_out
from support.targets import (
    ALL_FLOATS,
    INTERPRETED,
    TARGETS,
    Target,
    give_cpu_to_triton,
    lent,
    missing,
    rows,
)

import rope_xp

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:  # jax's plugin for GPUs, if it is installed, would log that at each start
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Else jax takes three quarters of a GPU's memory, in every process of pytest-xdist.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it advises on odd default configurations

# It has no examples, and its programs set up their process when they are read.
collect_ignore = ["support"]

REQUIRED = set(os.environ.get("ROPE_XP_REQUIRE", "").replace("-", "_").replace(",", " ").split())

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=40)
# Of tests/fuzz, on two cores: a minute, the same each time, and an hour, another each time.
settings.register_profile("minute", settings.get_profile("fixed"), max_examples=50)
settings.register_profile("long", deadline=None, max_examples=12_000, print_blob=True)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):  # which inherit it, and so leave cores to each other
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not hasattr(config, "workerinput"):
        builds = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        config.add_cleanup(builds.cleanup)
        os.environ["ROPE_XP_TEST_BUILDS"] = builds.name
    needed = [t for t in TARGETS if (t.needs or t.module) in REQUIRED and not t.gpu]
    absent = [f"{t.name} ({why})" for t in needed if (why := missing(t))]
    absent += [name for name in sorted(REQUIRED) if importlib.util.find_spec(name) is None]
    if absent:
        msg = f"ROPE_XP_REQUIRE asks for what is missing: {', '.join(absent)}"
        raise pytest.UsageError(msg)
    if INTERPRETED:
        give_cpu_to_triton()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spend little time on garbage: what is imported stays, and later collections pass over it."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.set_threshold(50_000)  # frameworks make many objects that stay, with no garbage among them
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)  # before what the mark is asked for
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    dropped = leave_out(items)
    config.hook.pytest_deselected(items=[*dropped])
    items[:] = [item for item in items if item not in dropped]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames and not any(
        "backend" in str(m.args[0]) for m in metafunc.definition.iter_markers("parametrize")
    ):
        metafunc.parametrize("backend", rows())


@pytest.fixture(autouse=True)
def _force_path(request: pytest.FixtureRequest) -> Iterator[None]:
    params = getattr(getattr(request.node, "callspec", None), "params", {})
    target, dtype = params.get("backend"), params.get("dtype")
    if not isinstance(target, Target):
        yield
        return
    if reason := missing(target):
        pytest.skip(reason)
    if dtype in ALL_FLOATS and dtype not in target.floats:
        pytest.skip(f"{target} is not tested with {dtype}")
    with target.set_up(), lent(target.lent), rope_xp.use_path(target.path):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what a machine like this one could not test, by reason alone."""
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.section("not tested here")
    for reason, count in Counter(report.longrepr[2] for report in skipped).most_common():
        terminalreporter.line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture
def small_heap() -> None:
    """Have collections pass over what was there before, of which each would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20211104)
