"""How many programs or blocks a GPU holds at once, from what the hardware has: plain numbers."""

REGISTERS = 80
"""Of a thread, at most: tests read those of kernels that were compiled for GPUs."""
OF_A_PROCESSOR = 65536
"""Registers of a multiprocessor, on all GPUs of NVIDIA's since 2012."""
MOST_THREADS = 2048
"""Of a multiprocessor; of some of those for graphics 1536, which registers allow no more than."""


def waves(blocks: int, threads: int, processors: int) -> float:
    """Return how often so many blocks fill a GPU: how much less the last, partial fill weighs."""
    resident = min(MOST_THREADS // threads, OF_A_PROCESSOR // (REGISTERS * threads))
    return blocks / (processors * resident)
