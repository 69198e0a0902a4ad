"""CUDA streams: the current one, and whether a graph captures it."""

import torch

from . import private


def is_capturing(device: torch.device) -> bool:
    """Return whether launches on a device go into a graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def current_stream(device: torch.device) -> int:
    """Return the handle of the current stream, 0 where there are none."""
    if device.type != "cuda":
        return 0
    if private.current_stream is None:  # a name that this torch lacks
        return torch.cuda.current_stream(device).cuda_stream
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(private.current_stream(index))
