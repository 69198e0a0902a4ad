"""Calls with torch down to the driver of CUDA, which has a stand-in: see triton_launches.py."""

import ctypes
import json
import shutil
from pathlib import Path

import pytest
from support.programs import printed

pytest.importorskip("torch")
pytest.importorskip("triton")

# How many launches a call takes, and how many kernels that no earlier call has loaded.
CALLS = {
    "q and k": (1, 1),
    "again": (1, 0),
    "in place": (1, 1),
    "one token": (1, 1),  # rows of one axis, which take no division
    "counted": (1, 1),
    "one array": (1, 1),
    "tables": (1, 1),
    "two dtypes": (2, 1),
    "two positions": (2, 1),
    "more than 2**31 elements": (1, 1),
    "nothing": (0, 0),
}


@pytest.mark.exhaustive
def test_the_driver_gets_what_was_planned(tmp_path: Path) -> None:
    """One launch for q and k, of the grid and the arguments that the interpreter is given too.

    A graph is captured meanwhile, where the driver loads a kernel in relaxed mode alone.
    """
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc, which compiles Triton's launcher")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a driver of CUDA; test_gpu.py launches by it")
    calls = [json.loads(line) for line in printed("triton_launches.py", tmp_path).splitlines()]
    assert {c["name"]: (len(c["found"]), c["modules"]) for c in calls} == CALLS
    for call in calls:
        assert call["capture mode"] == 0  # as it was before
        for launch in call["found"]:
            assert launch["launches"] == 1
            assert launch["grid and threads got"] == [*launch["grid"], 128, 1, 1]
            assert launch["got"] == launch["given"], call["name"]
            assert len(launch["given"]) == 28
            assert set(launch["added"]) <= {0}
            assert launch["wide"] == (call["name"] == "more than 2**31 elements")
