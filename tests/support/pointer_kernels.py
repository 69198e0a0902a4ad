"""Kernels in C++ that read tables by pointers, as engines call them; run in a process of its own.

``python pointer_kernels.py LIBRARY CONVENTION FAULT``: assert_rotates of a kernel with a fault.
"""

import ctypes
import sys

import numpy as np
import torch

from rope_xp import RoPE
from rope_xp.testing import assert_rotates, conventions

ROPE = RoPE(layout="half", base=5e5)
HEAD_DIM = 64
CAUSES = {
    "layout": "layout is 'interleaved', and not 'half'",
    "sign": "turns by the negative angle",
    "none": "",
}


def build_kernels(library, fault):
    """Return a kernel for each convention, around the C++ function."""
    code = ctypes.CDLL(library)
    code.rotate.restype = None

    def run(x, cos, sin, positions, heads):
        positions = torch.as_tensor(positions, dtype=torch.int64).contiguous()
        pointers = [ctypes.c_void_p(t.data_ptr()) if t is not None else None for t in (x, cos, sin)]
        code.rotate(
            *pointers,
            *map(ctypes.c_int64, (len(cos), cos.stride(0))),
            ctypes.c_void_p(positions.data_ptr()),
            *map(ctypes.c_int64, (len(positions), heads, HEAD_DIM, HEAD_DIM // 2)),
            ctypes.c_int(fault == "layout"),
            ctypes.c_float(-1.0 if fault == "sign" else 1.0),
        )

    def vllm(positions, query, key, head_size, table, _):
        for x in (query, key):
            run(x, table, table[:, head_size // 2 :], positions, x.shape[1] // head_size)

    def sglang(q, k, table, positions, **_):
        vllm(positions, q.flatten(1), k.flatten(1), HEAD_DIM, table, True)

    def sequences(x, cos, sin, starts, bounds):
        x = x.contiguous()
        if bounds is None:
            positions = starts[:, None] + torch.arange(x.shape[1])
        else:
            runs = zip(starts, bounds.diff(), strict=True)
            positions = torch.cat([start + torch.arange(n) for start, n in runs])
        run(x, cos, sin, positions.ravel(), x.shape[-2])
        return x

    def flash_attn(x, cos, sin, *, seqlen_offsets, cu_seqlens=None, **_):
        return sequences(x, cos, sin, seqlen_offsets, cu_seqlens)

    def transformer_engine(x, freqs, *, start_positions, cu_seqlens=None, **_):
        return sequences(x, freqs.flatten(1), None, start_positions, cu_seqlens)

    def onnx(x, cos, sin, positions, **_):
        rows = torch.from_numpy(np.ascontiguousarray(x.swapaxes(1, 2)))
        run(rows, torch.from_numpy(cos), torch.from_numpy(sin), positions.ravel(), x.shape[1])
        return rows.numpy().swapaxes(1, 2)

    kernels = {f.__name__: f for f in (vllm, sglang, flash_attn, transformer_engine, onnx)}
    return kernels | {"fla": flash_attn}


if __name__ == "__main__":
    library, convention, fault = sys.argv[1:]
    kernel = getattr(conventions, convention)(
        build_kernels(library, fault)[convention], ROPE, HEAD_DIM
    )
    for options in ({}, {"positions": range(2048)}, {"positions": range(5)}):
        try:
            assert_rotates(kernel, ROPE, HEAD_DIM, **options)
        except AssertionError as error:
            print(error)
        else:
            print("rotates")
        print("---")
