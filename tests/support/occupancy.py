"""How many programs or blocks a GPU holds at once, from what the hardware has: plain numbers."""

REGISTERS = 80
"""Of a thread, at most: tests read those of kernels that were compiled for GPUs."""
REGISTERS_OF_A_PROCESSOR = 65536
"""On all GPUs of NVIDIA's since 2012."""
THREADS_OF_A_PROCESSOR = 2048
"""At most; some GPUs for graphics have 1536, and registers for no more than that."""
PROCESSORS = 132
"""Of an H200."""


def waves(blocks: int, threads: int) -> float:
    """Return how often so many blocks fill an H200: how much less the last, partial fill weighs."""
    resident = min(THREADS_OF_A_PROCESSOR, REGISTERS_OF_A_PROCESSOR // REGISTERS) // threads
    return blocks / (PROCESSORS * resident)
