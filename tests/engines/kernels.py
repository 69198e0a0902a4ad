"""Kernels of Triton, in its interpreter, and classes of inference engines, from their files."""

import contextlib
from typing import Any

import torch
from measure import HEAD_DIM, LENGTH, TABLES, Rotation, engine
from shared import flatten, load_alone

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, YaRN
from rope_xp.testing import conventions

_NOTE = "Triton's interpreter"


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


@engine("vllm", "RotaryEmbedding.forward_native", "linear", "YaRN", "Llama 3", "partial",
        note="files alone")  # fmt: skip
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


@engine(
    "vllm",
    "vllm_flash_attn apply_rotary",
    columns=TABLES,
    note=f"{_NOTE}; file alone; flash-attention's kernel",
)
def flash_attn(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("vllm.vllm_flash_attn.ops.triton.rotary")
    torch.cuda.device = lambda index: contextlib.nullcontext()
    return conventions.flash_attn(file.apply_rotary, rope, HEAD_DIM)


@engine("sglang", "RotaryEmbedding.forward_native", "linear", "partial",
        note="files alone; its cache in float32")  # fmt: skip
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


@engine("liger-kernel", "LigerRopeFunction", columns=TABLES, note=_NOTE)
def liger(rope: RoPE, dtype: str) -> Rotation:
    from liger_kernel.ops.rope import LigerRopeFunction

    def kernel(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return LigerRopeFunction.apply(q, k, cos, sin, None, 1)

    return conventions.liger(kernel, rope, HEAD_DIM)
