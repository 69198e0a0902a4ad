"""Forward and backward, as in training, compared with the usual formula."""

import rope_xp
from rope_xp._bench import clock, inputs

from .shared import common, contenders, rival_calls


class Training:
    """The gradients of q and k."""

    version = "1"
    params = ([*common.TORCH, *common.JAX], common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        case = common.case(target, dtype=dtype)
        self.target = case.target
        apply = rope_xp.RoPE(base=inputs.BASE, layout="half").apply
        usual = rival_calls.usual(rival_calls.setting(case))
        self.ours, self.usual = (
            contenders.forward_and_backward(case.target, function, case[1:3], case.positions)
            for function in (lambda arrays, positions: apply(*arrays, positions), usual)
        )
        clock.wait(self.target, self.ours())

    def time_gradients(self, target: str, dtype: str) -> None:
        clock.wait(self.target, self.ours())

    def track_time_over_usual(self, target: str, dtype: str) -> float:
        times = clock.best_seconds(self.target, common.REPEAT, self.ours, self.usual)
        return common.over(*times)
