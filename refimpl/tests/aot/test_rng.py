"""Random numbers: the stream of eager mode, and the same numbers again where backward computes them once more (AO-49, XC-15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.aot.options import aot_settings
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot.random_ops import RANDOM_LIBRARY, functional_random_op
from refimpl.aot_entry_points import aot_function
from refimpl.errors import UnsupportedByRefimpl
from refimpl.tests.graphs import Graphs, targets_of

Tensor = torch.Tensor
aten = torch.ops.aten
PARTITIONS = {"default": default_partition, "min_cut": min_cut_rematerialization_partition}


def _is_functional_random(target: Any) -> bool:
    return getattr(target, "namespace", None) == RANDOM_LIBRARY


def placeholders(graph_module: torch.fx.GraphModule) -> list[str]:
    return [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]


# -------------------------------------------------------------------------------------------------- the stream of eager


class RandomBothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * torch.rand_like(gradient)


def in_place_draws(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 1
    y[1:].normal_(1.0, 2.0)
    return y * x, torch.empty(3).uniform_(), torch.zeros(3).bernoulli_(0.3), torch.empty(2).exponential_()


def many_draws(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.rand(3),
        torch.randn(4, 5) * x,
        torch.randint(0, 9, (3,)),
        torch.randperm(5),
        torch.bernoulli(x.sigmoid()),
    )


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5).sin(),
    "no dropout": lambda x: F.dropout(x, 0.5, training=False).sin(),
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.3) * 2, 0.4).exp(),
    "rand_like": lambda x: torch.rand_like(x) * x,
    "many": many_draws,
    "in place": in_place_draws,
    "rrelu": lambda x: F.rrelu(x, training=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "dropout2d": lambda x: F.dropout2d(x[None, :, :, None], 0.5),
    "gumbel": F.gumbel_softmax,
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
    "multinomial": lambda x: torch.multinomial(x.exp(), 2),
    "both ways": lambda x: RandomBothWays.apply(x).sin(),
}


def run(function: Callable[[Tensor], Any]) -> list[Any]:
    """Two calls, gradients of the second, and the generator's state after each."""
    torch.manual_seed(7)
    x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
    seen: list[Any] = []
    outs: tuple[Tensor, ...] = ()
    for _ in range(2):
        out = function(x)
        outs = out if isinstance(out, tuple) else (out,)
        seen += [o.detach().clone() for o in outs]
        seen.append(torch.get_rng_state())
    losses = [o.sum() for o in outs if o.requires_grad]
    if losses:
        seen += [*torch.autograd.grad(losses, [x]), torch.get_rng_state()]
    return seen


@pytest.mark.fractional
@pytest.mark.parametrize("is_functional", [False, True])
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_what_eager_draws(name: str, partition: str, is_functional: bool) -> None:
    """AO-49, XC-15: values, gradients, and the state of the generator after forward and backward."""
    expected = run(PROGRAMS[name])
    with aot_settings(functionalize_rng_ops=is_functional):
        actual = run(aot_function(PROGRAMS[name], Graphs(), partition_fn=PARTITIONS[partition]))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("is_functional", [False, True])
def test_a_generator_from_around_the_program_is_drawn_from(is_functional: bool) -> None:
    """XC-15"""
    found = []
    for is_compiled in (False, True):
        generator = torch.Generator().manual_seed(3)

        def program(x: Tensor, generator: torch.Generator = generator) -> Tensor:
            return x * torch.rand(4, generator=generator) + torch.rand(4)

        torch.manual_seed(7)
        with aot_settings(functionalize_rng_ops=is_functional):
            function = aot_function(program, Graphs()) if is_compiled else program
            found.append([function(torch.ones(4)) for _ in range(2)])
    assert all(map(torch.equal, *found))


def test_symbolic_sizes() -> None:
    with aot_settings(functionalize_rng_ops=True):
        function = aot_function(lambda x: torch.rand_like(x) * torch.rand(x.shape[0], 1), Graphs(), dynamic=True)
        for size in (3, 5):
            torch.manual_seed(size)
            actual = function(torch.ones(size, 2))
            torch.manual_seed(size)
            assert torch.equal(actual, torch.rand(size, 2) * torch.rand(size, 1))


def test_written_inputs_and_aliases_beside_random_numbers() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x.add_(torch.rand_like(x))
        return x.view(-1), y[0], F.dropout(y, 0.5)

    found = []
    for is_compiled in (False, True):
        torch.manual_seed(7)
        x, y = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
        with aot_settings(functionalize_rng_ops=is_compiled):
            outs = (aot_function(program, Graphs()) if is_compiled else program)(x, y)
        assert outs[0]._base is x
        outs[2].sum().backward()
        found.append([x, *(o.detach() for o in outs), y.grad])
    assert all(map(torch.equal, *found))


# -------------------------------------------------------------------------------------------------------------- graphs


def test_states_are_inputs_and_outputs_of_the_graphs() -> None:
    """AO-49"""
    graphs = Graphs()
    with aot_settings(functionalize_rng_ops=True):
        x = torch.ones(4, requires_grad=True)
        out: Any = aot_function(lambda x: RandomBothWays.apply(x), graphs)(x)
        out.sum().backward()
    forward, backward = graphs.seen
    assert placeholders(forward) == ["primals_1", "fwd_seed_cpu"]
    assert placeholders(backward)[-2:] == ["tangents_1", "bwd_seed_cpu"]
    for graph_module in graphs.seen:
        drawn = [target for target in targets_of(graph_module) if _is_functional_random(target)]
        assert drawn == [getattr(torch.ops, RANDOM_LIBRARY).rand_like_default.default]
        assert not any(
            torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in targets_of(graph_module)
        )


def test_a_forward_graph_is_a_function_of_its_state() -> None:
    """AO-49: the same state, the same numbers; the generator itself is left alone."""
    graphs = Graphs()
    with aot_settings(functionalize_rng_ops=True):
        aot_function(lambda x: F.dropout(x, 0.5), graphs)(torch.ones(32))
    state = torch.Generator().manual_seed(11).get_state()
    before = torch.get_rng_state()
    first, second = (graphs.seen[0](torch.ones(32), state) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, first, second))
    torch.manual_seed(11)
    assert torch.equal(first[0], F.dropout(torch.ones(32), 0.5))
    assert torch.equal(first[1], torch.get_rng_state())


def test_backward_draws_the_forwards_numbers_again() -> None:
    """AO-49: min-cut keeps the state, not the mask, and the mask that is drawn again is the same."""

    def program(x: Tensor) -> Tensor:
        return (F.dropout(x, 0.5) * 2).sin()

    graphs = Graphs()
    x = torch.randn(100_000, requires_grad=True)
    with aot_settings(functionalize_rng_ops=True):
        function = aot_function(program, graphs, partition_fn=min_cut_rematerialization_partition)
        torch.manual_seed(7)
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
    torch.manual_seed(7)
    (expected,) = torch.autograd.grad(program(x).sum(), x)
    assert any(map(_is_functional_random, targets_of(graphs.seen[1])))
    torch.testing.assert_close(gradient, expected)


def test_random_ops_that_are_not_functional_are_never_drawn_again() -> None:
    graphs = Graphs()
    x = torch.randn(100_000, requires_grad=True)
    function = aot_function(
        lambda x: (F.dropout(x, 0.5) * 2).sin(), graphs, partition_fn=min_cut_rematerialization_partition
    )
    function(x).sum().backward()
    is_random = [
        any(torch.Tag.nondeterministic_seeded in getattr(t, "tags", ()) for t in targets_of(g)) for g in graphs.seen
    ]
    assert is_random == [True, False]


# ----------------------------------------------------------------------------------------------------------------- ops


def _random_overloads() -> list[Any]:
    names = [name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    overloads = []
    for name in sorted(names):
        packet, _, overload = name.partition(".")
        target = getattr(getattr(aten, packet), overload or "default")
        if torch.Tag.nondeterministic_seeded in target.tags and not target._schema.is_mutable:
            overloads.append(target)
    return overloads


def test_every_functional_random_overload_has_an_op() -> None:
    overloads = _random_overloads()
    assert len(overloads) > 70
    for overload in overloads:
        op = functional_random_op(overload)
        if op is not None:
            given = [a.name for a in overload._schema.arguments if a.name != "generator"]
            assert [a.name for a in op._schema.arguments] == ["state", *given]
            assert len(op._schema.returns) == len(overload._schema.returns) + 1


@pytest.mark.parametrize(
    ("overload", "arguments"),
    [
        (aten.rand.default, ([3],)),
        (aten.randn_like.default, (torch.ones(20),)),
        (aten.randint.low, (1, 5, [4])),
        (aten.native_dropout.default, (torch.ones(5), 0.5, True)),
        (aten.normal_functional.default, (torch.ones(5), 1.0, 2.0)),
        (aten.binomial.default, (torch.ones(5) * 9, torch.ones(5) * 0.5)),
    ],
)
def test_an_op_gives_what_the_overload_gives_in_that_state(overload: Any, arguments: Any) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    expected = overload(*arguments)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    untouched = torch.get_rng_state()
    op = functional_random_op(overload)
    assert op is not None
    new_state, *results = op(state, *arguments)
    assert torch.equal(new_state, after)
    assert torch.equal(torch.get_rng_state(), untouched)
    assert all(map(torch.equal, results, expected if isinstance(expected, tuple) else [expected]))


def test_random_numbers_inside_of_a_branch_are_refused() -> None:
    """AO-49: a clear error, no numbers drawn twice"""

    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * torch.rand(3), lambda x: x + 1, (x,))

    with (
        aot_settings(functionalize_rng_ops=True),
        pytest.raises(UnsupportedByRefimpl, match="in a function of cond"),
        torch.no_grad(),
    ):
        aot_function(program, Graphs())(torch.ones(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", ["dropout", "two dropouts", "rand_like", "both ways"])
def test_draws_what_eager_draws_on_cuda(name: str, partition: str) -> None:
    """AO-49: the state of a CUDA generator is a seed and an offset."""
    found = []
    for is_compiled in (False, True):
        with aot_settings(functionalize_rng_ops=True):
            function = (
                aot_function(PROGRAMS[name], Graphs(), partition_fn=PARTITIONS[partition])
                if is_compiled
                else PROGRAMS[name]
            )
            torch.cuda.manual_seed(7)
            x = torch.linspace(-1, 1, 4000, device="cuda").requires_grad_()
            out = function(x)
            state = torch.cuda.get_rng_state()
            found.append([out.detach(), state, *torch.autograd.grad(out.sum(), x), torch.cuda.get_rng_state()])
    assert all(map(torch.equal, *found))
