"""What only a GPU can show of its kernel: streams, graphs, memory, launches, sizes."""

import math

import pytest
from support.targets import truth
from support.torch_op import same

from rope_xp import RoPE
from rope_xp._dispatch.kernels import Kernels

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rope_xp_backends.torch import gpu  # noqa: E402  # it needs torch

pytestmark = [
    pytest.mark.usefixtures("_by_the_kernel"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
]
ROPE = RoPE()


def sample(*shape):
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def layer(tokens=512):
    positions = torch.arange(tokens, device="cuda") + 1_000_000
    return *(sample(1, tokens, n, 128) for n in (32, 8)), positions


# torch says so of the mode, once, whatever it finds.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.unsanitized
def test_a_call_is_one_launch_that_nothing_waits_for():
    activities = [torch.profiler.ProfilerActivity.CUDA]
    q, k, positions = layer()
    for call in (
        lambda: ROPE.apply(q, k, positions),
        lambda: ROPE.apply(q, k, positions, out=(q, k)),
        lambda: ROPE.apply(q[:, :1], k[:, :1], positions[:1]),
    ):
        call()
        torch.cuda.synchronize()
        # Without acc_events torch warns that a next cycle, which there is not, would clear events.
        with torch.profiler.profile(activities=activities, acc_events=True) as seen:
            try:
                torch.cuda.set_sync_debug_mode("error")
                call()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        assert len(kernels) == 1, kernels


@pytest.mark.unsanitized
def test_a_call_allocates_the_memory_of_its_results_alone():
    q, k, positions = layer()
    ROPE.apply(q, k, positions)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ROPE.apply(q, k, positions, out=(q, k))
    assert torch.cuda.max_memory_allocated() == before
    results = ROPE.apply(q, k, positions)
    assert torch.cuda.max_memory_allocated() == before + sum(x.nbytes for x in results)


def test_calls_on_two_streams_have_their_own_results():
    inputs = [layer(4096), layer(4096)]
    expected = [truth(ROPE.apply, *x) for x in inputs]
    ROPE.apply(*layer())  # compiles
    streams, results = [torch.cuda.Stream(), torch.cuda.Stream()], []
    torch.cuda.synchronize()
    for _ in range(10):
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                results.append(ROPE.apply(*x))
    torch.cuda.synchronize()
    for i, got in enumerate(results):
        same(got, expected[i % 2])


@pytest.mark.unsanitized
def test_replayed_graphs_equal_plain_calls(monkeypatch):
    """Also where it is the first to need a kernel: that of calls in place is loaded within."""
    monkeypatch.setattr(gpu, "KERNELS", Kernels("triton", gpu._load_compiler))
    q, k, positions = layer()
    ROPE.apply(q, k, positions)  # brings the tables to the device
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new = ROPE.apply(q, k, positions)
        ROPE.apply(q, k, positions, out=(q, k))
    for shift in (0, 70_000, 1 << 30):
        for x in (q, k):
            x.copy_(sample(*x.shape) + shift % 7)
        positions.copy_(torch.arange(512, device="cuda") + shift)
        expected = truth(ROPE.apply, q, k, positions)
        graph.replay()
        same(new, expected)
        same((q, k), expected)


# The last rows lie beyond what signed offsets of 32 bits reach.
LARGE = {"bshd": (1, (1 << 17) + 3, 128, 128), "bhsd": (5, 33, (1 << 17) + 1, 128)}


@pytest.mark.unsanitized  # it would take minutes, and the memory of what was freed before
@pytest.mark.parametrize("axes", LARGE)
def test_more_than_2_to_the_31_elements_are_rotated(axes):
    count, token = math.prod(LARGE[axes]), axes.index("s")
    free, _ = torch.cuda.mem_get_info()
    if free < 2 * count + (1 << 30):
        pytest.skip(f"needs {2 * count + (1 << 30)} bytes of GPU memory, and {free} are free")
    x = torch.empty(LARGE[axes], dtype=torch.bfloat16, device="cuda").normal_()
    n = x.shape[token]
    picked = torch.tensor([0, 1, n // 2, n - 2, n - 1], device="cuda")
    expected = truth(ROPE.rotate, x.index_select(token, picked), picked, axes=axes)
    ROPE.rotate(x, axes=axes, out=x)
    same(x.index_select(token, picked), expected)


@pytest.mark.unsanitized
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_calls_equal_the_portable_path(mode):
    torch._dynamo.reset()
    compiled = torch.compile(ROPE.apply, fullgraph=True, mode=mode)
    for tokens in (512, 512, 512, 700):
        x = layer(tokens)
        same(compiled(*x), truth(ROPE.apply, *x))


def test_tensors_of_another_device_than_the_current_one_are_rotated():
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    x = [x.to("cuda:1") for x in layer()]
    same(ROPE.apply(*x), truth(ROPE.apply, *x))
    assert torch.cuda.current_device() == 0
