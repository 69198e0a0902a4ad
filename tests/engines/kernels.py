"""Kernels of Triton, in its interpreter, and classes of inference engines, from their files."""

import contextlib
from typing import Any

import torch
from measure import HEAD_DIM, LENGTH, Rotation, engine
from shared import flatten, load_alone

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, YaRN
from rope_xp.testing import conventions

_KERNEL = {
    "takes_tables": True, "partial": True,
    "not_run": dict.fromkeys(("bfloat16", "gradient"), "not tried in the interpreter"),
}  # fmt: skip
_NOTE = "Triton's interpreter"
_ALONE = f"{_NOTE}; file alone"
_UNCAST = {"module in bfloat16": "the module was not cast"}
_UNTRIED = "the package has such a class, which was not tried"


class _Op(torch.nn.Module):
    """What vLLM's RoPE takes from CustomOp: a module that is registered and enabled."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    @staticmethod
    def register(name: str) -> Any:
        return lambda kind: kind

    def enabled(self) -> bool:
        return False


class _Platform:
    """A platform without GPUs."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: name == "is_cpu"


def load_vllm() -> dict[str, Any]:
    no_ops = type("NoOps", (), {"is_triton_rotary_embed_enabled": staticmethod(lambda: False)})
    stubs: dict[str, Any] = {
        "vllm._aiter_ops": {"rocm_aiter_ops": no_ops},
        "vllm__logger": {"init_logger": lambda name: None},
        "vllm__platforms": {"current_platform": _Platform()},
        "vllm__model_executor__custom_op": {"CustomOp": _Op},
        "vllm__utils__torch_utils": {"direct_register_custom_op": lambda **options: None},
    }
    root = "vllm.model_executor.layers.rotary_embedding"
    names = "base", "linear_scaling_rope", "yarn_scaling_rope", "llama3_rope"
    return {name: load_alone(f"{root}.{name}", **stubs) for name in names}


@engine("vllm", "RotaryEmbedding.forward_native", scalings=(Linear, YaRN, Llama3), partial=True,
        note="files alone", not_run={"LongRoPE": _UNTRIED, **_UNCAST})  # fmt: skip
def vllm(rope: RoPE, dtype: str) -> Rotation:
    files = load_vllm()
    file, name, length = {
        type(None): ("base", "RotaryEmbedding", LENGTH),
        Linear: ("linear_scaling_rope", "LinearScalingRotaryEmbedding", 4096),
        YaRN: ("yarn_scaling_rope", "YaRNScalingRotaryEmbedding", 4096),
        Llama3: ("llama3_rope", "Llama3RotaryEmbedding", LENGTH),
    }[type(rope.scaling)]
    factor = (rope.scaling.factor,) if isinstance(rope.scaling, Linear | YaRN) else ()
    # Llama 3: its four numbers come after the dtype.
    end = (8.0, 1.0, 4.0, 8192) if isinstance(rope.scaling, Llama3) else ()
    options = (rope.base, rope.layout == "half", *factor, getattr(torch, dtype), *end)
    return _rotate_natively(getattr(files[file], name)(HEAD_DIM, rope.rotary_dim, length, *options))


def _rotate_natively(module: Any) -> Rotation:
    return flatten(lambda q, k, p: module.forward_native(p, q.flatten(1), k.flatten(1)))


def _divide(rope: RoPE) -> list[int]:
    """Return how many pairs are of each of three components."""
    n = rope.rotary_dim // 2
    return [n - 2 * (n // 3), n // 3, n // 3]


@engine("vllm", "triton_mrope", note=_ALONE, **_KERNEL)
def vllm_mrope(rope: RoPE, dtype: str) -> Rotation:
    import triton

    load_vllm()
    file = load_alone("vllm.model_executor.layers.rotary_embedding.mrope",
                      vllm__triton_utils={"triton": triton, "tl": triton.language})  # fmt: skip

    def kernel(positions: Any, q: Any, k: Any, head_size: int, table: Any, is_neox: bool) -> None:
        cos, sin = table[positions].expand(3, -1, -1).chunk(2, -1)
        results = file.triton_mrope(q, k, cos.contiguous(), sin.contiguous(), _divide(rope),
                                    head_size, rope.rotary_dim, False, is_neox)  # fmt: skip
        for x, y in zip((q, k), results, strict=True):
            x.copy_(y)

    return conventions.vllm(kernel, rope, HEAD_DIM)


@engine(
    "vllm", "vllm_flash_attn apply_rotary", note=f"{_ALONE}; flash-attention's kernel", **_KERNEL
)
def flash_attn(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("vllm.vllm_flash_attn.ops.triton.rotary")
    torch.cuda.device = lambda index: contextlib.nullcontext()
    return conventions.flash_attn(file.apply_rotary, rope, HEAD_DIM)


@engine("sglang", "RotaryEmbedding.forward_native", scalings=(Linear,), partial=True,
        note="files alone; its cache in float32",
        not_run=dict.fromkeys(("YaRN", "Llama 3", "LongRoPE"), _UNTRIED) | _UNCAST)  # fmt: skip
def sglang(rope: RoPE, dtype: str) -> Rotation:
    no = lambda *given, **options: False  # noqa: E731  # a stub
    names = ("cpu_has_amx_support", "get_bool_env_var", "is_cuda", "is_hip", "is_mps", "is_musa",
             "is_npu", "is_xpu")  # fmt: skip
    utilities: dict[str, Any] = dict.fromkeys(names, no) | {"is_cpu": lambda: True}
    utilities["get_compiler_backend"] = lambda *given, **options: "eager"
    always = type("Flag", (), {"get": staticmethod(lambda: True)})
    file = load_alone(
        "sglang.srt.layers.rotary_embedding.base",
        sglang__kernels__fused_op={"BaseFusedOp": torch.nn.Module},
        sglang__srt__environ={"envs": type("Environment", (), {"SGLANG_ROPE_CACHE_FP32": always})},
        sglang__srt__platforms={"current_platform": _Platform()},
        sglang__srt__runtime_context={"publish_role": lambda: None, "get_exec": lambda: None},
        sglang__srt__utils=utilities,
    )
    sizes, last = (HEAD_DIM, rope.rotary_dim), (rope.base, rope.layout == "half")
    if isinstance(rope.scaling, Linear):
        factor = rope.scaling.factor
        module = file.LinearScalingRotaryEmbedding(*sizes, 4096, *last, factor, torch.float32)
    else:
        module = file.RotaryEmbedding(*sizes, LENGTH, *last, torch.float32)
    return _rotate_natively(module)


@engine("sglang", "triton_mrope_fused", note=_ALONE, **_KERNEL)
def sglang_mrope(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("sglang.kernels.ops.attention.rotary_triton")
    axis_map = torch.zeros(rope.rotary_dim // 2, dtype=torch.int32)

    def kernel(positions: Any, q: Any, k: Any, head_size: int, table: Any, is_neox: bool) -> None:
        lanes = positions.expand(3, -1).contiguous()
        sizes = _divide(rope), head_size, rope.rotary_dim
        file.triton_mrope_fused(q, k, table, lanes, *sizes, False, False, is_neox, axis_map)

    return conventions.vllm(kernel, rope, HEAD_DIM)


@engine("liger-kernel", "LigerRopeFunction", note=_NOTE, **_KERNEL)
def liger(rope: RoPE, dtype: str) -> Rotation:
    from liger_kernel.ops.rope import LigerRopeFunction

    def kernel(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return LigerRopeFunction.apply(q, k, cos, sin, None, 1)

    return conventions.liger(kernel, rope, HEAD_DIM)
