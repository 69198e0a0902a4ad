"""From a call to launches on a GPU: plans, which are numbers, and kernels of Triton and CUDA."""
