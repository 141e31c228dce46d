"""Side effects happen once each and in the order of the program, whatever is done to the graphs (AO-10, AO-11, AO-17, XC-19)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._library.effects import EffectType
from torch._library.opaque_object import OpaqueBase, register_opaque_type

from refimpl._torch import with_effects
from refimpl.aot.effects import thread_tokens, unlift_tokens
from refimpl.aot.options import aot_settings
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_function
from refimpl.tests.graphs import Graphs, placeholders_of
from refimpl.trace.make_fx import make_fx

Tensor = torch.Tensor
PARTITIONS = {"default": default_partition, "min_cut": min_cut_rematerialization_partition}
MAKE, SINK = torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default


class Queue(OpaqueBase):
    """State that ops change and no tensor shows."""

    def __init__(self, *items: float) -> None:
        self.items = list(items)


EVENTS: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Ops of namespace refimpl_test_effects: say(str), note(Tensor, str), both(Tensor) of two results, push and pop of queues."""
    register_opaque_type(Queue, typ="reference")
    library = torch.library.Library("refimpl_test_effects", "FRAGMENT")
    kind = f"{Queue.__module__}.{Queue.__qualname__}"

    def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"refimpl_test_effects::{name}", fake, lib=library)
        library._register_effectful_op(f"refimpl_test_effects::{name}", EffectType.ORDERED)

    def note(x: Tensor, text: str) -> Tensor:
        EVENTS.append((text, x.tolist()))
        return x.clone()

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        EVENTS.append("both")
        return x + 1, x + 2

    define("say(str text) -> ()", EVENTS.append, lambda text: None)
    define("note(Tensor x, str text) -> Tensor", note, lambda x, text: torch.empty_like(x))
    define("both(Tensor x) -> (Tensor, Tensor)", both, lambda x: (torch.empty_like(x), torch.empty_like(x)))
    define(
        "several(Tensor x) -> Tensor[]",
        lambda x: (EVENTS.append("several"), [x + 1, x + 2])[1],
        lambda x: [torch.empty_like(x), torch.empty_like(x)],
    )
    define(f"push(Tensor x, {kind} queue) -> ()", lambda x, queue: queue.items.append(float(x)), lambda x, queue: None)
    define(
        f"pop(Tensor x, {kind} queue) -> Tensor",
        lambda x, queue: x * queue.items.pop(0),
        lambda x, queue: torch.empty_like(x),
    )

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.ops.refimpl_test_effects.note(gradient, "backward of " + ctx.text), None

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.text = inputs[1]

    torch.library.register_autograd("refimpl_test_effects::note", backward, setup_context=setup, lib=library)
    yield
    library._destroy()


def calls(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def events_of(function: Callable[..., Any], *, requires_grad: bool = True) -> list[Any]:
    """What happens in forward, then in backward; and the results."""
    EVENTS.clear()
    x = torch.arange(3.0).requires_grad_(requires_grad)
    out = function(x)
    outs = list(out) if isinstance(out, tuple) else [out]
    EVENTS.append("forward has returned")
    seen = [o.detach().tolist() for o in outs]
    losses = [o.sum() for o in outs if o.requires_grad]
    if losses:
        seen.append(torch.autograd.grad(losses, [x])[0].tolist())
    return [*EVENTS, *seen]


def several_notes(x: Tensor) -> Tensor:
    ops = torch.ops.refimpl_test_effects
    ops.say("first")
    y = ops.note(x, "second")
    ops.note(x * 2, "nobody reads this")
    z = ops.note(x * 2, "third")
    ops.say("fourth")
    return (y * z).sin()


def between_writes(x: Tensor) -> Tensor:
    ops = torch.ops.refimpl_test_effects
    y = x * 1
    ops.note(y, "before")
    y.add_(1)
    ops.note(y, "between")
    y[0].mul_(5)
    return ops.note(y, "after")


def several_results(x: Tensor) -> tuple[Tensor, ...]:
    ops = torch.ops.refimpl_test_effects
    a, b = ops.both(x.detach())
    c, d = ops.several(a)
    return a * x, b, c, d


def nothing_but_effects(x: Tensor) -> Tensor:
    torch.ops.refimpl_test_effects.say("only this")
    return x


def with_random_numbers(x: Tensor) -> Tensor:
    y = torch.ops.refimpl_test_effects.note(x, "then draws")
    return y * torch.zeros(3).bernoulli_(1.0)


PROGRAMS = [several_notes, between_writes, several_results, nothing_but_effects, with_random_numbers]


@pytest.mark.fractional
@pytest.mark.parametrize("is_functional", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_happens_is_what_happens_in_eager(
    program: Callable[..., Any], partition: str, requires_grad: bool, is_functional: bool
) -> None:
    """AO-10, XC-19: the sequence of effects, in forward and in backward"""
    expected = events_of(program, requires_grad=requires_grad)
    with aot_settings(functionalize_rng_ops=is_functional):
        compiled = aot_function(program, Graphs(), partition_fn=PARTITIONS[partition])
        compiled(torch.arange(3.0).requires_grad_(requires_grad))
        assert events_of(compiled, requires_grad=requires_grad) == expected


def test_compiling_has_no_effects() -> None:
    EVENTS.clear()
    aot_function(several_notes, Graphs())(torch.arange(3.0))
    assert [e if isinstance(e, str) else e[0] for e in EVENTS] == [
        "first",
        "second",
        "nobody reads this",
        "third",
        "fourth",
    ]


def test_each_effect_takes_the_token_of_the_one_before() -> None:
    """AO-10, AO-11: tokens are made at the top and go nowhere at the end; none is an input or an output."""
    graphs = Graphs()
    with aot_settings(unlift_effect_tokens=True):
        out = aot_function(several_notes, graphs)(torch.arange(3.0).requires_grad_())
        out.sum().backward()
    for graph_module, count in zip(graphs.seen, (5, 2), strict=True):
        nodes = calls(graph_module)
        assert nodes[0].target is MAKE
        assert nodes[-1].target is SINK
        token: Any = nodes[0]
        effects = [node for node in nodes if node.target is with_effects]
        assert len(effects) == count
        for node in effects:
            assert node.args[0] is token
            token = next(user for user in node.users if user.args[1] == 0)
        assert nodes[-1].args == ([token],)
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        output = next(n for n in graph_module.graph.nodes if n.op == "output")
        assert not any("token" in n.name for n in placeholders)
        assert token not in output.args[0]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tokens_are_inputs_and_outputs_of_the_graphs(requires_grad: bool) -> None:
    """AO-10: the first of the forward, and the last of the backward. They are numbered with the other inputs."""
    graphs = Graphs()
    x = torch.arange(3.0).requires_grad_(requires_grad)
    out = aot_function(several_notes, graphs)(x)
    names = [[n.target for n in placeholders_of(graphs.seen[0])]]
    assert names == [["primals_1", "primals_2"] if requires_grad else ["arg0_1", "arg1_1"]]
    forward = graphs.seen[0].graph
    returned: Any = forward.output_node().args[0]
    token, *results = returned
    assert token.args == (next(reversed(forward.find_nodes(op="call_function", target=with_effects))), 0)
    assert len(results) >= 1
    assert {node.target for node in calls(graphs.seen[0])}.isdisjoint({MAKE, SINK})
    if not requires_grad:
        return
    out.sum().backward()
    backward = graphs.seen[1]
    assert placeholders_of(backward)[-1].target == "tangents_token"
    returned = backward.graph.output_node().args[0]
    gradient, token = returned
    assert gradient.meta["val"].shape == (3,)
    assert token.args[0].target is with_effects


def test_a_compiler_that_returns_a_function_need_not_know_the_tokens() -> None:
    def compiler(graph_module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        return lambda *args: graph_module(*args)

    compiled = aot_function(between_writes, compiler, keep_inference_input_mutations=True)
    for requires_grad in (False, True):
        assert events_of(compiled, requires_grad=requires_grad) == events_of(
            between_writes, requires_grad=requires_grad
        )


def test_a_graph_with_tokens_writes_to_its_inputs() -> None:
    def program(x: Tensor, calls: Tensor) -> Tensor:
        calls.add_(1)
        return torch.ops.refimpl_test_effects.note(x, "a") * calls

    for requires_grad in (False, True):
        EVENTS.clear()
        x, calls_ = torch.ones(2, requires_grad=requires_grad), torch.zeros(())
        graphs = Graphs()
        compiled = aot_function(program, graphs, keep_inference_input_mutations=True)
        assert [compiled(x, calls_).tolist() for _ in range(2)] == [[1.0, 1.0], [2.0, 2.0]]
        assert calls_ == 2
        assert torch.ops.aten.copy_.default in [node.target for node in calls(graphs.seen[0])]


def test_effects_survive_dead_code_elimination() -> None:
    graphs = Graphs()
    aot_function(several_notes, graphs)(torch.arange(3.0))
    graph_module = graphs.seen[0]
    before = [node.target for node in calls(graph_module)]
    graph_module.graph.eliminate_dead_code()
    assert [node.target for node in calls(graph_module)] == before


def test_a_program_without_effects_has_no_tokens() -> None:
    graphs = Graphs()
    aot_function(lambda x: x.sin(), graphs)(torch.arange(3.0).requires_grad_()).sum().backward()
    assert {node.target for g in graphs.seen for node in calls(g)}.isdisjoint({MAKE, SINK, with_effects})


def test_tokens_as_inputs_and_outputs() -> None:
    """AO-10: the signature is (tokens, inputs) to (tokens, outputs), until tokens are taken out of it."""

    def program(x: Tensor) -> list[Tensor]:
        return [torch.ops.refimpl_test_effects.note(x, "a") + 1]

    traced = make_fx(program, tracing_mode="fake")(torch.ones(2))
    fake_mode = next(iter(traced.graph.nodes)).meta["val"].fake_mode
    tokens = thread_tokens(traced, fake_mode)
    assert len(tokens.forward) == 1
    assert tokens.backward == ()
    assert [n.name for n in traced.graph.nodes if n.op == "placeholder"] == ["tokens_1", "x_1"]
    EVENTS.clear()
    token, result = traced(torch.empty(0), torch.ones(2))
    assert token.shape == (0,)
    assert result.tolist() == [2.0, 2.0]
    unlift_tokens(traced, first_outputs=1)
    assert traced(torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert EVENTS == [("a", [1.0, 1.0])] * 2


def test_printing_happens_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    """AO-10: torch's own effectful ops"""

    def program(x: Tensor) -> Tensor:
        torch.ops.aten._print("one")
        y = x + 1
        torch.ops.aten._print("two")
        return y

    aot_function(program, Graphs())(torch.ones(2))
    assert capfd.readouterr().out.split() == ["one", "two"]


def test_a_failed_check_raises_when_the_graph_runs() -> None:
    """The result of the check is nothing, so that only its effect keeps it."""
    compiled = aot_function(torch.linalg.inv, Graphs())
    torch.testing.assert_close(compiled(torch.eye(2) * 2), torch.eye(2) / 2)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.zeros(2, 2))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_objects_change_as_in_eager(requires_grad: bool) -> None:
    """AO-17: tracing does not touch the object; each call does what a call does."""

    def program(x: Tensor, queue: Queue) -> Tensor:
        ops = torch.ops.refimpl_test_effects
        y = x * 3
        ops.push(torch.tensor(7.0), queue)
        a = ops.pop(y.detach(), queue)
        b = ops.pop(y.detach(), queue)
        ops.push(torch.tensor(9.0), queue)
        return a + 10 * b + y

    found = []
    for is_compiled in (False, True):
        queue = Queue(1.0, 2.0)
        run = aot_function(program, Graphs()) if is_compiled else program
        x = torch.ones(1).requires_grad_(requires_grad)
        found.append([run(x, queue).item(), run(x, queue).item(), list(queue.items)])
    assert found[0] == found[1]
    assert found[1][2] == [7.0, 9.0]


def test_an_effect_on_a_literal_does_not_happen_when_it_is_traced() -> None:
    """A value that is known while tracing is no reason to do what the op does."""

    def program(x: Tensor) -> Tensor:
        return x + torch.ops.refimpl_test_effects.note(torch.tensor(7.0), "literal")

    EVENTS.clear()
    compiled = aot_function(program, Graphs())
    assert compiled(torch.ones(1)).item() == 8.0
    assert EVENTS == [("literal", 7.0)]
