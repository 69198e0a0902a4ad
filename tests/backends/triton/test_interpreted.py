"""The kernel for GPUs where there is none, in Triton's interpreter."""

import re
import subprocess
import sys

import pytest
from support.programs import TESTS, environment

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

# The tests of torch's operator without gradcheck, whose thousands of calls would be interpreted for
# minutes, without graphs and checks of torch, which are the same whoever rotates, and without what
# is about memory of CPUs. Functional tensors have none, which kernels for GPUs are told by the call
# cache of GPUs alone; and plans and checks are those of CPUs.
OPERATOR = "not gradients_of_both_orders and not resized and not functional "
OPERATOR += "and not pass_the_checks and not serve_all_lengths and not components_beyond"
ROWS = "torch-triton and not bfloat16"
SHORT, ALL = "not slow", "slow or not slow"
# Files, a choice of their tests, and their number at least.
RUNS = [
    (["backends/triton/test_kernel.py", "core/test_equivalence.py"], ALL, "", 100),
    (["core/test_rotation.py", "core/test_angles.py", "core/test_shared_angles.py"], ALL, ROWS, 60),
    (["backends/torch/test_op*.py"], SHORT, OPERATOR, 20),
]


@pytest.mark.slow
@pytest.mark.skipif(
    triton.__version__.startswith("3.6."), reason="numpy 2.4 breaks its interpreter"
)
@pytest.mark.parametrize(
    ("files", "suite", "chosen", "least"), RUNS, ids=lambda a: a[0] if isinstance(a, list) else ""
)
def test_kernels_in_the_interpreter_pass_their_tests(files, suite, chosen, least):
    paths = [path for file in files for path in sorted(TESTS.glob(file))]
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "-m", suite, "-k", chosen)
    # Not the options of the outer run, which may ask for processes of its own.
    only = {"TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *paths],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
        env=environment(**only),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "skipped" not in done.stdout
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert int(passed[1]) >= least
