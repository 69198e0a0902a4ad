"""What each process of backends/torch/test_dtensor.py runs: every case, failures to a file.

    python tests/support/dtensor_cases.py FOLDER RANK PROCESSES [CASE...]

Runs all cases if none is named.
"""

import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from support import (
    dtensor_calls,  # noqa: F401  # to import cases is to register them
    dtensor_results,  # noqa: F401  # as above
)
from support.dtensor_help import CASES


def main(folder: Path, rank: int, processes: int, *names: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    wait = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=processes, timeout=wait
    )
    mesh = init_device_mesh("cpu", (2,) if processes == 2 else (2, processes // 2))
    ran: dict[str, str | None] = {}
    # That nothing is brought in yet can only be seen first of all.
    for name in sorted(CASES, key="plain_tensors_do_not_bring_it".__ne__):
        sizes, function = CASES[name]
        if processes not in sizes or (names and name not in names):
            continue
        ran[name] = None
        try:
            function(mesh)
        except Exception:  # noqa: BLE001  # whatever it is, the test that waits is to tell
            ran[name] = traceback.format_exc()
        (folder / f"{rank}.json").write_text(json.dumps(ran), "utf-8")
        if ran[name] is not None:
            break  # the others wait in vain, and so would every case that follows
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
