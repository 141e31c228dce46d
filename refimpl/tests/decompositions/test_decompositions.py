"""refimpl's decompositions do what eager does, and end in the core set."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import refimpl
from refimpl.tests.decompositions.calls import Call
from refimpl.tests.decompositions.compare import ComparisonState, compare
from refimpl.tests.decompositions.verdicts import Verdict, expect, judge
from refimpl.trace.decompositions import CORE_OPS, decomposition_table, get_decompositions
from refimpl.trace.decompositions.promotion import common_dtype
from refimpl.trace.decompositions.registry import DecompositionError, register

aten = torch.ops.aten
OTHER_DTYPES = (torch.bfloat16, torch.int64, torch.bool, torch.complex64)
# What no call on a CPU can show.
WITHOUT_A_CALL = {
    aten._fused_rms_norm_backward.default: "has no kernel for a CPU; compared with autograd below",
    **dict.fromkeys(
        (
            aten.cudnn_batch_norm.default,
            aten.cudnn_batch_norm.out,
            aten.cudnn_batch_norm_backward.default,
            aten.cudnn_batch_norm_backward.out,
        ),
        "has no kernel for a CPU; compared with PyTorch's own operator below",
    ),
}


@pytest.fixture(scope="module")
def states() -> list[tuple[Any, ComparisonState]]:
    """Every overload tried in float32 and, on fewer samples, in the other kinds of types. The command tries far more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        float32 = compare((torch.float32,), samples=4, limit=2)
        others = compare(OTHER_DTYPES, samples=1, limit=1)
    return [*float32.items(), *others.items()]


def test_every_rule_gives_what_eager_gives(states: list[tuple[Any, ComparisonState]]) -> None:
    wrong = [text for _, state in states for text in state.wrong]
    assert wrong == []


def test_every_rule_is_tried_on_a_call_that_it_covers(states: list[tuple[Any, ComparisonState]]) -> None:
    untried = set(decomposition_table) - {overload for overload, state in states if state.judged}
    assert {str(o) for o in untried} == {str(o) for o in WITHOUT_A_CALL}


def test_every_rule_ends_in_core_ops(states: list[tuple[Any, ComparisonState]]) -> None:
    core = set(CORE_OPS)
    elsewhere = {
        str(overload): {str(op) for op in state.left - core} for overload, state in states if state.left - core
    }
    assert elsewhere == {}


def test_no_core_op_has_a_rule() -> None:
    assert [str(o) for o in CORE_OPS if o in decomposition_table] == []


def test_the_table_has_what_it_is_asked_for() -> None:
    functional = [o for o in decomposition_table if not any(a.alias_info for a in o._schema.arguments)]
    assert len(functional) >= 200


def test_the_gradient_of_rms_norm_is_autograds() -> None:
    x, weight, grad = (torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(3))
    weight = weight[0, 0].detach().requires_grad_()
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    expected = torch.autograd.grad(x * rstd * weight, (x, weight), grad)
    rule = decomposition_table[aten._fused_rms_norm_backward.default]
    actual = rule(grad.detach(), x.detach(), [5], rstd.detach(), weight.detach(), [True, True])
    torch.testing.assert_close(actual, expected)


# ------------------------------------------------------------------------------------------------ the judge, on wrong rules


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


WRONG_RULES: dict[str, tuple[str, Callable[..., Any]]] = {
    "one element off by 1e-3": ("values", lambda x: silu(x) + torch.tensor([0.0, 0, 0, 1e-3])),
    "a zero of the other sign": ("values", lambda x: silu(x) * 1 + torch.where(x == 0, 0.0, -0.0)),
    "all elements off by 20 eps": ("values", lambda x: silu(x) * (1 + 20 * 2**-23)),
    "computed in half precision": ("values", lambda x: silu(x.half()).float()),
    "NaN for a number": ("values", lambda x: torch.where(x > 1, math.nan, silu(x))),
    "another type": ("dtype", lambda x: silu(x).double()),
    "another shape": ("shape", lambda x: silu(x)[:, :2]),
    "another memory layout": ("strides", lambda x: silu(x).t().contiguous().t()),
    "the input itself": ("aliasing", lambda x: x.copy_(silu(x))),
    "an input that is changed": ("values", lambda x: (silu(x), x.add_(1))[0]),
    "two results": ("structure", lambda x: (silu(x), x.clone())),
    "an error": ("raises", lambda x: x.reshape(-1, 7)),
    "nothing": ("declined", lambda x: NotImplemented),
}


def verdict_on(rule: Callable[..., Any]) -> Verdict:
    x = torch.linspace(-3, 3, 12).view(3, 4)
    x[0, 0] = -0.0
    call = Call(overload=aten.silu.default, args=(x,), kwargs={}, source="here")
    return judge(call, expect(call), {}, rule)


@pytest.mark.parametrize("name", WRONG_RULES)
def test_the_judge_sees_a_rule_that_gives(name: str) -> None:
    status, rule = WRONG_RULES[name]
    assert verdict_on(rule).status == status


def test_the_judge_passes_a_right_rule() -> None:
    assert verdict_on(silu).status == "pass"
    assert verdict_on(decomposition_table[aten.silu.default]).status == "pass"


# ------------------------------------------------------------------------------------------------------------- the table


def test_a_packet_stands_for_all_its_overloads_with_a_rule() -> None:
    rules = get_decompositions([aten.silu, aten.gelu.default, aten.mm.default])
    assert set(rules) == {aten.silu.default, aten.silu.out, aten.gelu.default}
    assert rules[aten.silu.default] is decomposition_table[aten.silu.default]


def test_a_second_rule_for_an_overload_is_an_error() -> None:
    with pytest.raises(DecompositionError, match=r"aten\.silu\.default has two decompositions"):
        register(aten.silu.default, silu)


OPERANDS = [
    torch.ones(2, dtype=torch.float16),
    torch.ones(2, dtype=torch.int32),
    torch.ones(2, dtype=torch.bool),
    torch.ones(2, dtype=torch.complex64),
    torch.ones((), dtype=torch.float64),
    torch.ones((), dtype=torch.int64),
    torch.ones((), dtype=torch.complex128),
    3,
    2.5,
    1j,
    True,
]


@pytest.mark.fractional
@pytest.mark.parametrize("first", OPERANDS[:7], ids=lambda x: f"{x.dtype}-{x.ndim}d")
@pytest.mark.parametrize("second", OPERANDS, ids=str)
def test_types_promote_as_in_torch(first: torch.Tensor, second: Any) -> None:
    assert common_dtype(first, second) is torch.result_type(first, second)


# ------------------------------------------------------------------------------------------------- what calls came from programs

LARGEST = torch.finfo(torch.float32).max
IMAGE = torch.arange(16.0).view(2, 2, 2, 2).to(memory_format=torch.channels_last)
AS_EAGER: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "layouts of stacks": (lambda x: tuple(torch.stack([x, x.sin()], dim) for dim in range(-5, 5)), (IMAGE,)),
    "layout of a stack of one column": (lambda x: torch.stack([x[:, :, :, :1]]), (IMAGE,)),
    "zeros of softshrink": (lambda x: F.softshrink(x, 0.5), (torch.tensor([-0.0, 0.0, -0.25, math.nan]),)),
    "zeros of lerp": (lambda x: torch.lerp(x, x, 0.25), (torch.tensor([-0.0, 0.0]),)),
    "lerp of large numbers": (
        lambda x: tuple(
            torch.lerp(y, x, w) for y in (x.flip(0) * 0.1, x * 0) for w in (x * 0 - 0.7, -0.7, -3.0, 0.7, 1.5)
        ),
        (torch.tensor([LARGEST, -LARGEST, 1.0, 1e-45, math.inf]),),
    ),
    "layer norm of large numbers": (lambda x: F.layer_norm(x, (4,)), (torch.tensor([[LARGEST, 0, 0, 0]]),)),
    "layer norm of numbers that cancel": (lambda x: F.layer_norm(x, (3,)), (torch.tensor([[LARGEST, -LARGEST, 1]]),)),
    "group norm of large numbers": (lambda x: F.group_norm(x, 1), (torch.tensor([[LARGEST, 0, 0, 0]]),)),
    "group norm by infinite weights": (
        lambda x: tuple(
            F.group_norm(x + place, 2, torch.tensor([1, math.inf, -math.inf, 2]), bias)
            for place in (-5, 0, 5)
            for bias in (None, torch.tensor([0, 1, -math.inf, math.inf]))
        ),
        (torch.linspace(-1, 1, 24).view(2, 4, 3),),
    ),
    "mean of numbers whose sum is too large": (lambda x: torch.var_mean(x), (torch.tensor([LARGEST, LARGEST / 3]),)),
    "mean behind an infinite number": (lambda x: torch.std_mean(x), (torch.tensor([-math.inf, 1, 2]),)),
    "means of rows that an infinite number ends": (
        lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, (0, 1)), *torch.var_mean(x.t(), (0, 1))),
        (torch.tensor([[1.0, 2, 3], [math.inf, 1, 2], [1, -math.inf, 2], [1, 2, math.inf]])[[0, 3]],),
    ),
    "means of rows that an infinite number passes": (
        lambda x: (
            *torch.var_mean(x, 1),
            *torch.std_mean(x, -1),
            *torch.var_mean(x, 0),
            *torch.var_mean(x[2:3].expand(2, 3)),
        ),
        (torch.tensor([[math.inf, 1, 2], [1, -math.inf, 2], [1, 2, math.inf], [math.inf, 1, -math.inf]]),),
    ),
    "deviations of numbers whose squares vanish or overflow": (
        lambda x: (
            torch.std(x),
            torch.std(x, 1),
            *torch.std_mean(x, 1),
            torch.std(x[:1]),
            torch.std(x.to(torch.half), 1),
        ),
        (torch.tensor([[1e-38, 2e-38, 0, 1e-39], [1e20, -1e20, 3e19, 0]]),),
    ),
    "the only variance, around a mean that overflows": (
        lambda x: (
            torch.std(x),
            torch.std(x[None], 1, correction=0),
            torch.std_mean(x)[0],
            torch.std(x.expand(2, 2), 1),
        ),
        (torch.tensor([LARGEST, LARGEST]),),
    ),
    "fftshift of channels last": (lambda x: torch.fft.fftshift(x), (IMAGE,)),
    "roll by nothing": (lambda x: torch.roll(x, 0, 1), (IMAGE,)),
    "distances of no rows": (lambda x, y: torch.cdist(x, y, math.inf), (torch.ones(0, 2), torch.ones(3, 2))),
    "greatest distances with NaN": (
        lambda x, y: torch.cdist(x, y, math.inf),
        (torch.zeros(1, 3), torch.tensor([[math.nan, math.inf, 1], [math.nan, -2, 1], [math.nan] * 3])),
    ),
    "distances of no columns": (lambda x, y: torch.cdist(x, y, math.inf), (torch.ones(2, 0), torch.ones(3, 0))),
    "glu of nothing": (lambda x: F.glu(x), (torch.ones(2, 0),)),
    "channel shuffle of one group": (lambda x: F.channel_shuffle(x, 1), (IMAGE,)),
    "linspace of one step": (lambda x: torch.linspace(x, 1, 1), (torch.tensor(-0.0),)),
    "gradient of softshrink at NaN": (
        lambda x: torch.ops.aten.softshrink_backward(torch.ones_like(x), x, 0.5),
        (torch.tensor([math.nan]),),
    ),
    "gradients of a group norm of large numbers": (
        lambda x, g: tuple(
            gradient
            for z, y in ((x, g), (x[:, :4], g[:, :4]))
            for gradient in aten.native_group_norm_backward(
                *(y, z, torch.ones(1, 1), torch.zeros(1, 1), torch.ones(z.shape[1]), 1, z.shape[1], 1, 1, [True] * 3)
            )
        ),
        (torch.tensor([[1, -0.5, 0.25] * 6]) * LARGEST, torch.linspace(-3, 4, 18).view(1, 18)),
    ),
    "gradient of a product with infinite numbers": (
        lambda x, y: aten._trilinear(y, x, y, [2, 3], [0], [1, 2], [1, 3]),
        (torch.tensor([[[1.0, 2], [3, 4]], [[-2, -1], [1, -5]]]), torch.tensor([[1, math.inf], [-math.inf, 2]])),
    ),
    "gradients of a slice, broadcast": (
        lambda x, y: (
            aten.slice_backward(x, [4, 3], 0, 0, 0, 1),
            aten.slice_backward(x, [4, 3], 0, 0, 2, 1),
            aten.slice_backward(y, [4, 3], 0, 0, 3, 2),
            aten.slice_backward(y, [4, 3], 0, 2, 3, 1),
        ),
        (torch.ones(1), torch.ones(1, 3)),
    ),
    "gradients of a row, broadcast": (
        lambda x, y: (aten.select_backward(x, [4, 3], 0, 1), aten.select_backward(y, [4, 3], 0, 1)),
        (torch.ones(1), torch.ones(3)),
    ),
    "gradients of a diagonal, broadcast": (
        lambda x, y: (
            aten.diagonal_backward(x, [2, 3], 0, 0, 1),
            aten.diagonal_backward(x, [2, 3], -1, 0, 1),
            aten.diagonal_backward(y, [2, 3, 3], 1, 1, 2),
        ),
        (torch.ones(1), torch.ones(2)),
    ),
    "signs of zeros and NaN": (
        lambda x: (torch.signbit(x), torch.signbit(-x), torch.signbit(torch.copysign(torch.ones(4), x))),
        (torch.tensor([math.nan, -math.nan, 0.0, -0.0]),),
    ),
    "pixels of one channel": (
        lambda x: F.pixel_unshuffle(x, 2),
        (torch.ones(2, 1, 4, 4).as_strided((2, 1, 4, 4), (16, 1, 4, 1)),),
    ),
}


@pytest.mark.parametrize("name", AS_EAGER)
def test_a_decomposed_program_gives_what_eager_gives(name: str) -> None:
    """Values with the signs of zeros, strides, and whether memory is shared."""
    function, args = AS_EAGER[name]
    graph = refimpl.make_fx(function, decomposition_table, "fake")(*args)
    results, expected = graph(*args), function(*args)
    pairs = zip(results, expected, strict=True) if isinstance(expected, tuple) else [(results, expected)]
    for out, want in pairs:
        torch.testing.assert_close(out, want, equal_nan=True)
        assert torch.equal(out.signbit() & (out == 0), want.signbit() & (want == 0))
        assert out.stride() == want.stride()
        storages = [x.untyped_storage().data_ptr() for x in (out, want)]
        assert [s == args[0].untyped_storage().data_ptr() for s in storages] in ([False] * 2, [True] * 2)


OUT_OF_BOUNDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nll_loss": lambda i: F.nll_loss(torch.ones(2, 3), i),
    "nll_loss2d": lambda i: F.nll_loss(torch.ones(2, 3, 1, 1), i.view(2, 1, 1)),
    "put": lambda i: torch.ones(2, 3).put(i, torch.ones(2)),
    "put, transposed": lambda i: torch.ones(2, 3).t().put(i, torch.ones(2)),
    "index_reduce": lambda i: torch.ones(4, 3).index_reduce(0, i, torch.ones(2, 3), "amax"),
    "index_copy": lambda i: torch.ones(4, 3).index_copy(0, i, torch.zeros(2, 3)),
    "index_add, of one dimension": lambda i: torch.ones(4).index_add(0, i, torch.ones(2)),
    "index_add, in the first dimension": lambda i: torch.ones(4, 3).index_add(0, i, torch.ones(2, 3)),
    "index_add, in the last dimension": lambda i: torch.ones(2, 3, 4).index_add(-1, i, torch.ones(2, 3, 2)),
    "index_add, in the middle": lambda i: torch.ones(2, 4, 3).index_add(1, i, torch.ones(2, 2, 3)),
    "index_add, times a number": lambda i: torch.ones(4, 3).index_add(0, i, torch.ones(2, 3), alpha=2),
    "index_add, of int32": lambda i: torch.ones(4, 3).index_add(0, i.int(), torch.ones(2, 3)),
}
TAKE_NEGATIVE = ("put", "put, transposed")  # indices that count from the end


@pytest.mark.fractional
@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
@pytest.mark.parametrize("index", [70, -70, -1])
def test_an_index_out_of_bounds_is_eagers_error(name: str, index: int) -> None:
    if index == -1 and name in TAKE_NEGATIVE:
        return
    function = OUT_OF_BOUNDS[name]
    graph = refimpl.make_fx(function, decomposition_table, "fake")(torch.tensor([0, 1]))
    torch.testing.assert_close(graph(torch.tensor([1, 0])), function(torch.tensor([1, 0])))
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(torch.tensor([0, index]))
    with pytest.raises((IndexError, RuntimeError)) as actual:
        graph(torch.tensor([0, index]))
    assert actual.type is expected.type


NO_IMAGES: dict[str, Callable[[], Any]] = {
    "no output": lambda: F.interpolate(torch.ones(1, 1, 1), scale_factor=0.5),
    "no input": lambda: aten.upsample_bilinear2d.default(torch.ones(0, 1, 2, 0), [2, 2], False),
    "an output of fewer dimensions": lambda: aten.upsample_nearest2d.default(torch.ones(1, 1, 2), [4]),
    "a gradient of no output": lambda: aten.upsample_nearest1d_backward.default(torch.ones(1, 1, 0), [0], [1, 1, 1]),
    "a gradient of another size": lambda: aten.upsample_bicubic2d_backward.default(
        torch.ones(1, 1, 1, 1), [2, 2], [1, 1, 1, 1], False
    ),
}


@pytest.mark.parametrize("name", NO_IMAGES)
def test_an_image_that_cannot_be_resized_is_eagers_error(name: str) -> None:
    with pytest.raises(RuntimeError):
        NO_IMAGES[name]()
    with pytest.raises(RuntimeError):
        refimpl.make_fx(NO_IMAGES[name], decomposition_table, "fake")()()


ON_REPEATED_ELEMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(2),
    "fill_diagonal_": lambda x: x.fill_diagonal_(2),
    "_foreach_zero_": lambda x: torch._foreach_zero_([x]),
    "full": lambda x: torch.full((2, 2), 3.0, out=x),
}


@pytest.mark.parametrize("name", ON_REPEATED_ELEMENTS)
def test_what_eager_writes_to_repeated_elements_is_written(name: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        ON_REPEATED_ELEMENTS[name](x)
        return x + 0

    x = torch.ones(()).expand(2, 2)
    graph = refimpl.make_fx(program, decomposition_table, "fake")(x)
    given = torch.ones(()).expand(2, 2)
    assert torch.equal(graph(given), program(x))
    assert torch.equal(given, x)


# ------------------------------------------------------------------------------------------------------------ in a trace


def loss_and_gradients(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> Any:
    """Normalisation, activations, dropout's backward, a loss, and the gradients of all of it."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    hidden = F.layer_norm(F.gelu(x @ weight), (6,))
    hidden = F.glu(F.elu(hidden) + F.softplus(hidden), -1)
    loss = F.cross_entropy(hidden, target) + F.smooth_l1_loss(hidden, torch.zeros_like(hidden))
    return loss.detach(), *torch.autograd.grad(loss, (x, weight))


def inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(4, 5, generator=generator),
        torch.randn(5, 6, generator=generator),
        torch.tensor([0, 2, 1, 1]),
    )


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_trace_with_the_table_holds_core_ops_and_computes_the_same(mode: str) -> None:
    graph_module = refimpl.make_fx(loss_and_gradients, decomposition_table, mode)(*inputs())
    targets = {n.target for n in graph_module.graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
    assert {str(t) for t in targets - set(CORE_OPS)} == set()
    torch.testing.assert_close(graph_module(*inputs()), loss_and_gradients(*inputs()))


def test_a_symbolic_trace_with_the_table_holds_for_another_batch() -> None:
    graph_module = refimpl.make_fx(loss_and_gradients, decomposition_table, "symbolic")(*inputs())
    x, weight, _ = inputs()
    other = torch.cat([x, x * 2, x[:1] - 1]), weight, torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1])
    torch.testing.assert_close(graph_module(*other), loss_and_gradients(*other))


ROW_OPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, 0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "upsample_bilinear2d": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "upsample_nearest2d": lambda x: F.interpolate(x, (6, 3), mode="nearest"),
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 2, 1), mode="reflect"),
    "replication_pad2d": lambda x: F.pad(x, (1, 1, 2, 1), mode="replicate"),
    "im2col": lambda x: F.unfold(x, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "roll": lambda x: torch.roll(x, 2, 1),
    "tril": lambda x: torch.tril(x),
    "diag_embed": lambda x: torch.diag_embed(x),
    "unbind": lambda x: x.unbind(1),
    "split": lambda x: x.split(2, 1),
    "logsumexp": lambda x: torch.logsumexp(x, (0, 1)),
    "std_mean": lambda x: torch.std_mean(x, (0, 2)),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, (1, 2)),
    "index_add": lambda x: x.index_add(1, torch.tensor([0, 2]), x[:, :2]),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "in place": lambda x: x.clone().mul_(2).sigmoid_(),
    "foreach": lambda x: torch._foreach_add([x, x * 2], 1.5),
}


@pytest.mark.parametrize("name", ROW_OPS)
def test_rules_take_symbolic_sizes(name: str) -> None:
    function = ROW_OPS[name]
    x, other = torch.randn(3, 4, 5, 6), torch.randn(7, 4, 5, 6)
    graph_module = refimpl.make_fx(function, decomposition_table, "symbolic", _allow_non_fake_inputs=True)(x)
    torch.testing.assert_close(graph_module(x), function(x))
    torch.testing.assert_close(graph_module(other), function(other))


@pytest.mark.parametrize("training", [True, False])
def test_cudnn_s_batch_norm_is_pytorch_s_own(*, training: bool) -> None:
    x, grad = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    weight, bias = torch.randn(3), torch.randn(3)
    statistics = [[torch.zeros(3), torch.ones(3)] for _ in range(2)]
    ours, theirs = (
        function(x, weight, bias, *kept, training, 0.1, 1e-5)
        for function, kept in zip(
            (decomposition_table[aten.cudnn_batch_norm.default], aten.native_batch_norm.default),
            statistics,
            strict=True,
        )
    )
    for a, b in zip([*ours[:3], *statistics[0]], [*theirs, *statistics[1]], strict=True):
        torch.testing.assert_close(a, b)
    assert (ours[3].dtype, ours[3].shape) == (torch.uint8, (0,))
    if training:
        mine = decomposition_table[aten.cudnn_batch_norm_backward.default](
            x, grad, weight, *statistics[0], ours[1], ours[2], 1e-5, ours[3]
        )
        wanted = aten.native_batch_norm_backward.default(
            grad, x, weight, *statistics[1], theirs[1], theirs[2], True, 1e-5, [True] * 3
        )
        for a, b in zip(mine, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "function",
    [
        torch.block_diag,
        F.huber_loss,
        F.soft_margin_loss,
        F.binary_cross_entropy_with_logits,
        lambda x, y: torch.cat([x.reshape(1), y.reshape(1)]),
        lambda x, y: torch.cartesian_prod(x.reshape(1), y.reshape(1)),
    ],
)
def test_tensors_of_several_dtypes_give_eagers_dtype(function: Callable[..., torch.Tensor]) -> None:
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
    for first in dtypes:
        for second in dtypes:
            for shape in ((), (1,)):
                x, y = torch.full(shape, 1.5).to(first), torch.tensor([0.5]).to(second)
                try:
                    expected = function(x, y)
                except (RuntimeError, ValueError):  # of floats, or of one shape, only
                    continue
                result = refimpl.make_fx(function, decomposition_table=decomposition_table)(x, y)(x, y)
                torch.testing.assert_close(result, expected)


def test_slopes_of_logit_and_of_a_log_softmax_are_eagers() -> None:
    x, grad = torch.tensor([0.0, -0.0, 1.0, math.nan, 0.05, 0.5, 2.0]), torch.full((7,), 2.0)
    for eps in (None, 0.0, 0.1):
        ours = decomposition_table[aten.logit_backward.default](grad, x, eps)
        torch.testing.assert_close(ours, aten.logit_backward(grad, x, eps), equal_nan=True)
    y = torch.linspace(-0.001, 0.002, 8).view(4, 2, 1)  # rows of one number, whose gradient is nearly nothing
    ours = decomposition_table[aten._log_softmax_backward_data.default](y, y, -1, torch.float32)
    assert torch.equal(ours, aten._log_softmax_backward_data(y, y, -1, torch.float32))


def test_pixels_of_an_empty_batch_stay_where_they_are() -> None:
    x = torch.zeros(0, 1, 4, 2)
    assert decomposition_table[aten.pixel_unshuffle.default](x, 2).shape == F.pixel_unshuffle(x, 2).shape


@pytest.mark.parametrize(
    ("shape", "dims"), [((3,), (-2, -1)), ((3,), (0, 1)), ((1, 3), (0, 1)), ((1, 3), (0, 2)), ((4, 3), (0, 2))]
)
def test_diagonals_are_put_into_memory_of_their_own(shape: tuple[int, ...], dims: tuple[int, int]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    made = decomposition_table[aten.diag_embed.default](x, 1, *dims)
    expected = torch.diag_embed(x, 1, *dims)
    assert not made._is_view()
    assert made.stride() == expected.stride()
    assert torch.equal(made, expected)
