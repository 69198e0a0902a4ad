"""What XLA makes of a rotation on an H200, compiled where there is no GPU; one JSON for each case.

python tests/support/xla_for_gpu.py FOLDER
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"  # or the plugin looks for a GPU
os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]} --xla_dump_emitter_re=.*"

import json
import re
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
COLLECTIVE = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter")
SHAPES = (2, 4096, 32, 128), (2, 4096, 8, 128), (2, 4096)  # of q, k and positions
# Direction, layout, rotary_dim, dtype, and the axes that two devices share.
CASES = (
    ("forward", "half", 128, "bfloat16", P()),
    ("forward", "interleaved", 64, "float32", P(None, "x")),
    ("backward", "half", 64, "float16", P("x")),
    ("backward", "interleaved_to_half", 64, "bfloat16", P()),
)


def compile_for_gpu(direction, rope, dtype, spec):
    def forward(q, k, positions):
        return rope.apply(q, k, positions)

    def backward(q, k, positions):
        return jax.vjp(lambda q, k: rope.apply(q, k, positions), q, k)[1]((q, k))

    devices = get_topology_desc("", "cuda", target_config=H200, topology="1x1x2").devices
    mesh = Mesh(np.array(devices[: 1 + (spec != P())]), ("x",))
    arguments = [
        jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, spec))
        for shape, kind in zip(SHAPES, (dtype, dtype, np.int32), strict=True)
    ]
    before = set(FOLDER.iterdir())
    function = forward if direction == "forward" else backward
    program = jax.jit(function).lower(*arguments).compile()
    files = sorted(set(FOLDER.glob("*.ptx")) - before)
    parts = [part for file in files for part in file.read_text().split(".entry ")[1:]]
    return {
        "allocated": program.memory_analysis().temp_size_in_bytes,
        "collectives": COLLECTIVE.findall(program.as_text()),
        "kernels": {part[: part.index("(")]: part for part in parts},
    }


for direction, layout, rotary_dim, dtype, spec in CASES:
    rope = RoPE(layout=layout, rotary_dim=rotary_dim)
    with rope_xp.use_path("jit-gpu"):
        properties = compile_for_gpu(direction, rope, dtype, spec)
    case = {"direction": direction, "layout": layout, "rotary_dim": rotary_dim}
    print(json.dumps(case | properties))
