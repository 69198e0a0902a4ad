"""What tests of torch share."""

import pytest

from rope_xp import RoPE
from support.targets import INTERPRETED

torch = pytest.importorskip("torch")

TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])
POSITIONS = torch.tensor([0, 70_000, 1_000_000, -3, (1 << 31) - 1])
# backends/triton/test_kernel.py has bfloat16 of its own, as the interpreter does not round.
HALVES = [torch.float16] if INTERPRETED else [torch.float16, torch.bfloat16]


def sample(*shape, dtype=torch.float32, grad=False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return x.requires_grad_(grad)


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def rotate(x, positions=POSITIONS):
    return RoPE().rotate(x, positions)


def noting(graphs):
    """Return a backend of torch.compile that notes graphs, and runs them as they are."""
    return lambda graph, _: graphs.append(graph) or graph.forward


def recording(graphs):
    """Return a backend of torch.compile that notes what graphs call, and runs them as they are."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph, inputs):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
