"""What XLA makes of a rotation on an H200, compiled where there is no GPU; one JSON for each case.

python tests/support/xla_for_gpu.py FOLDER [EVERY]
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"  # or the plugin looks for a GPU
os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]} --xla_dump_emitter_re=.*"

import json
import re
from functools import partial
from itertools import product
from pathlib import Path

import jax
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rope_xp
from rope_xp import RoPE

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 l2_cache_size: 62914560
  memory_bandwidth: 4800000000000 device_memory_size: 150000000000
  cuda_compute_capability { major: 9 }
}
runtime_version { major: 13 } platform_name: "CUDA" dnn_version_info { major: 9 minor: 19 }
device_description_str: "NVIDIA H200"
"""
FOLDER = Path(sys.argv[1])
TOKENS, HEAD_DIM = 4096, 128
COLLECTIVE = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter")
DEVICES = get_topology_desc("", "cuda", target_config=H200, topology="1x1x2").devices


def forward(rope, q, k, positions):
    return rope.apply(q, k, positions)


def backward(rope, q, k, positions):
    return jax.vjp(lambda q, k: rope.apply(q, k, positions), q, k)[1]((q, k))


def compiled(function, dtype, count, spec):
    mesh = Mesh(np.array(DEVICES[:count]), ("x",))
    shapes = [(2, TOKENS, 32, HEAD_DIM), (2, TOKENS, 8, HEAD_DIM), (2, TOKENS)]
    arguments = [
        jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, P(*spec[: len(shape)])))
        for shape, kind in zip(shapes, (dtype, dtype, np.int32), strict=True)
    ]
    before = set(FOLDER.iterdir())
    program = jax.jit(function).lower(*arguments).compile()
    kernels = {}
    for file in sorted(set(FOLDER.glob("*.ptx")) - before):
        for part in file.read_text().split(".entry ")[1:]:
            kernels[part[: part.index("(")]] = part
    return {
        "allocated": program.memory_analysis().temp_size_in_bytes,
        "collectives": COLLECTIVE.findall(program.as_text()),
        "kernels": kernels,
    }


def main():
    directions, dtypes = (forward, backward), ("bfloat16", "float16", "float32")
    layouts, dims = ("half", "interleaved", "interleaved_to_half"), (HEAD_DIM, HEAD_DIM // 2)
    usual, specs = (["half"], [HEAD_DIM], ["bfloat16"]), (P("x"), P(None, "x"), P(None, None, "x"))
    cases = [
        *product(directions, layouts, dims, dtypes, [1], [P()]),
        *product(directions, *usual, [2], specs),
    ]
    cases = cases[:: int((*sys.argv, "1")[2])]
    for function, layout, rotary_dim, dtype, devices, spec in cases:
        rope = RoPE(layout=layout, rotary_dim=rotary_dim)  # type: ignore[arg-type]  # of a list
        with rope_xp.use_path("jit-gpu"):
            properties = compiled(partial(function, rope), dtype, devices, spec)
        case = {"direction": function.__name__, "layout": layout, "rotary_dim": rotary_dim}
        print(json.dumps(case | properties))


if __name__ == "__main__":
    main()
