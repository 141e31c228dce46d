"""Contracts of capture's export (rows DY-27 to DY-40 of docs/contracts.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.eval_frame import FlattenInputOutputSignature
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

import refimpl
from refimpl._torch import FakeTensorMode, pytree
from refimpl.capture.compile import optimize
from refimpl.capture.config import config
from refimpl.capture.entry_points import export as export_module
from refimpl.capture.entry_points.export import ExportResult, argument_names, check_signature_rewritable
from refimpl.capture.entry_points.export_signature import Captured, with_signature
from refimpl.capture.entry_points.reset import cache_entries
from refimpl.capture.public.errors import (
    TorchRuntimeError,
    UncapturedHigherOrderOpError,
    Unsupported,
    UserError,
    UserErrorType,
)
from refimpl.errors import BadParameter
from refimpl.symbolic.dynamic_shapes import ALL_STATIC
from refimpl.tests.contracts.contract_backend import breaking
from refimpl.tests.graphs import targets_of
from refimpl.trace.metadata import notes_of

Tensor = torch.Tensor
aten = torch.ops.aten


def exported(function: Callable[..., Any], *args: Any, **options: Any) -> fx.GraphModule:
    return refimpl.export_graph(function, **options)(*args).graph_module


def placeholders(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]


def test_every_argument_has_a_placeholder_also_one_that_is_not_used() -> None:
    """DY-27"""
    module = exported(lambda a, b: b + 1, torch.ones(2), torch.ones(3))
    assert placeholders(module) == ["arg0", "arg1"]
    assert module(torch.zeros(2), torch.ones(3)).tolist() == [2, 2, 2]
    marked = torch.ones(2)
    setattr(marked, "tag", "seen")
    of_marked = exported(lambda a: a + 1, marked)
    assert next(iter(of_marked.graph.nodes)).meta["tensor_dict"] == {"tag": "seen"}
    used = next(node for node in module.graph.nodes if node.target == "arg1")
    assert isinstance(used.meta["val"], torch._subclasses.FakeTensor)


def test_arguments_constants_and_what_is_computed_come_back_in_their_places() -> None:
    """DY-28, DY-32, XC-04"""

    def program(x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"sum": x + y, "x": x, "n": 3, "none": None, "rest": (y, [x * 2, "text"])}

    x, y = torch.ones(2), torch.ones(2)
    module = exported(program, x, y)
    result = module(x, y)
    assert result["x"] is x
    assert result["rest"][0] is y
    assert result["sum"].tolist() == [2, 2]
    assert (result["n"], result["none"], result["rest"][1][1]) == (3, None, "text")
    assert result["rest"][1][0].tolist() == [2, 2]
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    assert all("val" in node.meta and "example_value" in node.meta for node in calls)


def test_arguments_and_results_are_matched_by_identity() -> None:
    """DY-32"""
    x = torch.ones(2)
    module = exported(lambda a, b: (a, b, a + b), x, x)
    first, second = torch.zeros(2), torch.full((2,), 3.0)
    results = exported(lambda a, b: (b, a, a + b), torch.ones(2), torch.ones(2))(first, second)
    assert results[0] is second
    assert results[1] is first
    assert module(x, x)[0] is x
    made = exported(lambda a: (a * 2, a.detach()), x)(x)
    assert made[1] is not x, "an equal tensor is not the same"


def test_what_matches_nothing_is_an_error() -> None:
    """DY-32"""
    mode = FakeTensorMode()
    computed, foreign = mode.from_tensor(torch.ones(2)), mode.from_tensor(torch.ones(2))
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["example_value"] = computed
    output = graph.output((node,))
    parts: Any = {"nodes": [node, output], "outputs": [node], "values": [computed]}
    with pytest.raises(AssertionError, match=r"Unexpectedly found a .*FakeTensor.* in the outputs"):
        with_signature(Captured(inputs=[computed], result=foreign, **parts), [computed], _spec(1), ["x"], [ALL_STATIC])
    with pytest.raises(AssertionError, match=r"Unexpectedly found a .*object.* in the inputs"):
        with_signature(Captured(inputs=[object()], result=computed, **parts), [computed], _spec(1), ["x"], [ALL_STATIC])


def _spec(count: int) -> Any:
    return pytree.tree_structure(((0,) * count, {}))


def test_tensors_that_are_no_arguments_become_attributes() -> None:
    """DY-28, DY-30"""
    held = torch.full((2,), 5.0)
    module = exported(lambda x: x + held, torch.ones(2))
    assert module(torch.ones(2)).tolist() == [6, 6]
    assert [name for name, _ in module.named_buffers()] == list(module.meta["dynamo_flat_name_to_original_fqn"])
    linear = torch.nn.Linear(2, 2)
    of_module = exported(linear, torch.ones(1, 2))
    assert {id(parameter) for parameter in of_module.parameters()} == {
        id(parameter) for parameter in linear.parameters()
    }
    assert torch.equal(of_module(torch.ones(1, 2)), linear(torch.ones(1, 2)))


def test_a_tensor_that_is_no_argument_can_be_refused_with_where_it_is_read() -> None:
    """DY-30"""
    held = torch.full((2,), 5.0)

    def program(x: Tensor) -> Tensor:
        return x + held * held

    def returning(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, held

    linear = torch.nn.Linear(2, 2)
    given = refimpl.assume_constant_result(lambda: held)
    says = r"neither buffers/parameters/constants nor are direct(?s:.*)L\['held'\](?s:.*)assume_constant_result"
    assert torch.equal(exported(program, torch.ones(2))(torch.ones(2)), torch.full((2,), 26.0))
    with config.patch(install_free_tensors_for_export=False):
        with pytest.raises(UserError, match=says) as caught:
            exported(program, torch.ones(2))
        assert caught.value.error_type is UserErrorType.INVALID_INPUT
        assert "return x + held * held" in str(caught.value), "the line of the program"
        with pytest.raises(UserError, match="a closed over free variable"):
            check_signature_rewritable(_captured_with(returning, [""]))
        with pytest.raises(UserError, match=r"elided 2 more accesses"):
            check_signature_rewritable(_captured_with(returning, ["", "  File a\n", "  File b\n"]))
        exported(lambda x, k: x + k, torch.ones(2), held)
        exported(linear, torch.ones(1, 2))
        exported(lambda x: x + given(), torch.ones(2))
    with pytest.raises(AssertionError, match="has no source"):
        check_signature_rewritable(fx.symbolic_trace(lambda x: x + 1))


def _captured_with(function: Callable[..., Any], stacks: list[str]) -> fx.GraphModule:
    """A graph of which one input is said to be used at these places."""
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    optimize(keep)(function)(torch.ones(2))
    source = notes_of(next(iter(graphs[0].graph.nodes))).source
    setattr(graphs[0], "_source_to_user_stacks", {source: stacks})
    return graphs[0]


class Assuming(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    @refimpl.assume_constant_result
    def computed(self, x: Tensor) -> Tensor:
        return torch.nonzero(x)

    @refimpl.assume_constant_result
    def itself(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x, "twice": x * 2}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.itself(x)
        return self.computed(self.linear(x)), found["x"] + found["twice"]


def test_a_result_that_is_assumed_to_be_constant_is_that_of_the_example() -> None:
    """DY-28, DY-30"""
    model, x = Assuming(), torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    module = exported(model, x)
    expected = model(x)
    for given in (x, torch.zeros(2, 2), torch.full((2, 2), -7.0)):
        assert all(torch.equal(one, other) for one, other in zip(module(given), expected, strict=True))
    assert torch.equal(x, torch.tensor([[1.0, 0.0], [2.0, 0.0]]))


def test_parameters_and_buffers_know_the_modules_that_read_them() -> None:
    """DY-28, XC-02"""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module = exported(model, torch.ones(3, 2))
    stacks = {
        node.target: [class_ for _, class_ in node.meta["nn_module_stack"].values()]
        for node in module.graph.nodes
        if node.op == "get_attr"
    }
    assert len(stacks) >= 6
    assert {stack[0] for stack in stacks.values()} == {torch.nn.Sequential}
    assert {stack[-1] for stack in stacks.values()} == {torch.nn.Linear, torch.nn.BatchNorm1d}


def test_the_result_of_an_export_has_two_fields() -> None:
    """DY-29"""
    module, guards = refimpl.export_graph(lambda x: x + 1)(torch.ones(2))
    assert ExportResult._fields == ("graph_module", "guards")
    assert module(torch.ones(2)).tolist() == [2, 2]
    assert any("L['x']" in str(guard) for guard in guards)


class Opaque:
    pass


def test_arguments_and_results_are_tensors_and_constants() -> None:
    """DY-31"""
    with pytest.raises(UserError, match=r"inputs(?s:.*)Opaque(?s:.*)register_pytree") as caught:
        exported(lambda x, o: x + 1, torch.ones(2), Opaque())
    assert caught.value.error_type is UserErrorType.INVALID_INPUT
    with pytest.raises(UserError, match=r"outputs(?s:.*)register_dataclass") as caught:
        exported(lambda x: (x + 1, Opaque()), torch.ones(2))
    assert caught.value.error_type is UserErrorType.INVALID_OUTPUT


def test_nested_arguments_keep_their_containers_and_names() -> None:
    """DY-33, XC-04"""

    def program(x: Tensor, d: dict[str, Tensor], *more: Tensor, k: tuple[Tensor, int], **named: Tensor) -> Tensor:
        return x + d["a"] * more[0] - more[1] + k[0] * k[1] + named["z"]

    def arguments(base: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, a, b, c, k, z = (torch.full((2,), base + number) for number in range(6))
        return (x, {"a": a}, b, c), {"k": (k, 3), "z": z}

    args, kwargs = arguments(1.0)
    module = refimpl.export_graph(program)(*args, **kwargs).graph_module
    args, kwargs = arguments(7.0)
    assert torch.equal(module(*args, **kwargs), program(*args, **kwargs))
    signature = inspect.signature(program)
    assert argument_names(signature, args, kwargs) == ["x", "d", "more_0", "more_1", "k", "z"]
    assert list(inspect.signature(module.forward).parameters) == ["x", "d", "more_0", "more_1", "k", "z"]


def test_arguments_that_do_not_fit_are_the_function_s_error() -> None:
    """DY-33"""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        exported(lambda x, y: x + y, torch.ones(2))


def test_the_old_form_exports_at_once_with_a_warning() -> None:
    """DY-34"""
    parameters = inspect.signature(refimpl.export_graph).parameters
    defaults = {
        name: parameter.default for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert defaults == {
        "aten_graph": False, "pre_dispatch": False, "decomposition_table": None, "tracing_mode": "symbolic",
        "dynamic_shapes": None, "specialize_float": True, "assume_static_by_default": False, "same_signature": True,
        "disable_constraint_solver": False, "prefer_deferred_runtime_asserts_over_guards": False, "_log_export_usage": True,
        "constraints": None,
    }  # fmt: skip
    with pytest.warns(FutureWarning, match="deprecated") as warned:
        module, _ = refimpl.export_graph(lambda x: x * 3, torch.ones(2))
    assert warned[0].filename == __file__
    assert module.code == exported(lambda x: x * 3, torch.ones(2)).code


def test_options_that_do_not_fit_each_other_are_refused() -> None:
    """DY-35"""
    for options in ({"decomposition_table": {aten.t.default: lambda x: x}}, {"pre_dispatch": True}):
        with pytest.raises(AssertionError, match="what to do: set aten_graph=True"):
            exported(torch.sin, torch.ones(2), **options)
    with pytest.raises(BadParameter, match="real, fake, symbolic"):
        exported(torch.sin, torch.ones(2), tracing_mode="imagined")


def test_export_takes_one_graph_and_leaves_no_entries() -> None:
    """DY-35, XC-12"""
    with pytest.raises(Unsupported, match="graph_break"):
        exported(breaking, torch.ones(2))

    def whole(x: Tensor) -> Tensor:
        return x + 1

    compiled = optimize("eager")(whole)
    compiled(torch.ones(2))
    assert len(cache_entries(whole)) == 1
    exported(whole, torch.ones(2))
    assert cache_entries(whole) == [], "neither those of before nor the export's own"
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(UserError, match="Dynamic control flow is not supported at the moment"):
        exported(lambda x: x + 1 if x.sum() > 0 else x, torch.ones(2))


def test_a_number_is_read_out_of_a_tensor_without_a_setting() -> None:
    """DY-35, XC-16"""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x.sum().item(), x.nonzero() + 1

    module = exported(program, torch.ones(2))
    for x in (torch.full((2,), 3.0), torch.tensor([0.0, 5.0])):
        for expected, seen in zip(program(x), module(x), strict=True):
            assert torch.equal(expected, seen), "neither the number nor the size is burned in"


def test_static_modes_burn_sizes_in() -> None:
    """DY-35"""

    def program(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0] * 2, -1)

    free = exported(program, torch.ones(4, 6))
    assert free(torch.ones(2, 8)).shape == (4, 4)
    assert aten.sym_size.int in targets_of(free)
    for options in ({"tracing_mode": "fake", "aten_graph": True}, {"assume_static_by_default": True}):
        assert exported(program, torch.ones(4, 6), **options)(torch.ones(4, 6)).shape == (8, 3)
        assert aten.sym_size.int not in targets_of(exported(program, torch.ones(4, 6), **options))


def test_a_size_that_is_returned_is_that_of_the_argument() -> None:
    """DY-28, DY-35"""
    module = exported(lambda x: (x + 1, x.shape[0], x.stride()[0]), torch.ones(4, 6))
    _, size, stride = module(torch.ones(2, 5))
    assert (size, stride) == (2, 5)


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: Dim("n")}, "d": {"y": None}},
        ({0: Dim("n")}, {"y": None}),
        [(Dim("n"), None), {"y": {}}],
        {"x": [Dim("n"), 3], "d": None},
    ],
)
def test_spellings_of_which_sizes_are_free_give_one_graph(shapes: Any) -> None:
    """DY-40"""

    def program(x: Tensor, d: dict[str, Tensor]) -> Tensor:
        return x.reshape(-1) + d["y"].sum() + x.shape[0] + d["y"].shape[0]

    x, y = torch.ones(4, 3), torch.ones(2)
    module = exported(program, x, {"y": y}, dynamic_shapes=shapes)
    assert targets_of(module).count(aten.sym_size.int) == 1
    assert torch.equal(module(torch.ones(6, 3), {"y": y}), program(torch.ones(6, 3), {"y": y}))
    assert module.code == exported(program, x, {"y": y}, dynamic_shapes={"x": {0: Dim("n")}, "d": None}).code


def test_dimensions_of_one_name_and_derived_ones_are_bound_to_each_other() -> None:
    """DY-40, DY-37"""
    n = Dim("n", min=2, max=16)
    both = exported(lambda x, y: x + y, torch.ones(4), torch.ones(4), dynamic_shapes={"x": {0: n}, "y": {0: n}})
    assert both(torch.ones(7), torch.ones(7)).shape == (7,)
    twice = exported(
        lambda x, y: torch.cat([x, x]) + y, torch.ones(4), torch.ones(8), dynamic_shapes={"x": {0: n}, "y": {0: 2 * n}}
    )
    assert twice(torch.ones(5), torch.ones(10)).shape == (10,)


def test_dimensions_of_two_names_that_must_be_equal_are_refused() -> None:
    """DY-37"""
    shapes = {"x": {0: Dim("n")}, "y": {0: Dim("m")}}
    with pytest.raises(ConstraintViolationError):
        exported(lambda x, y: x + y, torch.ones(4), torch.ones(4), dynamic_shapes=shapes)


def test_a_program_that_does_not_take_all_sizes_is_refused() -> None:
    """DY-37"""

    def program(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] == 4 else x - 1

    with pytest.raises(ConstraintViolationError, match=r"L\['x'\]"):
        exported(program, torch.ones(4), dynamic_shapes={"x": {0: Dim("n")}})
    allowed = exported(program, torch.ones(4), dynamic_shapes={"x": {0: Dim("n")}}, disable_constraint_solver=True)
    assert allowed(torch.ones(4)).tolist() == [2, 2, 2, 2]
    with pytest.raises(ConstraintViolationError):
        exported(lambda x: x + 1 if x.shape[0] < 8 else x, torch.ones(4), dynamic_shapes={"x": {0: Dim("n", max=16)}})
    bounded = exported(
        lambda x: x + 1 if x.shape[0] < 8 else x, torch.ones(4), dynamic_shapes={"x": {0: Dim("n", max=7)}}
    )
    assert bounded(torch.zeros(7)).tolist() == [1] * 7


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"z": None}, "the arguments"),
        ([None, None], "one for each of"),
        ({"x": {3: Dim("n")}}, "one below 1"),
        ({"x": [Dim("n"), None]}, "1 dimensions"),
        ({"x": {0: "n"}}, "a Dim, a number, or None"),
        ({"x": 3}, "a dict or sequence"),
        ({"x": {0: 5}}, "is said to be 5, and is 4"),
    ],
)
def test_shapes_that_do_not_fit_the_arguments_are_named(shapes: Any, says: str) -> None:
    """DY-40"""
    with pytest.raises(UserError, match=says):
        exported(lambda x: x + 1, torch.ones(4), dynamic_shapes=shapes)


def test_a_function_without_operators_has_a_graph_of_its_signature() -> None:
    """DY-36"""
    x = torch.ones(2)
    assert exported(lambda x: x, x)(x) is x
    assert exported(lambda x: (x, 3), x)(x)[1] == 3
    with pytest.raises(AssertionError, match="same_signature=True"):
        exported(lambda x: x, x, same_signature=False)
    flat = exported(lambda d: d["a"] + 1, {"a": x}, same_signature=False)
    assert flat(x)[0].tolist() == [2, 2]


def test_an_aten_graph_is_traced_again() -> None:
    """DY-38"""
    linear = torch.nn.Linear(2, 2)
    module = exported(lambda x, d: (linear(x).relu(), d["y"]), torch.ones(1, 2), {"y": torch.ones(1)}, aten_graph=True)
    assert targets_of(module)
    assert all(isinstance(target, torch._ops.OpOverload) for target in targets_of(module))
    y = torch.ones(1)
    result, same = module(torch.ones(1, 2), {"y": y})
    assert same is y
    assert torch.equal(result, linear(torch.ones(1, 2)).relu())
    table = {aten.addmm.default: lambda bias, a, b: a @ b + bias}
    decomposed = exported(linear, torch.ones(1, 2), aten_graph=True, decomposition_table=table)
    assert aten.addmm.default not in targets_of(decomposed)
    above = exported(linear, torch.ones(1, 2), aten_graph=True, pre_dispatch=True)
    assert aten.linear.default in targets_of(above)


def test_an_argument_that_is_not_used_has_its_sizes_too() -> None:
    """DY-27"""

    def program(x: Tensor, unused: Tensor, n: int, static: Tensor) -> Tensor:
        return x + 1

    shapes = {"x": {0: Dim("n")}, "unused": {1: Dim("m", max=9)}, "n": None, "static": None}
    module = exported(program, torch.ones(4), torch.ones(5, 6), 3, torch.ones(2), dynamic_shapes=shapes)
    x, unused, number, static = (node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    assert number == 3
    assert [type(size) is int for size in (*x.shape, *unused.shape, *static.shape)] == [False, True, False, True]
    assert x.fake_mode is unused.fake_mode is static.fake_mode
    assert module(torch.ones(7), torch.ones(5, 8), 3, torch.ones(2)).shape == (7,)
    computed = [torch.ones(1)]
    parts: Any = {"nodes": [], "inputs": [], "outputs": [], "values": [], "result": computed[0]}
    with pytest.raises(AssertionError, match="one for each of 1 leaves"):
        with_signature(Captured(**parts), computed, _spec(1), ["x"], [])
    with pytest.raises(AssertionError, match="must match flat_args length"):
        FlattenInputOutputSignature(fx.symbolic_trace(torch.nn.Identity()), computed, [], [], [], [], [])


def fixes_of(error: BaseException) -> list[str]:
    """The suggested fixes of a message, without bounds that say nothing."""
    lines = str(error).partition("Suggested fixes:")[2].strip().splitlines()
    return [line.strip().replace(", min=1, max=oo", "") for line in lines]


@pytest.mark.parametrize(
    ("program", "sizes", "expected"),
    [
        (lambda x: x + 1 if x.shape[0] == 4 else x - 1, [4], ["n = 4"]),
        (lambda x: x + 1 if x.shape[0] < 8 else x - 1, [4], ["n = Dim('n', max=7)"]),
        (lambda x: x + 1 if x.shape[0] > 3 else x - 1, [4], ["n = Dim('n', min=4)"]),
        (lambda x: x.reshape(2, -1), [4], ["_n = Dim('_n')", "n = 2*_n"]),
        (lambda x, y: x + y, [4, 4], ["m = n"]),
        (lambda x, y: torch.cat([x, x]) + y, [4, 8], ["m = 2*n"]),
    ],
)
def test_suggested_fixes_are_torch_s(program: Any, sizes: list[int], expected: list[str]) -> None:
    """DY-37"""
    tensors = [torch.ones(size) for size in sizes]
    shapes = [{0: Dim(name)} for name, _ in zip("nm", sizes, strict=False)]
    with pytest.raises(ConstraintViolationError) as ours:
        exported(program, *tensors, dynamic_shapes=shapes)
    torch._dynamo.reset()
    with pytest.raises(ConstraintViolationError) as theirs:
        torch._dynamo.export(program, dynamic_shapes=shapes)(*tensors)
    assert fixes_of(ours.value) == fixes_of(theirs.value) == expected


def test_operands_of_cond_that_do_not_fit_are_the_user_s_error() -> None:
    """DY-38"""
    x = torch.ones(2)
    for aten_graph in (False, True):
        with pytest.raises(UncapturedHigherOrderOpError, match="cond"):
            exported(lambda x: torch.cond(x.sum() > 0, lambda a, b: a.sin(), torch.cos, (x,)), x, aten_graph=aten_graph)

    graph = fx.Graph()
    given = graph.placeholder("x")
    branches = graph.get_attr("one"), graph.get_attr("two")
    called = graph.call_function(torch.ops.higher_order.cond, (graph.call_method("any", (given,)), *branches, (given,)))
    graph.output((called,))
    bodies = {"one": lambda a: (a.sin(),), "two": lambda a: (a.cos(), a + 1)}
    captured = fx.GraphModule({name: fx.symbolic_trace(body) for name, body in bodies.items()}, graph)
    options = export_module._Options(
        aten_graph=True, pre_dispatch=False, decomposition_table=None, tracing_mode="symbolic", dynamic_shapes=None,
        assume_static_by_default=False, same_signature=True, is_strict=True,
    )  # fmt: skip
    with pytest.raises(UserError) as caught:
        export_module._as_aten(captured, [x], options)
    assert caught.value.error_type is UserErrorType.DYNAMIC_CONTROL_FLOW
    assert caught.value.case_name == "cond_operands"


def test_no_kernel_runs_while_exporting() -> None:
    """DY-39, XC-16"""
    calls = 0
    library = torch.library.Library("refimpl_export_test", "DEF")
    library.define("counted(Tensor x) -> Tensor")

    def kernel(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x + 1

    library.impl("counted", kernel, "CPU")
    torch.library.register_fake("refimpl_export_test::counted", torch.empty_like, lib=library)
    operator = torch.ops.refimpl_export_test.counted
    module = exported(lambda x: operator(x) * 2, torch.ones(2))
    assert calls == 0
    assert module(torch.ones(2)).tolist() == [4, 4]
    assert calls == 1


def test_an_operator_that_raises_is_a_runtime_error_of_torch() -> None:
    """DY-35, XC-09"""
    with pytest.raises(TorchRuntimeError, match=r"test_dy_export\.py"):
        exported(lambda x, y: x @ y, torch.ones(2, 3), torch.ones(2, 3))
