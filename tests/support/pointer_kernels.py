"""Kernels in C++ that read tables by pointers, as engines call them."""

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p

import torch

from rope_xp import RoPE
from rope_xp.testing import assert_rotates, conventions

from .engine_kernels import make

ROPE = RoPE(layout="half", base=5e5)


def describe_kernel(library, convention, fault):
    """Return what assert_rotates says of a kernel at usual positions, and at 2048 and 5 of them."""
    code = ctypes.CDLL(library)

    def look_up(x, cos, sin, positions, neox):
        y = torch.as_tensor(x).clone(memory_format=torch.contiguous_format)
        cos, sin = (None if t is None else torch.as_tensor(t) for t in (cos, sin))
        p = torch.as_tensor(positions).long().contiguous()
        code.rotate(
            *(c_void_p(None if t is None else t.data_ptr()) for t in (y, cos, sin)),
            *map(c_int64, (len(cos), cos.stride(0))),
            c_void_p(p.data_ptr()),
            *map(c_int64, (p.numel(), *y.shape[-2:], y.shape[-1] // 2)),
            c_int(neox == (fault == "layout")),
            c_float(-1.0 if fault == "sign" else 1.0),
        )
        return y if isinstance(x, torch.Tensor) else y.numpy()

    kernel = getattr(conventions, convention)(make(look_up=look_up)[convention], ROPE, 64)
    said = []
    for positions in (None, range(2048), range(5)):
        try:
            assert_rotates(kernel, ROPE, 64, positions=positions)
            said.append("")
        except AssertionError as error:
            said.append(str(error))
    return said
