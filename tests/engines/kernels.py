"""Kernels of Triton, in its interpreter, and classes of inference engines, from their files."""

import contextlib
from typing import Any

import torch
from measure import HEAD_DIM, LENGTH, Engine, Rotation
from shared import check, load_alone

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, YaRN
from rope_xp.testing import conventions

_NOTE = "Triton's interpreter"
_ALONE = f"{_NOTE}; file alone"
_SLOW = dict.fromkeys(("bfloat16", "gradient"), "not tried in the interpreter")


def liger(rope: RoPE, dtype: str) -> Rotation:
    from liger_kernel.ops.rope import LigerRopeFunction

    check(rope, partial=True)

    def kernel(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return LigerRopeFunction.apply(q, k, cos, sin, None, 1)

    return conventions.liger(kernel, rope, HEAD_DIM)


def flash_attn(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("vllm.vllm_flash_attn.ops.triton.rotary")
    torch.cuda.device = lambda index: contextlib.nullcontext()
    check(rope, partial=True)
    return conventions.flash_attn(file.apply_rotary, rope, HEAD_DIM)


def _divide(rope: RoPE) -> tuple[int, list[int]]:
    """Return the pairs that rotate, and how many of them are of each of three components."""
    check(rope, partial=True)
    n = (rope.rotary_dim or HEAD_DIM) // 2
    return n, [n - 2 * (n // 3), n // 3, n // 3]


def sglang_mrope(rope: RoPE, dtype: str) -> Rotation:
    file = load_alone("sglang.kernels.ops.attention.rotary_triton")
    n, sections = _divide(rope)

    def kernel(positions: Any, q: Any, k: Any, head_size: int, table: Any, is_neox: bool) -> None:
        lanes = positions.expand(3, -1).contiguous()
        axis_map = torch.zeros(n, dtype=torch.int32)
        file.triton_mrope_fused(q, k, table, lanes, sections, head_size, 2 * n, False, False,
                                is_neox, axis_map)  # fmt: skip

    return conventions.vllm(kernel, rope, HEAD_DIM)


def vllm_mrope(rope: RoPE, dtype: str) -> Rotation:
    import triton

    _load_vllm()
    file = load_alone("vllm.model_executor.layers.rotary_embedding.mrope",
                      vllm__triton_utils={"triton": triton, "tl": triton.language})  # fmt: skip
    n, sections = _divide(rope)

    def kernel(positions: Any, q: Any, k: Any, head_size: int, table: Any, is_neox: bool) -> None:
        cos, sin = table[positions].expand(3, -1, -1).chunk(2, -1)
        results = file.triton_mrope(q, k, cos.contiguous(), sin.contiguous(), sections, head_size,
                                    2 * n, False, is_neox)  # fmt: skip
        for x, y in zip((q, k), results, strict=True):
            x.copy_(y)

    return conventions.vllm(kernel, rope, HEAD_DIM)


class _Op(torch.nn.Module):
    """What vLLM's RoPE takes from CustomOp: a module that is registered and enabled."""

    def __init__(self, **options: Any) -> None:
        super().__init__()

    @staticmethod
    def register(name: str) -> Any:
        return lambda kind: kind

    def enabled(self) -> bool:
        return False


class _NoOps:
    """No kernels of ROCm."""

    @staticmethod
    def is_triton_rotary_embed_enabled() -> bool:
        return False


class _Platform:
    """A platform without GPUs."""

    @staticmethod
    def is_cpu() -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *given: False


def _load_vllm() -> dict[str, Any]:
    stubs: dict[str, Any] = {
        "vllm._aiter_ops": {"rocm_aiter_ops": _NoOps},
        "vllm__logger": {"init_logger": lambda name: None},
        "vllm__platforms": {"current_platform": _Platform()},
        "vllm__model_executor__custom_op": {"CustomOp": _Op},
        "vllm__utils__torch_utils": {"direct_register_custom_op": lambda **options: None},
    }
    root = "vllm.model_executor.layers.rotary_embedding"
    names = "base", "linear_scaling_rope", "yarn_scaling_rope", "llama3_rope"
    return {name: load_alone(f"{root}.{name}", **stubs) for name in names}


def vllm(rope: RoPE, dtype: str) -> Rotation:
    files = _load_vllm()
    check(rope, Linear, YaRN, Llama3, partial=True)
    file, name, length = {
        type(None): ("base", "RotaryEmbedding", LENGTH),
        Linear: ("linear_scaling_rope", "LinearScalingRotaryEmbedding", 4096),
        YaRN: ("yarn_scaling_rope", "YaRNScalingRotaryEmbedding", 4096),
        Llama3: ("llama3_rope", "Llama3RotaryEmbedding", LENGTH),
    }[type(rope.scaling)]
    factor = (rope.scaling.factor,) if isinstance(rope.scaling, Linear | YaRN) else ()
    # Llama 3: its four numbers come after the dtype.
    end = (8.0, 1.0, 4.0, 8192) if isinstance(rope.scaling, Llama3) else ()
    sizes = (HEAD_DIM, rope.rotary_dim or HEAD_DIM, length)
    options = (rope.base, rope.layout == "half", *factor, getattr(torch, dtype), *end)
    return _call_flat(getattr(files[file], name)(*sizes, *options))


def _call_flat(module: Any) -> Rotation:
    """Return the rotation of a module that takes (tokens, heads * head_dim)."""

    def kernel(q: Any, k: Any, p: Any) -> Any:
        flat = [x.swapaxes(1, 2).flatten(0, 1).flatten(1) for x in (q, k)]
        results = module.forward_native(torch.as_tensor(p).flatten(), *flat)
        return [y.reshape(len(q), q.shape[2], -1, HEAD_DIM).swapaxes(1, 2) for y in results]

    return kernel


def sglang(rope: RoPE, dtype: str) -> Rotation:
    no = lambda *given, **options: False  # noqa: E731  # a stub
    names = ("cpu_has_amx_support", "get_bool_env_var", "is_cpu", "is_cuda", "is_hip", "is_mps",
             "is_musa", "is_npu", "is_xpu")  # fmt: skip
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
    check(rope, Linear, partial=True)
    options = (HEAD_DIM, rope.rotary_dim or HEAD_DIM)
    last = rope.base, rope.layout == "half"
    if isinstance(rope.scaling, Linear):
        kind = file.LinearScalingRotaryEmbedding
        module = kind(*options, 4096, *last, rope.scaling.factor, torch.float32)
    else:
        module = file.RotaryEmbedding(*options, LENGTH, *last, torch.float32)
    return _call_flat(module)


_UNCAST = {"module in bfloat16": "the module was not cast"}
_UNTRIED = "the package has such a class, which was not tried"
ENGINES = [
    Engine("vllm", "RotaryEmbedding.forward_native", vllm, note="files alone",
           not_run={"LongRoPE": _UNTRIED, **_UNCAST}),
    Engine("vllm", "triton_mrope", vllm_mrope, takes_tables=True, note=_ALONE, not_run=_SLOW),
    Engine("vllm", "vllm_flash_attn apply_rotary", flash_attn, takes_tables=True,
           note=f"{_ALONE}; flash-attention's kernel", not_run=_SLOW),
    Engine("sglang", "RotaryEmbedding.forward_native", sglang, note="files alone; its cache in float32",
           not_run=dict.fromkeys(("YaRN", "Llama 3", "LongRoPE"), _UNTRIED) | _UNCAST),
    Engine("sglang", "triton_mrope_fused", sglang_mrope, takes_tables=True, note=_ALONE,
           not_run=_SLOW),
    Engine("liger-kernel", "LigerRopeFunction", liger, takes_tables=True, note=_NOTE,
           not_run=_SLOW),
]  # fmt: skip
