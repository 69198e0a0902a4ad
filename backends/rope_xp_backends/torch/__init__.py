"""torch: its glue and its fast paths."""

from typing import Any

import torch

from rope_xp._core.versions import check_version

check_version("torch")

from . import calls  # noqa: E402  # an older version fails there without a reason
from .library import Torch  # noqa: E402  # an older version fails there without a reason


class _Plain(Torch):
    """The glue of plain tensors. What the entry does not need is imported by the first other call.

    That are operators and kernels of GPUs: 20 ms. By import statements, which torch.compile traces.
    """

    rotate_by_rope = staticmethod(calls.rotate_by_rope)
    rotate_by_tables = staticmethod(calls.rotate_by_tables)
    look_up_angles = staticmethod(calls.look_up_angles)
    accumulate_angles = staticmethod(calls.accumulate_angles)
    rotate_by_product = staticmethod(calls.rotate_by_product)

    def __init__(self) -> None:
        self.name = "torch"

    def __getattr__(self, name: str) -> Any:
        value: Any
        if name == "paths":
            from . import paths

            value = paths.PATHS
        elif name == "xp":
            import array_api_compat.torch as value  # 5 ms
        else:
            raise AttributeError(f"a backend of torch has no {name}")
        if not torch.compiler.is_dynamo_compiling():
            setattr(self, name, value)
        return value


BACKEND = _Plain()
