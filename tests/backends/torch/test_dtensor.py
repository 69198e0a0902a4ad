"""torch DTensor: the tests of dtensor_cases.py and the docs' examples, on several processes."""

import subprocess
import sys

import pytest
from support.programs import HERE, ROOT, environment

torch = pytest.importorskip("torch")

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch was built without distributed or gloo", allow_module_level=True)
pytest.importorskip("rope_xp_backends.cpu._native")

ABORTED = "terminate called without an active exception"
"""What torch 2.11 and 2.13 print now and then as a process leaves a busy machine, when all is done:
https://github.com/pytorch/pytorch/issues/190489 has it."""
PYTEST = ("-m", "pytest", "-q", "-x", "-n", "0", "--noconftest", "-p", "no:cacheprovider")
EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "program", "expected"),
    [
        (4, [*PYTEST, HERE / "dtensor_cases.py"], " passed"),
        (2, [EXAMPLES / "tensor_parallel.py"], "2 processes, "),
        (2, [EXAMPLES / "context_parallel.py"], "2 processes, "),
    ],
    ids=["cases", "tensor_parallel", "context_parallel"],
)
def test_distributed_programs_run_on_several_processes(processes, program, expected):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, f"--nproc-per-node={processes}", *map(str, program)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    options["env"] = environment(OMP_NUM_THREADS="1", PYTEST_ADDOPTS="")
    for _ in range(3):
        with subprocess.Popen(command, **options) as process:
            try:
                printed, errors = process.communicate(timeout=300)
            finally:
                process.terminate()  # and not kill: it has processes of its own to end
        if ABORTED not in errors:
            break
    assert process.returncode == 0, printed[-8000:] + errors[-4000:]
    assert expected in printed
