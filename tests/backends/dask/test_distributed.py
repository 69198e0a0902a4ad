"""dask.distributed: an array larger than a worker's memory passes through it chunk by chunk."""

import pathlib

import numpy as np
import pytest

from rope_xp import RoPE

da = pytest.importorskip("dask.array", reason="dask is not installed")

STATUS = pathlib.Path("/proc/self/status")
CHUNK = 1 << 24  # bytes
TOKENS = CHUNK // (4 * 8 * 128)
LIMIT = 640 << 20
CHUNKS = 2 * LIMIT // CHUNK


def read_memory(field: str) -> int:
    lines = STATUS.read_text().splitlines()
    return 1024 * int(dict(line.split()[:2] for line in lines if line.endswith("kB"))[f"{field}:"])


def spilled(dask_worker) -> int:
    """Return how many bytes a worker has ever written to disk for want of memory."""
    metrics = getattr(dask_worker.data, "cumulative_metrics", {})
    return int(sum(n for key, n in metrics.items() if key[0] == "disk-write"))


def square(x: np.ndarray) -> np.ndarray:
    """Return the sums of squares of each token: rotations leave them as they are."""
    return np.einsum("bshd,bshd->bs", x, x, dtype=np.float64)


def rotated(chunks: int):
    x = da.ones((1, chunks * TOKENS, 8, 128), chunks=(1, TOKENS, 8, 128), dtype=np.float32)
    x = x.map_blocks(np.ascontiguousarray)  # a block of ones is a single one until it is copied
    y = RoPE(layout="half").rotate(x, da.arange(10**6, 10**6 + x.shape[1], chunks=TOKENS))
    return y.map_blocks(square, drop_axis=(2, 3), dtype=np.float64)


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="only Linux tells the peak of memory")
def test_arrays_larger_than_a_worker_pass_through_it_without_spilling(tmp_path):
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    workers = {"n_workers": 1, "threads_per_worker": 2, "processes": True, "memory_limit": LIMIT}
    workers |= {"dashboard_address": None, "local_directory": str(tmp_path)}
    with distributed.LocalCluster(**workers) as cluster, distributed.Client(cluster) as client:
        rotated(2).compute()  # imports, tables and kernels are there to stay
        (before,) = client.run(read_memory, "VmRSS").values()
        sums = rotated(CHUNKS).compute()
        (peak,) = client.run(read_memory, "VmHWM").values()
        assert not any(client.run(spilled).values())
    np.testing.assert_allclose(sums, np.full((1, CHUNKS * TOKENS), 8 * 128), rtol=1e-6)
    # Each of two threads holds a block and its rotation, and may wait for one to be freed.
    assert peak - before <= 2 * 3 * CHUNK
    assert peak < 0.7 * LIMIT
