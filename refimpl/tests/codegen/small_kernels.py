"""Small kernels, each about one thing, with inputs: what the levels are compared on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl.codegen.emulator import POINTER_TYPES
from refimpl.codegen.kernel import Kernel, Parameter

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\n\n"


def make_kernel(name: str, parameters: str, body: str, helpers: str = "") -> Kernel:
    """`parameters` as "x:*fp32 n:i32 BLOCK:constexpr"; `helpers` are whole @triton.jit functions."""
    pairs = [part.split(":") for part in parameters.split()]
    signature = ", ".join(p + (": tl.constexpr" if kind == "constexpr" else "") for p, kind in pairs)
    helpers = textwrap.dedent(helpers).strip() + "\n\n\n" if helpers else ""
    text = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    source = f"{HEAD}{helpers}@triton.jit\ndef {name}({signature}):\n{text}\n"
    return Kernel(name, source, tuple(Parameter(p, kind) for p, kind in pairs))


@dataclass(frozen=True)
class KernelCase:
    """A kernel and one launch of it. `rtol` 0: the levels must agree to the bit."""

    kernel: Kernel
    grid: tuple[int, ...]
    make: Callable[[], Sequence[torch.Tensor | int | float]]  # new arguments
    constants: Mapping[str, Any]
    rtol: float = 0.0

    @property
    def name(self) -> str:
        return self.kernel.name


_FLOAT_IO = "x:*fp32 y:*fp32 o:*fp32 B:constexpr"
_LOADS = "i = tl.arange(0, B)\na = tl.load(x + i)\nb = tl.load(y + i)\n"


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def floats(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers, with the special ones at the front."""
    drawn = torch.randn(count, generator=_seeded(seed)) * 3
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e30, -1e-30, 0.5, 1.5, 2.5]
    )
    drawn[: min(count, 12)] = special.roll(seed)[: min(count, 12)]
    return drawn.to(dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=_seeded(seed)).to(dtype)


def integers(
    count: int, dtype: torch.dtype = torch.int32, low: int = -100, high: int = 100, seed: int = 0
) -> torch.Tensor:
    return torch.randint(low, high, (count,), generator=_seeded(seed)).to(dtype)


def _elementwise(name: str, expression: str, rtol: float = 0.0, dtype: str = "fp32", make: Any = None) -> KernelCase:
    parameters = f"x:*{dtype} y:*{dtype} o:*{dtype} B:constexpr"
    body = f"{_LOADS}tl.store(o + i, {expression})"
    torch_type = {
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "i32": torch.int32,
        "i64": torch.int64,
    }
    kind = torch_type[dtype]

    def arguments() -> Sequence[torch.Tensor]:
        if make is not None:
            x, y = make()
        elif kind.is_floating_point:
            x, y = floats(64, kind), floats(64, kind, seed=1)
        else:
            x, y = integers(64, kind), integers(64, kind, seed=1)
        return [x, y, torch.zeros_like(x)]

    return KernelCase(make_kernel(name, parameters, body), (1,), arguments, {"B": 64}, rtol)


def _unit() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(64, generator=_seeded()) * 1.6 - 0.8, torch.rand(64, generator=_seeded(1)) * 4 + 0.2


POINTWISE = [
    _elementwise("arithmetic", "a * b + a / b - (a + 2.5) * 0.1"),
    _elementwise("arithmetic_bf16", "(a * b + a) - b * 0.1", dtype="bf16"),
    _elementwise("arithmetic_fp16", "(a * b + a) - b * 0.1", dtype="fp16"),
    _elementwise("division_fp16", "a / b", dtype="fp16"),
    _elementwise("extrema", "tl.maximum(a, b) + tl.minimum(a, 1.0)"),
    _elementwise("extrema_with_nan", "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)"),
    _elementwise("clamped", "tl.clamp(a, -1.0, 1.5)"),
    _elementwise("integer_division", "a // (b | 1) + a % (b | 1)", dtype="i32"),
    _elementwise("division_by_zero", "a // (b // 200) + a % (b // 200)", dtype="i32"),
    _elementwise("bits", "((a & b) | (a ^ 5)) + (~a >> 2) - (b << 3)", dtype="i64"),
    _elementwise("high_bits", "tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int32)", dtype="i32"),
    _elementwise(
        "high_bits_64",
        "tl.umulhi((a * 9123456789).to(tl.uint64), (b * 1234567).to(tl.uint64)).to(tl.int64)",
        dtype="i64",
    ),
    _elementwise("unsigned", "((a.to(tl.uint32) // 7) % 1000 + (a.to(tl.uint32) >> 3)).to(tl.int32)", dtype="i32"),
    _elementwise("saturated", "(a * 1e9).to(tl.int32).to(tl.float32) + (b * 1e20).to(tl.int64).to(tl.float32)"),
    _elementwise("narrowed", "a.to(tl.bfloat16).to(tl.float32) + b.to(tl.float16).to(tl.float32)"),
    _elementwise("reinterpreted", "(a.to(tl.int32, bitcast=True) ^ 1).to(tl.float32, bitcast=True)"),
    _elementwise("chosen", "tl.where((a > b) & (a == a), a, b) + tl.where(a > 0, 1, 0)"),
    _elementwise("fused", "tl.fma(a, b, a)"),
    _elementwise("rounded", "tl.floor(a) + tl.ceil(b) + tl.abs(a)"),
    _elementwise(
        "exponentials", "tl.exp(a) + tl.exp2(b) + tl.log(b) + tl.log2(b) + tl.sqrt(b) + tl.rsqrt(b)", 3e-6, make=_unit
    ),
    _elementwise("circular", "tl.sin(a) + tl.cos(b) + tl.erf(a) + tl.sigmoid(b)", 3e-6, make=_unit),
    _elementwise("library", "libdevice.tanh(a) + libdevice.expm1(a) + libdevice.pow(b, a)", 3e-6, make=_unit),
    _elementwise(
        "library_exact", "libdevice.trunc(a) + libdevice.rint(b) + libdevice.copysign(b, a) + libdevice.signbit(a)"
    ),
    _elementwise("library_tests", "(libdevice.isnan(a) + libdevice.isinf(b) * 2).to(tl.float32)"),
]

_ROWS = "x:*fp32 o:*fp32 N:constexpr M:constexpr"
_TILE = "r = tl.arange(0, N)\nc = tl.arange(0, M)\nv = tl.load(x + r[:, None] * M + c[None, :])\n"


def _tile(
    name: str,
    body: str,
    out: Callable[[], torch.Tensor],
    rtol: float = 0.0,
    x: Any = None,
    helpers: str = "",
    kind: str = "fp32",
) -> KernelCase:
    parameters = f"x:*{kind} o:{POINTER_TYPES[out().dtype]} N:constexpr M:constexpr"
    if "out = " in body:
        body += "\ntl.store(o + r[:, None] * M + c[None, :], out)"
    make = x or (lambda: torch.randint(-50, 50, (8, 16), generator=_seeded()).to(torch.float32))
    return KernelCase(
        make_kernel(name, parameters, _TILE + textwrap.dedent(body), helpers),
        (1,),
        lambda: [make(), out()],
        {"N": 8, "M": 16},
        rtol,
    )


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.zeros(shape, dtype=dtype)


_WELFORD = """
@triton.jit
def combine(mean_a, weight_a, mean_b, weight_b):
    weight = weight_a + weight_b
    return (mean_a * weight_a + mean_b * weight_b) / weight, weight
"""
_AFFINE = """
@triton.jit
def compose(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2
"""

BLOCKS = [
    _tile("row_sums", "tl.store(o + r, tl.sum(v, axis=1))", _zeros(8)),
    _tile("column_maxima", "tl.store(o + c, tl.max(v, axis=0) - tl.min(v, axis=0))", _zeros(16)),
    _tile("whole_sum", "tl.store(o, tl.sum(v))", _zeros(1)),
    _tile(
        "first_of_equals",
        "tl.store(o + r, tl.argmax(tl.floor(v / 20.0), axis=1) + 100 * tl.argmin(v, axis=1))",
        _zeros(8, dtype=torch.int32),
    ),
    _tile("with_indices", "m, i = tl.max(v, axis=1, return_indices=True)\ntl.store(o + r, m + i)", _zeros(8)),
    _tile("parity", "tl.store(o + r, tl.xor_sum(v.to(tl.int32), axis=1))", _zeros(8, dtype=torch.int32)),
    _tile(
        "own_reduction",
        "w = tl.full((N, M), 1.0, tl.float32)\nm, n = tl.reduce((v, w), 1, combine)\ntl.store(o + r, m * n)",
        _zeros(8),
        1e-5,
        helpers=_WELFORD,
    ),
    _tile(
        "own_scan",
        "a = tl.full((N, M), 2.0, tl.float32)\ns, t = tl.associative_scan((a, v), 1, compose)\nout = t",
        _zeros(8, 16),
        0.0,
        helpers=_AFFINE,
    ),
    _tile(
        "own_scan_reversed",
        "a = tl.full((N, M), 2.0, tl.float32)\ns, t = tl.associative_scan((a, v), 1, compose, reverse=True)\nout = t",
        _zeros(8, 16),
        0.0,
        helpers=_AFFINE,
    ),
    _tile("running_sums", "out = tl.cumsum(v, axis=1) + tl.cumsum(v, axis=0, reverse=True)", _zeros(8, 16)),
    _tile("ordered", "out = tl.sort(v, descending=True)", _zeros(8, 16)),
    _tile("transposed", "tl.store(o + c[:, None] * N + r[None, :], tl.trans(v))", _zeros(16, 8)),
    _tile(
        "joined",
        "a, b = tl.split(tl.reshape(v, (N, M // 2, 2)))\nj = tl.join(b, a)\nout = tl.reshape(j, (N, M))",
        _zeros(8, 16),
    ),
    _tile(
        "permuted",
        "p = tl.permute(tl.reshape(v, (N, 4, M // 4)), (1, 0, 2))\nout = tl.reshape(p, (N, M))",
        _zeros(8, 16),
    ),
    _tile(
        "widened",
        "b = tl.broadcast_to(tl.sum(v, axis=1)[:, None], (N, M))\nout = b + tl.expand_dims(c, 0)",
        _zeros(8, 16),
    ),
    _tile(
        "half_sums",
        "tl.store(o + r, tl.sum(v, axis=1))",
        _zeros(8, dtype=torch.bfloat16),
        x=lambda: normal(8, 16, dtype=torch.bfloat16),
        kind="bf16",
    ),
]

_SOFTMAX = make_kernel(
    "softmax_rows", "x:*fp32 o:*fp32 n:i32 stride:i32 B:constexpr",
    """
    row = tl.program_id(0)
    c = tl.arange(0, B)
    mask = c < n
    v = tl.load(x + row * stride + c, mask=mask, other=float("-inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(o + row * n + c, e / tl.sum(e, axis=0), mask=mask)
    """,
)  # fmt: skip
_MATMUL = make_kernel(
    "matmul_tiles", "a:*fp16 b:*fp16 c:*fp32 M:i32 N:i32 K:i32 BM:constexpr BN:constexpr BK:constexpr",
    """
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        left = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        right = tl.load(b + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc += tl.dot(left, right)
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))
    """,
)  # fmt: skip
_RANDOM = make_kernel(
    "random_numbers", "o:*fp32 p:*i64 seed:i64 B:constexpr",
    """
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.rand(seed, i))
    u, v, w, z = tl.randint4x(seed, i.to(tl.int64) + 8589934592)
    tl.store(p + i, u.to(tl.int64) + v.to(tl.int64) * 3 + w.to(tl.int64) + z.to(tl.int64))
    """,
)  # fmt: skip
_NORMALS = make_kernel(
    "normal_numbers", "o:*fp32 seed:i64 B:constexpr",
    "i = tl.arange(0, B)\ntl.store(o + i, tl.randn(seed, i))",
)  # fmt: skip
_HISTOGRAM = make_kernel(
    "counted", "x:*i32 o:*i32 n:i32 B:constexpr",
    """
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(o + v, 1, mask=i < n)
    """,
)  # fmt: skip
_ATOMICS = make_kernel(
    "atomics", "x:*i32 o:*i32 B:constexpr",
    """
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + i)
    tl.atomic_max(o + 0, tl.max(v, axis=0))
    tl.atomic_min(o + 1, tl.min(v, axis=0))
    tl.atomic_or(o + 2, tl.sum(v, axis=0) & 255)
    tl.atomic_xchg(o + 3, 7)
    tl.atomic_cas(o + 4, 0, 5)
    old = tl.atomic_add(o + 5, 1)
    tl.atomic_add(o + 8 + old, 1)
    """,
)  # fmt: skip
_BRANCHES = make_kernel(
    "branches", "x:*fp32 o:*fp32 n:i32",
    """
    pid = tl.program_id(0)
    v = tl.load(x + pid)
    if pid % 2 == 0 and v > 0:
        total = v * 2
    else:
        total = v - 1
    steps = pid % 3
    while steps > 0:
        total += 10
        steps -= 1
    for i in range(pid % 4):
        total += i
    tl.store(o + pid, total)
    """,
)  # fmt: skip
_BOOLS = make_kernel(
    "bools", "x:*i1 y:*i1 o:*i1 flag:i1 B:constexpr",
    """
    i = tl.arange(0, B)
    a = tl.load(x + i)
    b = tl.load(y + i).to(tl.int1)
    tl.store(o + i, (a & ~b) | (flag & b))
    """,
)  # fmt: skip
_GATHER = make_kernel(
    "gathered_rows", "t:*fp32 x:*i64 o:*fp32 n:i32 D:constexpr B:constexpr",
    """
    i = tl.program_id(0) * B + tl.arange(0, B)
    d = tl.arange(0, D)
    rows = tl.load(x + i, mask=i < n, other=0)
    v = tl.load(t + rows[:, None] * D + d[None, :], mask=(i < n)[:, None], other=0.0)
    tl.store(o + i[:, None] * D + d[None, :], v, mask=(i < n)[:, None])
    """,
)  # fmt: skip
_SCALARS = make_kernel(
    "scalar_types", "x:*fp16 o:*fp32 s:fp32 k:i64 B:constexpr",
    """
    i = tl.arange(0, B)
    v = tl.load(x + i)
    eps = 1e-3
    tl.store(o + i, (v * s + v * 0.1 + eps) * (k // 3) + (v * eps))
    """,
)  # fmt: skip
_PROMOTED = make_kernel(
    "promoted", "x:*i8 y:*i16 h:*fp16 b:*bf16 o:*fp32 B:constexpr",
    """
    i = tl.arange(0, B)
    a = tl.load(x + i)
    c = tl.load(y + i)
    f = tl.load(h + i)
    g = tl.load(b + i)
    tl.store(o + i, (a * 3 + c).to(tl.float32) + (f + g) + (a * f) + (c / a.to(tl.int16)) * 0)
    """,
)  # fmt: skip
_HELPED = make_kernel(
    "helped", "x:*fp32 o:*fp32 n:i32 B:constexpr",
    """
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(o + i, twice(v, 3), mask=i < n)
    """,
    """
    @triton.jit
    def once(v, k: tl.constexpr):
        return v * k


    @triton.jit
    def twice(v, k: tl.constexpr):
        return once(once(v, k), k)
    """,
)  # fmt: skip
_FLIPPED = make_kernel(
    "flipped_and_gathered", "x:*fp32 q:*i32 o:*fp32 B:constexpr",
    """
    i = tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(o + i, tl.flip(v, 0) + tl.gather(v, tl.load(q + i), 0))
    """,
)  # fmt: skip

PROGRAMS = [
    KernelCase(_SOFTMAX, (5,), lambda: [normal(5, 40)[:, :33], torch.zeros(5, 33), 33, 40], {"B": 64}, 3e-6),
    KernelCase(
        _MATMUL,
        (2, 3),
        lambda: [
            normal(30, 40, dtype=torch.float16),
            normal(40, 35, dtype=torch.float16, seed=1),
            torch.zeros(30, 35),
            30,
            35,
            40,
        ],
        {"BM": 16, "BN": 16, "BK": 16},
        1e-5,
    ),
    KernelCase(_RANDOM, (4,), lambda: [torch.zeros(128), torch.zeros(128, dtype=torch.int64), -12345678901], {"B": 32}),
    KernelCase(_NORMALS, (1,), lambda: [torch.zeros(64), 7], {"B": 64}, 1e-4),
    KernelCase(
        _HISTOGRAM, (4,), lambda: [integers(100, low=0, high=10), torch.zeros(10, dtype=torch.int32), 100], {"B": 32}
    ),
    KernelCase(_ATOMICS, (6,), lambda: [integers(96), torch.zeros(16, dtype=torch.int32)], {"B": 16}),
    KernelCase(_BRANCHES, (12,), lambda: [normal(12), torch.zeros(12), 12], {}),
    KernelCase(
        _BOOLS,
        (1,),
        lambda: [integers(16) > 0, integers(16, seed=1) > 0, torch.zeros(16, dtype=torch.bool), True],
        {"B": 16},
    ),
    KernelCase(
        _GATHER, (2,), lambda: [normal(9, 8), integers(11, torch.int64, 0, 9), torch.zeros(11, 8), 11], {"D": 8, "B": 8}
    ),
    KernelCase(_SCALARS, (1,), lambda: [normal(32, dtype=torch.float16), torch.zeros(32), 0.1, 7], {"B": 32}),
    KernelCase(
        _PROMOTED,
        (1,),
        lambda: [
            integers(32, torch.int8, 1, 9),
            integers(32, torch.int16, seed=1),
            normal(32, dtype=torch.float16),
            normal(32, dtype=torch.bfloat16, seed=2),
            torch.zeros(32),
        ],
        {"B": 32},
    ),
    KernelCase(_HELPED, (3,), lambda: [normal(40), torch.zeros(40), 40], {"B": 16}),
    KernelCase(_FLIPPED, (1,), lambda: [normal(16), integers(16, low=0, high=16), torch.zeros(16)], {"B": 16}),
]


def _vector(name: str, kinds: str, body: str, make: Callable[[], Sequence[Any]]) -> KernelCase:
    """Loads a vector `v` of 32 elements; `kinds` are those of input and output."""
    x, out = kinds.split()
    kernel = make_kernel(name, f"x:*{x} o:*{out} B:constexpr", f"i = tl.arange(0, B)\nv = tl.load(x + i)\n{body}")
    return KernelCase(kernel, (1,), make, {"B": 32})


def _from(values: torch.Tensor, dtype: torch.dtype, count: int = 32) -> Callable[[], Sequence[Any]]:
    return lambda: [values.clone(), torch.zeros(count, dtype=dtype)]


_WIDE = integers(32, torch.int64, 0, 2**62)
VECTORS = [
    _vector("bytes", "u8 i32", "tl.store(o + i, (v + 200).to(tl.int32) * 2 + (v // 3).to(tl.int32) - (v << 2).to(tl.int32))",
            _from(integers(32, torch.uint8, 0, 255), torch.int32)),
    _vector("unsigned_16", "u16 u16", "tl.store(o + i, v * 777 - 5)",
            _from(integers(32, torch.int32, 0, 65535).to(torch.uint16), torch.uint16)),
    _vector("unsigned_32", "u32 u32", "tl.store(o + i, (v * 40503 - 5) >> 3)",
            _from(integers(32, torch.int64, 0, 2**32 - 1).to(torch.uint32), torch.uint32)),
    _vector("unsigned_64", "u64 u64",
            "w = v * 12297829382473034411\nq = tl.where(w > 9223372036854775809, w // 7, w % 9)\ntl.store(o + i, q + (w >> 60))",
            _from(_WIDE.to(torch.uint64), torch.uint64)),
    _vector("doubles", "fp64 fp64", "tl.store(o + i, tl.fma(v, v, 1.0) * 0.1 + tl.sqrt(tl.abs(v)))",
            _from(floats(32, torch.float64), torch.float64)),
    _vector("running_halves", "fp16 fp16", "tl.store(o + i, tl.cumsum(v, 0))", _from(integers(32, torch.float16), torch.float16)),
    _vector("running_products", "bf16 fp32", "tl.store(o + i, tl.cumsum(v, 0) + tl.cumprod(tl.where(v > 0, 1.0, -1.0), 0))",
            _from(integers(32, torch.bfloat16), torch.float32)),
    _vector("atomic_halves", "fp16 fp16", "tl.atomic_add(o + i % 4, v)",
            _from(normal(32, dtype=torch.float16), torch.float16, 4)),
    _vector("atomic_extrema", "fp32 fp32", "tl.atomic_max(o + i % 4, v)\ntl.atomic_min(o + 4 + i % 4, v)",
            _from(normal(32), torch.float32, 8)),
    _vector("concatenated", "fp32 fp32", "tl.store(o + tl.arange(0, 2 * B), tl.cat(v, v * 2, can_reorder=True))",
            _from(normal(32), torch.float32, 64)),
    _vector("binned", "i32 i32", "tl.store(o + tl.arange(0, 8), tl.histogram(v, 8))",
            _from(integers(32, low=0, high=8), torch.int32, 8)),
    _vector("interleaved", "fp32 fp32", "tl.store(o + tl.arange(0, 2 * B), tl.interleave(v, -v))",
            _from(normal(32), torch.float32, 64)),
    _vector("narrow_sums", "i8 i8", "tl.store(o + i, v * 3 + tl.sum(v, 0).to(tl.int8) + tl.max(v, 0).to(tl.int8))",
            _from(integers(32, torch.int8), torch.int8)),
    _vector("counted_truths", "fp32 i32", "tl.store(o, tl.sum((v > 0).to(tl.int32), 0) + tl.sum(v > 1, 0))",
            _from(normal(32), torch.int32, 1)),
    _vector("remainders", "fp32 fp32", "tl.store(o + i, v % 0.7 + (-v))", _from(normal(32), torch.float32)),
    _vector("library_pairs", "fp32 fp32", "tl.store(o + i, libdevice.ldexp(v, i - 3) + libdevice.nextafter(v, v * 2))",
            _from(normal(32), torch.float32)),
    _vector("narrow_integers", "fp32 i32", "w = v * 1e5\ntl.store(o + i, w.to(tl.int8).to(tl.int32) + w.to(tl.int16))",
            _from(floats(32), torch.int32)),
    _vector("counting_while", "fp32 fp32", "s = v * 0\nk = 0\nwhile k < 5:\n    s += v * k\n    k += 1\ntl.store(o + i, s)",
            _from(normal(32), torch.float32)),
]  # fmt: skip

CASES = [*POINTWISE, *BLOCKS, *PROGRAMS, *VECTORS]
