"""Functionalization, feature by feature: what a graph computes without mutation, and how much it takes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import refimpl
from refimpl.functionalize import AliasMap, functionalize_graph
from refimpl.functionalize.errors import CannotFunctionalize, NotFunctional
from refimpl.functionalize.functional_forms import functional_form
from refimpl.functionalize.geometry import can_view, do_overlap
from refimpl.functionalize.schemas import effects_of, is_mutating
from refimpl.functionalize.verify import verify_functional
from refimpl.tests.corpus import PROGRAMS, mutation
from refimpl.tests.functionalize.test_corpus import with_bases

aten = torch.ops.aten


def ops(gm: torch.fx.GraphModule) -> list[str]:
    """What the graph calls, by overload, without elements of results and sizes."""
    skipped = (operator.getitem, aten.sym_size.int)
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function" and n.target not in skipped]


def functionalized(
    function: Callable[..., Any], *inputs: Any, mode: str = "fake", **options: Any
) -> torch.fx.GraphModule:
    """The functional graph of what the function returns and of its inputs afterwards."""
    gm = refimpl.make_fx(lambda *given: (function(*given), *given), tracing_mode=mode)(*inputs)
    return functionalize_graph(gm, **options).graph_module


def assert_agrees(function: Callable[..., Any], make: Callable[[], Sequence[Any]], mode: str = "fake") -> None:
    """Compare outputs, and inputs afterwards, by both strategies, with views and with copies. No input is written to."""
    __tracebackhide__ = True
    eager = make()
    expected = pytree.tree_leaves((function(*eager), *eager))
    for options in ({}, {"strategy": "scatter"}, {"keeps_views": False}):
        graph_module = functionalized(function, *make(), mode=mode, **options)
        inputs = make()
        actual = pytree.tree_leaves(graph_module(*inputs))
        assert len(actual) == len(expected)
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            if isinstance(e, Tensor):
                assert a.dtype == e.dtype, f"{options}: output {i}"
                assert torch.equal(a, e), f"{options}: output {i} is {a}, eager gives {e}\n{graph_module.code}"
        for before, after in zip(make(), inputs, strict=True):
            if isinstance(before, Tensor):
                assert torch.equal(before, after), f"{options}: the graph writes to an input"


def matrix() -> tuple[Tensor]:
    return (torch.arange(12.0).view(3, 4),)


def test_symbolic_graphs_hold_at_other_sizes() -> None:
    def program(x: Tensor) -> Tensor:
        first, second = x.view(-1).split(x.shape[0] * 2)[:2]
        first.add_(second[: first.shape[0]].mul_(2))
        x.t()[1:].neg_()
        return x.as_strided((x.shape[0],), (1,), 1).add_(1)

    for strategy in ("table", "scatter"):
        gm = functionalized(program, torch.ones(3, 4), mode="symbolic", strategy=strategy)
        x, y = torch.arange(30.0).view(5, 6), torch.arange(30.0).view(5, 6)
        result, after = gm(x)
        assert torch.equal(result, program(y))
        assert torch.equal(after, y)


def test_random_ops_draw_in_the_order_of_the_program() -> None:
    def program(x: Tensor) -> Any:
        x[0].uniform_()
        y = torch.rand(3)
        x[1].bernoulli_(0.5)
        x[2].normal_().exponential_()
        torch.rand(2)  # used by nobody, drawn all the same
        return y, x.random_(2, 5)

    gm = functionalized(program, *matrix())
    (x,) = matrix()
    torch.manual_seed(0)
    expected = program(x)
    torch.manual_seed(0)
    actual = gm(*matrix())
    assert torch.equal(actual[0][0], expected[0])
    assert torch.equal(actual[1], x)


# ------------------------------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x.view(-1), ["aten.view.default"]),
        (lambda x: x.add_(1).mul_(2), ["aten.add.Tensor", "aten.mul.Tensor"]),
        # The view that is written is as it was before; the base is written once, and no view is made that nobody reads.
        (lambda x: x[0].add_(1), ["aten.select.int", "aten.add.Tensor", "aten.select_scatter.default"]),
        (lambda x: x.view(12).add_(1), ["aten.view.default", "aten.add.Tensor", "aten.view.default"]),
        (lambda x: x[:].zero_(), ["aten.slice.Tensor", "aten.zero.default"]),
        # Nothing is left of a tensor that is written and never read.
        (lambda x: [x.clone()[0].fill_(1), None][1], ["aten.clone.default"]),
    ],
)
def test_graphs_are_as_small_as_the_program(program: Callable[[Tensor], Any], expected: list[str]) -> None:
    assert ops(functionalized(program, *matrix())) == expected


def test_graphs_are_no_larger_than_those_of_torch() -> None:
    for name in ("chains", "constants", "out_variants", "as_dtype"):
        program = PROGRAMS[name].build()
        torch_graph = refimpl.make_fx(torch.func.functionalize(program))(*matrix())
        torch_graph.graph.eliminate_dead_code()
        gm = functionalized(program, *matrix())
        gm.graph.eliminate_dead_code()
        assert len(ops(gm)) <= len(ops(torch_graph)), name


def test_a_graph_without_mutation_is_copied_as_it_is() -> None:
    def program(x: Tensor) -> Any:
        y = x.view(-1).as_strided((2, 2), (1, 3), 1)
        return y.t() @ y, x.unbind()[1]

    gm = refimpl.make_fx(program, tracing_mode="fake")(*matrix())
    done = functionalize_graph(gm)
    assert [n.name for n in done.graph_module.graph.nodes if not n.name.startswith("getitem")] == [
        n.name for n in gm.graph.nodes if not n.name.startswith("getitem")
    ]
    assert done.written == ()


def test_copies_in_place_of_views() -> None:
    gm = functionalized(lambda x: x.t()[1].add_(1), *matrix(), keeps_views=False)
    assert {"aten.t_copy.default", "aten.select_copy.int"} <= set(ops(gm))
    assert not any(alias is not None for n in gm.graph.nodes for alias in effects_of(n.target).results)


# ------------------------------------------------------------------------------------------------- inputs and attributes


def test_written_inputs_are_found_through_views() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor) -> Any:
        b.view(-1)[8:].add_(a[0])
        torch._foreach_zero_([c.t()])
        return a

    gm = refimpl.make_fx(program)(*matrix(), *matrix(), *matrix())
    assert functionalize_graph(gm).written == (1, 2)


def _overlapping_rows() -> tuple[Tensor, ...]:
    storage = torch.arange(20.0)
    return storage[:12].view(3, 4), storage[4:16], storage.view(torch.int32)[6:8], torch.ones(4)


def test_inputs_that_share_memory_become_views_of_one_base() -> None:
    def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Any:
        a.add_(d)
        b.mul_(2)
        c.bitwise_and_(0x7F800000)
        return a + b[:4]

    eager = _overlapping_rows()
    expected = (program(*eager), *eager)
    gm = refimpl.make_fx(lambda *given: (program(*given), *given))(*_overlapping_rows())
    for strategy in ("table", "scatter"):
        done = functionalize_graph(gm, alias_groups=[(0, 1, 2)], strategy=strategy)
        assert [(group.members, group.position, group.numel) for group in done.replaced] == [((0, 1, 2), 0, 16)]
        assert done.written == (0, 1, 2)
        for a, e in zip(done.graph_module(*with_bases(done, _overlapping_rows())), expected, strict=True):
            assert torch.equal(a, e)


def test_inputs_of_one_storage_that_do_not_overlap_stay() -> None:
    def halves() -> tuple[Tensor, ...]:
        storage = torch.arange(24.0).view(4, 6)
        return storage[:, :3], storage[:, 3:]

    gm = refimpl.make_fx(lambda a, b: (a.add_(1), b.mul_(a)))(*halves())
    done = functionalize_graph(gm, alias_groups=[(0, 1)])
    assert done.replaced == ()
    assert len(list(done.graph_module.graph.find_nodes(op="placeholder"))) == 2


def test_inputs_that_are_only_read_stay() -> None:
    gm = refimpl.make_fx(lambda a, b: a + b)(*_overlapping_rows()[:2:2], torch.ones(4))
    assert functionalize_graph(gm, alias_groups=[(0, 1)]).replaced == ()


def test_writing_beside_an_input_in_its_storage() -> None:
    def program(x: Tensor) -> Tensor:
        x.as_strided((10,), (1,), 0).add_(1)
        return x * 2

    def make() -> tuple[Tensor]:
        return (torch.arange(10.0)[1:9:2],)

    (eager,) = make()
    expected = program(eager)
    done = functionalize_graph(refimpl.make_fx(program)(*make()))
    (group,) = done.replaced
    assert (group.members, group.offset, group.numel) == ((0,), 0, 10)
    assert torch.equal(done.graph_module(*with_bases(done, make())), expected)


def test_captured_tensors_that_are_written_are_reported() -> None:
    state = torch.zeros(3)

    def program(x: Tensor) -> Tensor:
        state[1:].add_(x)
        return state * 2

    gm = refimpl.make_fx(program)(torch.ones(2))
    state.zero_()
    done = functionalize_graph(gm)
    ((name, value),) = done.written_attributes
    assert getattr(gm, name) is state
    done.graph_module.graph.output_node().args = ([done.graph_module.graph.output_node().args[0], value],)
    done.graph_module.recompile()
    result, after = done.graph_module(torch.ones(2))
    assert torch.equal(result, torch.tensor([0.0, 2.0, 2.0]))
    assert torch.equal(after, torch.tensor([0.0, 1.0, 1.0]))
    assert torch.equal(state, torch.zeros(3))


# ------------------------------------------------------------------------------------------------- custom ops, operators


@pytest.fixture
def library() -> Any:
    with torch.library._scoped_library("refimpl_functionalize", "FRAGMENT") as scoped:
        yield scoped


def test_a_custom_op_is_called_on_clones(library: Any) -> None:
    library.define("shift_(Tensor(a!) x, Tensor(b!)[] rest, int by=1) -> Tensor")

    def shift(x: Tensor, rest: list[Tensor], by: int = 1) -> Tensor:
        x.add_(by)
        for tensor in rest:
            tensor.mul_(by)
        return x.sum()

    library.impl("shift_", shift, "CompositeExplicitAutograd")

    def program(x: Tensor) -> Any:
        total = torch.ops.refimpl_functionalize.shift_(x[0], [x[1], x[2, 1:]], 3)
        return total + x.sum()

    assert_agrees(program, matrix)


def test_a_custom_op_with_a_functional_overload_becomes_it(library: Any) -> None:
    library.define("double(Tensor x) -> Tensor")
    library.define("double_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("double_", lambda x: x.mul_(2), "CompositeExplicitAutograd")
    double_ = torch.ops.refimpl_functionalize.double_
    assert "refimpl_functionalize.double.default" in ops(functionalized(lambda x: double_(x[1]), *matrix()))
    assert_agrees(lambda x: double_(x[1]), matrix)


def test_functions_of_operators_are_functionalized() -> None:
    def program(x: Tensor) -> Tensor:
        def scaled(t: Tensor) -> Tensor:
            y = t.clone()
            y[0].mul_(2)
            return y

        x.add_(1)
        return torch.cond(x.sum() > 0, scaled, torch.neg, (x,))

    assert_agrees(program, matrix)
    gm = functionalized(program, *matrix())
    graphs = [module.graph for module in gm.children() if isinstance(module, torch.fx.GraphModule)]
    assert len(graphs) == 2
    assert not any(is_mutating(node) for graph in graphs for node in graph.nodes)


# -------------------------------------------------------------------------------------------------------------- refusals


def test_memory_is_made_larger_for_views_of_it_too() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        row = y[0]
        y.view(-1).resize_(5, 5).fill_(0)
        return row * 2, y

    assert_agrees(program, matrix, "real")
    assert_agrees(program, matrix, "fake")


def test_a_function_that_writes_to_its_operands_is_refused() -> None:
    gm = refimpl.make_fx(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), tracing_mode="fake")(*matrix())
    body: Any = gm.get_submodule(next(str(n.target) for n in gm.graph.nodes if n.op == "get_attr"))
    inner = next(n for n in body.graph.nodes if n.target is aten.sin.default)
    inner.target = aten.sin_.default
    with pytest.raises(CannotFunctionalize, match="writes to its operands"):
        functionalize_graph(gm)


# ------------------------------------------------------------------------------------------------------------- the parts


def test_the_verifier_finds_an_op_that_writes() -> None:
    gm = refimpl.make_fx(lambda x: x + 1)(torch.ones(2))
    verify_functional(gm.graph)
    for target in (aten.add_.Tensor, aten.t_.default, aten.resize_.default, aten.set_.source_Tensor):
        next(n for n in gm.graph.nodes if n.op == "call_function").target = target
        with pytest.raises(NotFunctional, match="only ops that write to no argument"):
            verify_functional(gm.graph)


def test_the_verifier_finds_a_value_that_was_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from refimpl.functionalize.memory import MemoryState  # noqa: PLC0415

    monkeypatch.setattr(MemoryState, "read", lambda self, node: self._values[self.aliases.tensor_of(node)][1])
    gm = refimpl.make_fx(lambda x: (x[0].add_(1), x * 2)[1])(torch.ones(2, 2))
    functionalize_graph(gm)  # the base itself is up to date
    gm = refimpl.make_fx(lambda x: [y := x[0], x.add_(1), y * 2][2])(torch.ones(2, 2))
    with pytest.raises(NotFunctional, match="the value after 1 writes"):
        functionalize_graph(gm)


def test_every_node_says_what_it_is_and_where_it_comes_from() -> None:
    gm = refimpl.make_fx(PROGRAMS["chains"].build(), tracing_mode="fake", record_stack_traces=True)(*matrix())
    done = functionalize_graph(gm).graph_module
    real = torch.fx.Interpreter(done)
    for node in done.graph.nodes:
        if node.op == "call_function":
            assert mutation.__file__ in node.meta["stack_trace"], node
    (x,) = matrix()
    for node, value in _values(real, x):
        if isinstance(value, Tensor) and node.op != "output":
            described = node.meta["val"]
            assert (described.shape, described.stride(), described.dtype) == (
                value.shape,
                value.stride(),
                value.dtype,
            ), node


def _values(interpreter: torch.fx.Interpreter, *inputs: Tensor) -> list[tuple[torch.fx.Node, Any]]:
    interpreter.garbage_collect_values = False
    interpreter.run(*inputs)
    return list(interpreter.env.items())


def test_the_alias_map() -> None:
    def program(x: Tensor) -> Any:
        y = x.view(-1)
        a, b = y.split(6)
        a.add_(1)
        z = b[2:].as_strided((2,), (1,))
        return z, (x + 1).t_()

    gm = refimpl.make_fx(program, tracing_mode="fake")(*matrix())
    nodes = {node.name: node for node in gm.graph.nodes}
    aliases = AliasMap(gm)
    x, written = nodes["x_1"], nodes["add_"]
    assert aliases.base_of(nodes["as_strided"]) is x
    assert aliases.tensor_of(written) is nodes["getitem"]
    assert aliases.writes_to(x) == (written,)
    assert [step.target for step in aliases.steps_of(written)] == [aten.view.default, aten.split.Tensor]
    assert aliases.steps_of(written)[1].output_index == 0
    (strided,) = aliases.steps_of(nodes["as_strided"])  # it looks at the storage, whatever it is called on
    assert strided.args[1:] == ([2], [1], 8)
    assert aliases.base_of(nodes["t_"]) is nodes["add"]
    assert aliases.steps_of(nodes["t_"])[0].target is aten.t.default


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (aten.add_.Tensor, aten.add.Tensor),
        (aten.add.out, aten.add.Tensor),
        (aten.zero_.default, aten.zero.default),
        (aten._foreach_add_.Scalar, aten._foreach_add.Scalar),
        (aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_functional.default),
        (aten.normal_.default, aten.normal_functional.default),
        (aten.bernoulli_.float, aten.bernoulli.p),
        (aten.polygamma_.default, aten.polygamma.default),
        (aten.arange.out, aten.arange.default),
        (aten._fused_adam_.default, aten._fused_adam.default),
    ],
)
def test_functional_forms(op: Any, expected: Any) -> None:
    form = functional_form(op)
    assert form is not None
    assert form.target is expected


def test_almost_every_mutating_op_of_aten_has_a_functional_form() -> None:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    missing = []
    for name in sorted(names):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        if op is None or not effects_of(op).written:
            continue
        is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
        if not is_composite and functional_form(op) is None:
            missing.append(name)
    assert len(missing) <= 12, missing  # of more than 1 400; these are called on clones


def test_overlap_is_by_element() -> None:
    storage = torch.arange(24.0).view(4, 6)
    assert not do_overlap(storage[:, :3], storage[:, 3:])
    assert not do_overlap(storage[::2], storage[1::2])
    assert do_overlap(storage[:, :3], storage[:, 2:])
    assert do_overlap(storage[0, :1].view(torch.int16), storage)


def test_can_view_agrees_with_tensor_view() -> None:
    for size, stride, shape in [
        ((2, 3), (3, 1), (6,)), ((2, 3), (1, 2), (6,)), ((2, 3), (4, 1), (2, 3)), ((4, 1, 2), (2, 9, 1), (8,)),
        ((2, 2, 3), (6, 3, 1), (4, 3)), ((2, 3), (1, 2), (2, 1, 3)), ((2, 3, 4), (1, 8, 2), (2, 12)), ((2, 1), (0, 5), (2,)),
    ]:  # fmt: skip
        tensor = torch.arange(64).as_strided(size, stride)
        try:
            tensor.view(shape)
            expected = True
        except RuntimeError:
            expected = False
        assert can_view(tensor, shape) is expected, (size, stride, shape)
