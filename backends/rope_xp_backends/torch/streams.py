"""What is launched on a GPU, and whether it runs or goes into a graph."""

import torch

# torch has no public name for what its own compiler calls by this one; builds for CPUs have none.
_stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001  # see above


def capturing(device: torch.device) -> bool:
    """Return whether what is launched on a device goes into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def current(device: torch.device) -> int:
    """Return the number of the stream that is launched on, 0 where there are none."""
    if _stream_of is None or device.type != "cuda":
        return 0
    return int(_stream_of(torch.cuda.current_device() if device.index is None else device.index))
