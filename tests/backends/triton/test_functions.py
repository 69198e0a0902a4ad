"""What patched functions of models launch, without a GPU: a stand-in kernel notes addresses."""

from typing import Any

import pytest

import rope_xp
from rope_xp._dispatch.kernels import Kernels

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rope_xp_backends.torch import gpu, op  # noqa: E402  # they need torch
from support.patched import replaced  # noqa: E402  # likewise


@pytest.mark.parametrize(
    ("kind", "form", "columns", "bound"),
    [
        ("llama", "halves", 8, True),
        ("gpt_oss", "pairs", 4, True),
        ("cohere", "neighbours", 8, False),
    ],
)
def test_tables_are_read_where_they_lie(
    kind: str, form: Any, columns: int, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of neighbours are copied, as the kernel wants columns side by side."""
    _, ours = replaced(kind, form)
    read: list[tuple[int, int]] = []
    long: list[None] = []

    def run(_grid: object, tensors: tuple[torch.Tensor, ...], _numbers: object) -> None:
        read.append((tensors[4].data_ptr(), tensors[5].data_ptr()))

    def rotate(*arguments: Any) -> Any:
        long.append(None)
        return gpu.rotate_on_gpu(*arguments)

    monkeypatch.setattr(gpu, "DEVICES", {"cpu"})
    monkeypatch.setattr(gpu, "KERNELS", Kernels("triton", lambda: lambda _: run))
    monkeypatch.setitem(op.RUNS, "cpu", rotate)
    q, k = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)
    with rope_xp.use_path("triton"), torch.inference_mode():
        for call in range(4):
            cos, sin = torch.rand(2, 1, 3, columns)
            ours(q, k, cos, sin)
            assert len(long) == (1 if bound else call + 1)
            assert len(read) == call + 1
            assert ((cos.data_ptr(), sin.data_ptr()) == read[-1]) is bound
