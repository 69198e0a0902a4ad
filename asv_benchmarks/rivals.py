"""The time of a call over that of what users run today. Below 1, rope_xp is the faster."""

from rope_xp._bench import clock

from .shared import common, contenders, rival_calls


class _Prefill:
    """4096 tokens into new arrays, in the layout that the rival rotates."""

    rival: str
    version = "1"
    params = (common.TARGETS, common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        layout = rival_calls.RIVALS[self.rival].layouts[0]
        with common.skipping():
            self.target, *self.calls = contenders.pair(
                target, layout, dtype, "new", self.rival, common.TOKENS
            )

    def track_time_over(self, target: str, dtype: str) -> float:
        return common.over(*clock.best_seconds(self.target, common.REPEAT, *self.calls))


class Usual(_Prefill):
    rival = "usual"


class TorchCompile(_Prefill):
    rival = "torch_compile"
    params = (common.TORCH, common.DTYPES)


class RotaryEmbeddingTorch(_Prefill):
    rival = "rotary_embedding_torch"
    params = (common.TORCH, common.DTYPES)


class TorchOnnx(_Prefill):
    rival = "torch_onnx"
    params = (common.TORCH, common.DTYPES)


class OnnxRuntime(_Prefill):
    rival = "onnxruntime"
    params = (["numpy:cpu"], ["float32"])


class Engine:
    """In place, compared with an operator in C++ as engines write them, given cos and sin."""

    version = "1"
    params = (["torch:cpu"], common.DTYPES, [1, 128, 512, common.TOKENS])
    param_names = ("target", "dtype", "tokens")
    timeout = 300

    def setup(self, target: str, dtype: str, tokens: int) -> None:
        with common.skipping():
            self.target, *self.calls = contenders.pair(
                target, "half", dtype, "in place", "engine", tokens
            )

    def track_time_over(self, target: str, dtype: str, tokens: int) -> float:
        return common.over(*clock.best_seconds(self.target, common.REPEAT, *self.calls))


class _Decode:
    """One token at position 5000: the time that the host spends."""

    rival: str
    version = "1"
    params = (common.TARGETS,)
    param_names = ("target",)

    def setup(self, target: str) -> None:
        with common.skipping():
            self.target, *self.calls = contenders.pair(
                target, "half", "float32", "new", self.rival, 1, common.POSITION
            )

    def track_time_over(self, target: str) -> float:
        times = (common.best_microseconds(self.target, c, *common.LOOPS) for c in self.calls)
        return common.over(*times)


class UsualDecode(_Decode):
    """Which computes its angles once for q and k; jitted in jax."""

    rival = "usual"


class TransformersDecode(_Decode):
    rival = "transformers"
    params = (common.TORCH,)
