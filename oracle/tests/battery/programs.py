"""The programs of the battery: small sources in which the dtype and the number of elements are left open.

`program_of(NAMES["softmax"], dtype=torch.bfloat16, size=1024)` fills them in. Values are drawn in float64 and rounded to the
dtype, so that float64 programs meet values with all their bits.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from oracle.program import Call, ComparePolicy, Program

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
WIDE_FLOATS = (torch.float32, torch.float64)

_SOURCE = """\
import torch
import torch.nn.functional as F


def inputs(call):
    R, N, D = {rows}, {size}, {dtype}
    randn = lambda *shape: torch.randn(shape, dtype=torch.float64)
    rand = lambda *shape: torch.rand(shape, dtype=torch.float64)
    args = [{arguments}]
    for at, arg in enumerate(args):
        if arg.dtype is torch.float64:
            args[at] = arg.to(D).requires_grad_({backward})
    return args, {{}}


{program}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A program with an open dtype and size.

    `arguments` are Python expressions of R (rows of 16), N (elements), D (the dtype), `randn(*shape)` and `rand(*shape)`;
    `body` is an expression of a, b, c ... (the arguments in their order), or the source of `program` itself.
    """

    name: str
    arguments: str
    body: str
    backward: bool = False
    is_module: bool = False
    dtypes: tuple[torch.dtype, ...] = FLOATS
    size: int = 1024  # where a subject does not ask for another
    calls: tuple[Call, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)


def program_of(template: Template, *, dtype: torch.dtype, size: int | None = None) -> Program:
    """The program of a template in one dtype; `size` is the number of elements of what it returns."""
    elements = template.size if size is None else size
    is_source = "def program" in template.body or "class program" in template.body
    names = ", ".join("abcdefgh"[: len(_top_level(template.arguments))])
    source = _SOURCE.format(
        rows=elements // 16,
        size=elements,
        dtype=dtype,
        arguments=template.arguments,
        backward=template.backward,
        program=textwrap.dedent(template.body) if is_source else f"def program({names}):\n    return {template.body}",
    )
    return Program(
        name=f"{template.name}-{str(dtype).removeprefix('torch.')}-{elements}",
        source=source,
        calls=template.calls or (Call(backward=template.backward),),
        is_module=template.is_module,
        policy=ComparePolicy(**template.policy),
    )


def _top_level(arguments: str) -> list[str]:
    """The comma separated expressions, commas in brackets left alone."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(arguments):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            found.append(arguments[start:at])
            start = at + 1
    return [text for text in (*found, arguments[start:]) if text.strip()]


def _template(name: str, arguments: str, body: str, **options: Any) -> Template:
    return Template(name=name, arguments=arguments, body=body, **options)


def _trained(name: str, arguments: str, body: str, **options: Any) -> Template:
    """The same with gradients of all float arguments."""
    return Template(name=name, arguments=arguments, body=body, backward=True, **options)


def _drawn(name: str, arguments: str, body: str, **options: Any) -> Template:
    """Two calls on the same values, with other draws."""
    return Template(name=name, arguments=arguments, body=body, calls=(Call(), Call()), **options)


def _drawn_and_trained(name: str, arguments: str, body: str, **options: Any) -> Template:
    calls = (Call(backward=True), Call(backward=True))
    return Template(name=name, arguments=arguments, body=body, backward=True, calls=calls, **options)


# Arithmetic on floats: each is right on every element, whatever order a compiler adds in.
ARITHMETIC = (
    _trained("mul", "randn(N), randn(N)", "a * b"),
    _trained("mul_add", "randn(N), randn(N), randn(N)", "a * b + c"),
    _trained("polynomial", "randn(N), randn(N), randn(N)", "((a * b + c) * a - b) * c"),
    _trained("div", "randn(N), rand(N) + 0.5", "a / b"),
    _trained("sigmoid", "randn(N)", "torch.sigmoid(a)"),
    _trained("tanh", "randn(N)", "torch.tanh(a)"),
    _trained("gelu", "randn(N)", "F.gelu(a)"),
    _trained("silu", "randn(N)", "F.silu(a)"),
    _trained("exp_log", "randn(N), rand(N) + 0.1", "torch.exp(a) + torch.log(b)"),
    _trained("sin_cos", "randn(N)", "torch.sin(a) * torch.cos(a)"),
    _trained("softplus", "randn(N)", "F.softplus(a)"),
    _trained("matmul", "randn(R, 64), randn(64, 16)", "a @ b"),
    _trained("linear_gelu", "randn(R, 32), randn(16, 32), randn(16)", "F.gelu(F.linear(a, b, c))"),
    _trained("chain", "randn(R, 32), randn(32, 32), randn(32, 16)", "(a @ b).relu() @ c"),
    _trained("attention", "randn(4, 16, 16), randn(4, 16, 16), randn(4, 16, 16)",
             "torch.softmax(a @ b.transpose(-1, -2) / 4, -1) @ c"),
    _trained("softmax", "randn(R, 16)", "torch.softmax(a, -1)"),
    _trained("log_softmax", "randn(R, 16)", "torch.log_softmax(a, -1)"),
    _trained("logsumexp", "randn(N, 16)", "torch.logsumexp(a, -1)", size=256),
    _trained("layer_norm", "randn(R, 16), randn(16), randn(16)", "F.layer_norm(a, (16,), b, c)"),
    _trained("rms_norm", "randn(R, 16), randn(16)", "F.rms_norm(a, (16,), b, 1e-5)"),
    _trained("group_norm", "randn(4, 8, 32), randn(8), randn(8)", "F.group_norm(a, 4, b, c)"),
    _trained("variance", "randn(N, 16) + 2", "torch.var(a, -1), torch.std(a, -1)", size=256),
    _trained("normalised", "randn(R, 16)", "(a - a.mean(-1, keepdim=True)) / a.std(-1, keepdim=True)"),
    _trained("row_sum", "randn(N, 32)", "a.sum(-1)", size=256),
    _trained("row_mean", "randn(N, 32)", "a.mean(-1)", size=256),
    _trained("norm", "randn(N, 32)", "torch.linalg.vector_norm(a, dim=-1)", size=256),
    _trained("cumsum", "randn(R, 16)", "torch.cumsum(a, -1)"),
    _trained("conv", "randn(1, 4, 16, 16), randn(4, 4, 3, 3)", "F.conv2d(a, b, padding=1)"),
    _trained("embedding_sum", "torch.randint(0, 50, (N, 8)), randn(50, 4)", "F.embedding(a, b).sum(1)", size=256),
    _trained("index_add", "randn(16, 4), torch.randint(0, 16, (N,)), randn(N, 4)", "a.index_add(0, b, c)", size=256),
    _trained("scatter_add", "randn(16), torch.randint(0, 16, (N,)), randn(N)", "a.scatter_add(0, b, c)", size=256),
    _trained("cross_entropy", "randn(R, 16), torch.randint(0, 16, (R,))", "F.cross_entropy(a, b, reduction='none')"),
    _trained("mean_loss", "randn(R, 16), torch.randint(0, 16, (R,))", "F.cross_entropy(a, b)"),
    _trained("mse_loss", "randn(N), randn(N)", "F.mse_loss(a, b)"),
    _trained("bce_loss", "randn(N), rand(N)", "F.binary_cross_entropy_with_logits(a, b)"),
    _trained("huber_loss", "randn(N), randn(N)", "F.huber_loss(a, b, reduction='none')"),
)  # fmt: skip

# Sums in which nearly everything cancels: a few elements keep few digits.
CANCELLING = (
    _template("cancelling_sum", "randn(N, 32)", "a.sum(-1) - a.flip(-1).cumsum(-1)[:, -1]", size=256),
    _template("square_root", "randn(N), randn(N)", """
        def program(a, b):
            c = a + 0.01 * b
            return torch.sqrt((a * a - 2 * a * c + c * c).clamp(min=0))
    """),
    _trained("difference", "randn(R, 32), randn(32, 16), randn(R, 32), randn(32, 16)", "a @ b - c @ d"),
)  # fmt: skip

# Results that jump: an index, an integer or a flag that hangs on a rounding in a few elements.
_NEAR_TIES = "(1 + torch.arange(N * 8).reshape(N, 8).remainder(2) * 0.5).double(), torch.finfo(D).eps * randn(N, 8)"
JUMPING = (
    _template("argmax", "randn(N, 8), randn(N, 8)", "(a * torch.softmax(b, -1)).argmax(-1)"),
    _template("nearly_tied_argmax", _NEAR_TIES, "(a * torch.softmax(a + b, -1)).argmax(-1)"),
    _template("floor_of_sums", "torch.randint(0, 9, (R, 7)).double() / 7, torch.randint(0, 9, (7, 16)).double()",
              "torch.floor(a @ b).long()"),
    _template("round_of_sums", "torch.randint(0, 9, (R, 7)).double() / 7 + 0.5 / 7, 1.0 + 0 * rand(7, 16)",
              "torch.round(a @ b).to(torch.int32)"),
    _template("mask", "randn(R, 32), randn(32, 16)", "(a @ b > 0.0), torch.where(a @ b > 0.0, 1.0, 2.0)"),
    _template("bucketize", "randn(R, 8), randn(8, 16)", "torch.bucketize((a @ b).float(), torch.linspace(-4, 4, 33))"),
    _template("searchsorted", "randn(N), randn(N)", "torch.searchsorted(torch.linspace(-4, 4, 65), (a * b).float())"),
    _template("python_floor", "torch.ones(7).double() / 7", "int(torch.floor(a.sum() * 3))"),
    _template("python_rest", "torch.ones(49).double() / 49", "float(a.sum() - 1)"),
    _template("sort_of_products", "randn(R, 16), randn(R, 16)", "torch.sort(a * b, -1).values"),
    _template("top_of_sums", "randn(R, 8), randn(8, 16)", "torch.topk(a @ b, 3).values"),
)  # fmt: skip

# Ties: eager promises no order among equal elements.
TIED = (
    _template("tied_sort", "torch.randint(0, 4, (R, 16)).double()", "torch.sort(a, -1)",
              policy={"index_outputs": {"output.indices": {"of": "args[0]", "dim": -1, "stable": False}},
                      "reason": "sort without stable=True promises no order among equal elements"}),
    _template("tied_argsort", "torch.randint(0, 4, (R, 16)).double()", "torch.argsort(a, -1)",
              policy={"index_outputs": {"output": {"of": "args[0]", "dim": -1, "stable": False}},
                      "reason": "argsort without stable=True promises no order among equal elements"}),
    _template("tied_topk", "torch.randint(0, 4, (R, 16)).double()", "torch.topk(a, 5)",
              policy={"index_outputs": {"output.indices": {"of": "args[0]", "dim": -1, "stable": False}},
                      "reason": "topk does not say which of equal elements it takes"}),
    _template("tied_kthvalue", "torch.randint(0, 4, (R, 16)).double()", "torch.kthvalue(a, 7)",
              policy={"index_outputs": {"output.indices": {"of": "args[0]", "dim": -1, "stable": False}},
                      "reason": "kthvalue does not say which of equal elements it takes"}),
)  # fmt: skip

# Programs whose results depend on random numbers. With an own stream they are the same in distribution only.
RANDOM = (
    _drawn("small_noise", "torch.linspace(-1, 1, N).double()", "a + 0.01 * torch.randn_like(a)", size=40_000),
    _drawn("noise_in_rows", "torch.linspace(-1, 1, N).double().reshape(-1, 40)", "a + 0.01 * torch.randn_like(a)",
              size=40_000),
    _drawn("scaled_uniform", "1 + torch.arange(N).remainder(3).double()", "torch.rand_like(a) * a", size=40_000),
    _drawn("uniform_rows", "torch.ones(N).double().reshape(-1, 40)", "torch.rand_like(a) * a", size=40_000),
    _drawn("bernoulli", "torch.linspace(0.05, 0.95, N).double()", "torch.bernoulli(a)", size=40_000),
    _drawn_and_trained("dropout", "torch.linspace(0.5, 2, N).double()", "F.dropout(a, 0.3)", size=40_000),
    _drawn_and_trained("dropout_of_linear", "randn(R, 16), randn(16, 16)", "F.dropout(a @ b, 0.5)", size=16_000),
    _drawn("normal", "torch.linspace(-1, 1, N).double()", "torch.normal(a, 1.0)", size=40_000),
    _drawn("two_draws", "torch.linspace(-1, 1, N).double()", "torch.rand_like(a) + a, torch.rand_like(a)",
              size=40_000),
)  # fmt: skip

# Nothing is left of these: eager has no digit right, or the range of the dtype is over.
WITHOUT_DIGITS = (
    _template("hilbert_inverse", "1.0 / (torch.arange(14)[:, None] + torch.arange(14) + 1).double()",
              "torch.linalg.inv(a)", dtypes=WIDE_FLOATS),
    _template("cancelled_products", "randn(R, 32), randn(32, 16)",
              "a @ b - ((a[:, :8] @ b[:8] + a[:, 8:16] @ b[8:16]) + (a[:, 16:24] @ b[16:24] + a[:, 24:] @ b[24:]))",
              dtypes=WIDE_FLOATS),
    _template("cancelled_sum", "randn(N, 33)", "a.sum(-1) - a.flip(-1).cumsum(-1)[:, -1]", size=256,
              dtypes=WIDE_FLOATS),
    _template("overflow", "200 + 100 * rand(N), 200 + 200 * rand(N)", "a * b", dtypes=(torch.float16,)),
    _template("overflowing_exp", "10 + 4 * rand(N)", "torch.exp(a)", dtypes=(torch.float16,)),
)  # fmt: skip

TO_FLOAT8 = tuple(
    _template(f"to_{name}", "randn(N), randn(N)", f"(a * b).to(torch.{name})",
              dtypes=(torch.float32, torch.bfloat16))
    for name in ("float8_e4m3fn", "float8_e5m2")
)  # fmt: skip

# Eager itself gives other values every time.
NOT_REPEATABLE = (
    _template("unfilled", "randn(N)", "torch.empty_like(a), a + 1"),
    _template("unfilled_rows", "randn(R, 16)", "torch.empty(a.shape, dtype=a.dtype)"),
    _template("clock", "randn(N)", """
        import time

        def program(a):
            return torch.full_like(a, time.perf_counter_ns() % 1000), a * 2
    """),
)  # fmt: skip

# Effects beside values: mutated arguments, aliases, strides, module state.
EFFECTS = (
    _template("add_in_place", "randn(R, 16), randn(R, 16)", """
        def program(a, b):
            a.add_(b)
            return a * 2
    """),
    _template("views", "randn(R, 16)", "a[1:], a.t(), a * 2"),
    _trained("two_results", "randn(R, 16), randn(16)", "a * b, a + b"),
    _trained("transposed", "randn(R, 16)", "(a * 2).t()"),
    _template("integers", "torch.randint(-99, 99, (N,)), torch.randint(1, 9, (N,))", "a // b, a + b, a > b",
              dtypes=(torch.int64,)),
    _template("complex_numbers", "torch.randn(N, dtype=D), torch.randn(N, dtype=D)", "a * b.conj()",
              dtypes=(torch.complex64, torch.complex128)),
    _template("python_numbers", "randn(N)", "(a.shape[0] * 2, float(a.abs().sum() > 1), bool(a[0] == a[0]), a + 1)"),
    Template(name="counter", arguments="randn(R, 16)", is_module=True, calls=(Call(), Call()), body="""
        class program(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, a):
                self.calls += 1
                return a * self.calls
    """),
    Template(name="running_mean", arguments="randn(R, 16)", is_module=True, calls=(Call(), Call()), body="""
        class program(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(16))

            def forward(self, a):
                self.mean.lerp_(a.mean(0).to(self.mean.dtype), 0.1)
                return a - self.mean.to(a.dtype)
    """),
)  # fmt: skip

NAMES = {
    template.name: template
    for group in (
        ARITHMETIC, CANCELLING, JUMPING, TIED, RANDOM, WITHOUT_DIGITS, TO_FLOAT8, NOT_REPEATABLE, EFFECTS,
    )
    for template in group
}  # fmt: skip
