"""What is launched on a GPU, and whether it runs or goes into a graph."""

import torch

from . import private


def is_capturing(device: torch.device) -> bool:
    """Return whether what is launched on a device goes into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def current(device: torch.device) -> int:
    """Return the number of the current stream, 0 where there are none."""
    if private.current_stream is None or device.type != "cuda":
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(private.current_stream(index))
