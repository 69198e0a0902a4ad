"""The files through which q passes on its way to memory, as CONTRIBUTING.md has them."""

import sys
from pathlib import Path

import numpy as np
import pytest

import rope_xp

ROPE = rope_xp.RoPE(layout="half")
Q = np.ones((1, 8, 4, 64), np.float32)


def follow(call, *arrays):
    """Return the files whose functions have one of some arrays among their arguments."""
    call()  # what the first call imports and computes is no part of the walk
    ids, files = {id(x) for x in arrays}, []

    def profile(frame, event, _):
        code = frame.f_code
        path = Path(code.co_filename)
        ours = "rope_xp" in path.parts or "rope_xp_backends" in path.parts
        if event == "call" and ours:
            held = [x for v in frame.f_locals.values() for x in (v if type(v) is tuple else (v,))]
            if ids & {id(x) for x in held} and path.name not in files:
                files.append(path.name)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.usefixtures("native")
def test_apply_hands_plain_arrays_of_numpy_to_the_native_module_at_once():
    assert follow(lambda: ROPE.apply(Q, Q), Q) == ["rope.py"]


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("learns", "files"), [(False, []), (True, ["recorded.py"])])
def test_apply_hands_plain_tensors_to_the_native_module_through_one_file(learns, files):
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(Q).requires_grad_(learns)
    assert follow(lambda: ROPE.apply(q, q), q) == ["rope.py", "calls.py", *files]
