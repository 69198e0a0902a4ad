"""The kernel for GPUs where there is none, compiled for GPUs by name."""

import re
import subprocess
from collections import Counter
from itertools import cycle, product

import pytest
from support.equality import LAYOUTS
from support.targets import ALL_FLOATS

import rope_xp
from rope_xp import QKNorm, RoPE
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.memory import ACCESS

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402  # it needs triton

pytestmark = pytest.mark.slow
CUDA = [GPUTarget("cuda", capability, 32) for capability in (80, 90, 100, 120)]
TARGETS = [*CUDA, GPUTarget("hip", "gfx942", 64)]
# Triton 3.6 has an assembler, of CUDA 12.9, that fuses pairs of floats on Blackwell though told not
# to, which is within the promised 2 ulp. And 3.9 one that takes 86 registers for the last eighth of
# a head: five programs fit, not six.
VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
REGISTERS = 88 if VERSION >= (3, 9) else 80  # of a thread, at most
WIDEST = ("v4.b32", "v2.b64", "dwordx4")
TILE = re.compile(r"tensor<(?!1x1x)\d+x\d+x\d+x!tt\.ptr<\w+>, (#\w+)>")


def count_accesses(variant, target, path):
    """Return loads and stores by their width; check registers, spills, fusing and order."""
    from rope_xp_backends.gpu import triton_compile

    kernel = triton_compile.compile_kernel(variant, target)
    check_that_rows_are_read_before_they_are_written(variant, kernel.asm["ttgir"])
    if target.backend == "hip":
        code = kernel.asm["amdgcn"]
        unused = re.findall(r"(?:\.[sv]gpr_spill_count|; ScratchSize): +(\d+)", code)
        assert len(unused) >= 3
        assert set(unused) == {"0"}
        assert not re.search(r"v_(pk_)?(fma|mad|mac|fmac)\w*_f(32|64)", code)
        found = [rf"(?:global|buffer|flat)_{kind}_(\w+)" for kind in ("load", "store")]
    else:
        check_registers(variant, kernel.asm["cubin"], path)
        if target.arch < 100 or VERSION > (3, 6):
            assert not re.search(r"\b[DF]FMA", kernel.asm["sass"])
        # No load may wait for one that waits for positions. Assemblers like to move them. Nor for
        # a division, which one axis of rows and constant numbers of heads do not take.
        before, barrier, after = kernel.asm["sass"].partition("BAR.SYNC")
        assert variant.batched or "MUFU.RCP" not in before
        assert barrier
        assert "LDG." in before
        assert "STG." not in before
        assert not re.search(r"\bLDG\.E(?:\.\w+)*\.EF", after)
        code = kernel.asm["ptx"]
        found = [rf"{kind}\.global[\w.:]*?\.(v\d\.b\d+|b\d+)" for kind in ("ld", "st")]
    return [Counter(re.findall(pattern, code)) for pattern in found]


def check_registers(variant, cubin, path):
    (path / "kernel.cubin").write_bytes(cubin)
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path / "kernel.cubin")]
    usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Where rows lie askew there are as many more accesses in flight as each is narrower.
    wide = variant.unit * FLOATS[variant.dtype] == ACCESS
    most = 96 if variant.normalized else REGISTERS  # five programs fit, not six
    match = re.search(r"REG:(\d+) STACK:0 SHARED:\d+ LOCAL:0 ", usage)
    assert match, usage
    assert int(match[1]) <= (most if wide else 128)


def check_that_rows_are_read_before_they_are_written(variant, code):
    """Check what the interpreter cannot show: no thread reads what another has written."""
    lines = {"load": [], "store": [], "barrier": []}
    maps = set()
    for number, line in enumerate(code.splitlines()):
        tile = TILE.search(line)
        for operation in ("load", "store"):
            if tile and f"tt.{operation} " in line:
                lines[operation].append(number)
                maps.add(tile[1])
        if re.search(r"\bt*g(pu)?\.barrier", line):
            lines["barrier"].append(number)
    whole = variant.head_dim == 2 * variant.pairs
    # Those of components beside the slice come first, those of a norm's weights last.
    of_rows = 2 - variant.interleaved_in + (not whole and not variant.q_in_place)
    last = lines["load"][:of_rows][-1]
    assert any(last < n < min(lines["store"]) for n in lines["barrier"]), lines
    if variant.interleaved_in == variant.interleaved_out and whole:
        assert len(maps) == 1, maps


def check(variant, target, path):
    loads, stores = count_accesses(variant, target, path)
    wide_loads, wide_stores = (sum(found[name] for name in WIDEST) for found in (loads, stores))
    assert wide_stores == stores.total() > 0, stores
    assert wide_loads >= wide_stores  # besides those, positions and tables are loaded


def heads(n, d):
    return torch.empty(1, 16, n, d, dtype=torch.bfloat16)


def whole(layout, dtype):
    return lambda: RoPE(layout=layout).apply(Q.to(dtype), K.to(dtype), AT)


def normalized(layout, weights, dtype=torch.bfloat16, d=128, **part):
    norm, rope = QKNorm(*weights, offset=1.0), RoPE(layout=layout, **part)
    return lambda: rope.apply(heads(32, d).to(dtype), heads(8, d).to(dtype), AT, norm=norm)


def sliced(x, **part):
    return [
        lambda: RoPE(**part).rotate(x, AT),
        lambda: RoPE(**part).unrotate(x, AT.int(), out=x),
        lambda: RoPE(**part).rotate(x.float(), AT),
    ]


AT, Q, K = torch.arange(16), heads(32, 128), heads(8, 128)
ALIGNED, ASKEW = torch.ones(2, 128), torch.ones(257, dtype=torch.bfloat16)[1:].view(2, 128)
LAST = {"rotary_dim": 64, "rotary_offset": -64}
ONE_TARGET = [
    *(whole(layout, getattr(torch, dtype)) for layout, dtype in product(LAYOUTS, ALL_FLOATS)),
    *(normalized(layout, weights) for layout in LAYOUTS for weights in (ALIGNED, ASKEW)),
    *(normalized(layout, ALIGNED, torch.float32) for layout in LAYOUTS),
    *(normalized(layout, (), **LAST) for layout in LAYOUTS),
]
SLICES = [
    *sliced(heads(32, 80), layout="half"),
    *sliced(heads(32, 96)),
    *sliced(heads(16, 256), layout="half", rotary_dim=64),  # the first quarter
    *sliced(heads(64, 512), **LAST),
    *sliced(heads(16, 192), layout="interleaved_to_half", **LAST),
]
HALF, NORM, OWN = RoPE(layout="half"), {"norm": QKNorm(*ALIGNED)}, {"k_positions": AT + 1}
COS, SIN = HALF.cos_sin(AT, 128)
FLAT = {"slots": AT.int()[None], "out": (Q, torch.empty(64, 8, 128).bfloat16())}
PAGED = {"slots": AT.int()[None], "out": (None, torch.empty(4, 16, 8, 128).bfloat16())}
EVERY_TARGET = [
    lambda: HALF.apply(Q, K, AT, **FLAT),
    lambda: HALF.apply(Q, K, AT, **PAGED, **NORM),
    lambda: HALF.apply(Q, K, AT, **OWN),
    lambda: HALF.apply(Q, K, AT, **PAGED, **OWN, **NORM),
    lambda: HALF.with_tables(COS.bfloat16(), SIN.bfloat16()).apply(Q, K),
    lambda: rope_xp.apply_angles(Q, K, COS, k_angles=SIN, out=(Q, K), layout="half"),
]
CASES = [*zip(cycle(TARGETS), ONE_TARGET, strict=False), *product(TARGETS, EVERY_TARGET)]
CASES += [*zip(cycle([CUDA[1], CUDA[1], TARGETS[-1]]), SLICES, strict=False)]


@pytest.mark.parametrize(("target", "call"), CASES)
def test_kernels_access_16_bytes_spill_nothing_and_fuse_nothing(target, call, planned, tmp_path):
    call()
    (variant,) = planned
    check(variant, target, tmp_path)


def test_offsets_have_64_bits_where_elements_need_them(planned, tmp_path):
    for batch in ((1 << 14) - 1, 1 << 14):
        # Nothing is read or written, so its pages are never touched.
        x = torch.empty(batch, 1 << 10, 1, 128, dtype=torch.bfloat16)
        RoPE(layout="half").rotate(x, out=x)
    assert [variant.int64_offsets for variant in planned] == [False, True]
    check(planned[1], CUDA[1], tmp_path)


@pytest.mark.parametrize(("start", "width"), [(1, "b16"), (2, "b32"), (4, "v2.b32")])
def test_accesses_are_no_wider_than_their_address_allows(start, width, planned, tmp_path):
    """A GPU stops at the first that is."""
    memory = torch.empty(start + 16 * 8 * 136, dtype=torch.bfloat16)
    x = memory[start:].unflatten(0, (16, 8, 136))[..., :128]
    RoPE(layout="half").rotate(x, torch.arange(16), out=x)
    _, stores = count_accesses(planned[0], CUDA[1], tmp_path)
    assert set(stores) == {width}


@pytest.mark.parametrize(("layout", "d"), [*product(("half", "interleaved"), (64, 96, 192, 256))])
def test_a_norm_takes_no_barriers_of_its_own(layout, d, planned):
    """Rows whose layout is that of weights would all pass through shared memory."""
    from rope_xp_backends.gpu import triton_compile

    normalized(layout, torch.ones(2, d), d=d)()
    RoPE(layout=layout).apply(heads(32, d), heads(8, d), AT)
    kernels = [triton_compile.compile_kernel(variant, CUDA[1]) for variant in planned]
    barriers = [kernel.asm["sass"].count("BAR.SYNC") for kernel in kernels]
    assert barriers[0] == barriers[1]


def test_weights_are_read_as_their_address_allows(planned):
    from rope_xp_backends.gpu import triton_compile

    normalized("half", ASKEW)()
    source = triton_compile.build_source(planned[0])
    assert source.attrs[(source.fn.arg_names.index("q_weight"),)] == [["tt.divisibility", 2]]
