"""Exported programs as trees of modules: the same values, names and state as the original, and parts that can be replaced."""

from __future__ import annotations

import copy
import operator
from typing import Any

import pytest
import torch
from torch import nn

from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, ExportedProgram, FlatArgsAdapter, UnflattenedModule, export, unflatten
from refimpl.export.unflatten import InterpreterModule, InterpreterModuleDispatcher
from refimpl.tests.export.corpus import CASES, Branches, Sizes, Twice, Writing, X, program_of
from refimpl.tests.export.forms import STRICT
from refimpl.tests.export.modules import EverythingModule, Normalised, Tied
from refimpl.tests.export.test_corpus import assert_same_results, called


def assert_same(found: Any, expected: Any) -> None:
    """Bit by bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def graphs(module: UnflattenedModule) -> list[torch.fx.Graph]:
    """The graphs of all modules."""
    return [inner.graph for inner in module.modules() if isinstance(inner, (UnflattenedModule, InterpreterModule))]


PARTS = {name: case for name, case in CASES.items() if case.parts}


@pytest.mark.fractional
@STRICT
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_keep_their_signature_can_be_replaced(name: str, strict: bool) -> None:
    case = PARTS[name]
    module, program = program_of(case, strict=strict, preserved=case.parts)
    arguments = case.inputs()
    expected = called(module, module, arguments)
    unflattened = unflatten(program)
    assert_same_results(called(unflattened, unflattened, arguments), expected)
    for path in case.parts:
        replaced = unflatten(program)
        calls: list[str] = []
        part = module.get_submodule(path)
        replaced.set_submodule(path, part)
        hook = part.register_forward_hook(lambda *_, calls=calls, path=path: calls.append(path))
        assert_same_results(called(replaced, replaced, arguments)[:3], expected[:3])
        hook.remove()
        assert calls or (name, path) == ("branches", "linear")  # in a branch there is no module to be called


@pytest.mark.fractional
@STRICT
@pytest.mark.parametrize("name", sorted(set(PARTS) - {"twice", "writing", "shared"}))
def test_parts_keep_their_signature_through_decomposition(name: str, strict: bool) -> None:
    case = PARTS[name]
    module, program = program_of(case, strict=strict, preserved=case.parts)
    arguments = case.inputs()
    expected = called(module, module, arguments)
    unflattened = unflatten(program.run_decompositions())
    assert_same_results(called(unflattened, unflattened, arguments), expected, tolerance=None)
    for path in case.parts:
        if path != "linear" or name != "branches":
            unflattened.set_submodule(path, module.get_submodule(path))
    assert_same_results(called(unflattened, unflattened, arguments), expected, tolerance=None)


def test_updates_of_what_several_calls_share_are_refused() -> None:
    for module, part in ((Twice(), "first"), (Writing(), "part")):
        program = export(module, (X,), preserve_module_call_signature=(part,)).run_decompositions()
        expected = called(module, module, ((X,), {}))
        assert_same_results(called(program.module(), module, ((X,), {})), expected, tolerance=None)
        with pytest.raises(UnsupportedByRefimpl, match="which passes the boundary"):
            unflatten(program)


def test_other_parts_may_do_something_else() -> None:
    module = Normalised().eval()
    unflattened = unflatten(export(module, (X,), preserve_module_call_signature=("norm",)))
    unflattened.set_submodule("norm", nn.Identity())
    assert_same(unflattened(X), torch.relu(module.linear(X)))


def test_sizes_vary_as_they_were_promised() -> None:
    module, n = Sizes(), Dim("n", min=3, max=50)
    for kept in ((), ("first", "second")):
        program = export(module, (X,), dynamic_shapes=({0: n},), preserve_module_call_signature=kept)
        for size in (3, 4, 50):
            given = torch.randn(size, 3)
            assert_same(unflatten(program)(given), module(given))
        with pytest.raises(AssertionError, match="<= 50; it is 51"):
            unflatten(program)(torch.randn(51, 3))


def test_calls_have_the_same_numbers_in_both_modes() -> None:
    module = Twice()
    keys = [
        [list(node.meta["nn_module_stack"]) for node in program.graph.nodes if node.op == "call_function"]
        for program in (export(module, (X,), strict=strict) for strict in (False, True))
    ]
    assert keys[0] == keys[1]
    assert ["L__self__", "L__self__first@2"] in keys[0]


@STRICT
def test_signatures_name_modules_by_their_paths(strict: bool) -> None:
    kept = ("first", "inner", "inner.0")
    program = export(Twice(), (X,), preserve_module_call_signature=kept, strict=strict)
    calls = [entry.fqn for entry in program.module_call_graph if entry.signature is not None]
    assert calls == ["", "first", "inner", "inner.0", "first@1", "first@2"]
    keys = {key for node in program.graph.nodes for key in node.meta.get("nn_module_stack", ())}
    assert {f"L__self__{name}" for name in calls} <= keys


# ------------------------------------------------------------------------------------------------------ names and state


def test_modules_have_their_names_and_types() -> None:
    unflattened = unflatten(export(Twice(), (X,)))
    assert [name for name, _ in unflattened.named_modules()] == ["", "first", "inner", "inner.0", "inner.1", "first@1"]
    assert str(unflattened.type_name()).endswith("tests.export.corpus.Twice")
    assert str(unflattened.get_submodule("inner.1").type_name()) == "torch.nn.modules.activation.ReLU"  # type: ignore[operator]
    assert [node.target for node in unflattened.graph.find_nodes(op="call_module")] == [
        "first", "first@1", "inner", "first",
    ]  # fmt: skip


def test_further_graphs_of_a_module_have_its_state() -> None:
    module = Twice()
    unflattened = copy.deepcopy(unflatten(export(module, (X,))))
    unflattened.get_submodule("first").register_buffer("count", torch.tensor(10.0))
    assert unflattened.get_submodule("first@1").count is unflattened.get_buffer("first.count")
    assert_same(unflattened(X), torch.relu((X + 11) * 12 + 1) + 13)
    state = {name: torch.full_like(value, 100.0) for name, value in module.state_dict().items()}
    unflattened.load_state_dict(state)
    assert unflattened.get_submodule("first@1").count == 100


def test_a_run_changes_no_other_module() -> None:
    class Counting(nn.Module):
        total: torch.Tensor
        part: torch.Tensor
        other: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))
            self.register_buffer("part", self.total[1:])
            self.register_buffer("other", torch.zeros(()), persistent=False)
            self.constant = torch.zeros(())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(1)
            self.other.add_(2)
            self.constant.add_(3)
            return x + self.part + self.other + self.constant

    module = Counting()
    x = torch.zeros(1)
    program = export(module, (x,))
    unflattened, runnable = unflatten(program), program.module()
    for calls in (1, 2):
        assert_same(unflattened(x), x + 6 * calls)  # the part is still a view of the total
    for changed in (module, runnable):
        assert not any(buffer.any() for buffer in (*changed.buffers(), module.constant))
    assert_same(runnable(x), x + 6)
    assert_same(unflattened.get_buffer("total"), torch.full((2,), 2.0))


def test_tied_parameters_are_one() -> None:
    unflattened = unflatten(export(Tied(), (X,)))
    assert unflattened.get_parameter("first.weight") is unflattened.get_parameter("second.weight")
    for name in ("first", "second"):  # each reads its own
        graph = unflattened.get_submodule(name).graph
        assert [node.target for node in graph.find_nodes(op="get_attr")] == ["weight", "bias"]  # type: ignore[union-attr]
        assert len(graph.find_nodes(op="placeholder")) == 1  # type: ignore[union-attr]


def test_calls_that_keep_their_signature_take_turns() -> None:
    unflattened = unflatten(export(Twice(), (X,), preserve_module_call_signature=("first",)))
    first = unflattened.get_submodule("first")
    assert isinstance(first, InterpreterModuleDispatcher)
    assert len(first.call_modules) == 3
    assert [node.target for node in unflattened.graph.find_nodes(op="call_module")] == [
        "first",
        "first",
        "inner",
        "first",
    ]
    expected = unflattened(X)
    first(X)  # a call on its own, after which the next run begins at the first again
    unflattened.get_buffer("first.count").zero_()
    unflattened.get_buffer("inner.0.count").zero_()
    assert_same(unflattened(X), expected)


def test_a_size_that_is_computed_twice_is_passed_unless_a_signature_is_kept() -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return y[: x.size(0) // 2]

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Half(), Half()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return y[x.size(0) // 2 :] + self.first(x, y) + self.second(x, y)

    n = 2 * Dim("n", max=20)
    args = (torch.ones(10), torch.ones(10))
    program = export(Halves(), args, dynamic_shapes=({0: n}, {0: n}), preserve_module_call_signature=("first",))
    unflattened = unflatten(program)
    counts = [sum(node.target is torch.ops.aten.sym_size.int for node in graph.nodes) for graph in graphs(unflattened)]
    assert counts == [1, 1, 0]
    given = torch.arange(14.0)
    assert_same(unflattened(given, given), Halves()(given, given))


def test_nodes_have_values() -> None:
    for graph in graphs(unflatten(export(Twice(), (X,)))):
        assert [node for node in graph.nodes if node.op != "output" and node.meta.get("val") is None] == []


def test_code_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = unflatten(export(Twice(), (X,), preserve_module_call_signature=("first",))).print_readable()
    assert capsys.readouterr().out.strip() == text.strip()
    assert "self.first" in text
    assert text.count("torch.ops.aten.relu.default") == 1


def test_a_changed_graph_is_compiled_anew() -> None:
    unflattened = unflatten(export(Normalised().eval(), (X,)))
    (node,) = unflattened.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    node.target = torch.ops.aten.neg.default
    before = unflattened(X)
    unflattened.finalize()
    assert_same(unflattened(X).clamp(max=0), -before)


@STRICT
def test_an_unflattened_program_can_be_exported(strict: bool) -> None:
    module = Twice()
    expected = called(module, module, ((X,), {}))
    unflattened = unflatten(export(module, (X,)))
    again = export(unflattened, (X,), strict=strict)
    assert_same_results(called(again.module(), unflattened, ((X,), {})), expected)


# --------------------------------------------------------------------------------------------------------------- inputs


def test_arguments_go_by_position_or_by_name() -> None:
    module = EverythingModule()
    unflattened = unflatten(export(module, (X, 2), {"mask": X[:, :1]}))
    expected = module(X, 2, mask=X[:, :1])["y"]
    assert_same(unflattened(mask=X[:, :1], factor=2, x=X)["y"], expected)
    assert_same(unflattened(X, mask=X[:, :1], factor=2)["y"], expected)


def test_inputs_of_another_kind_are_refused() -> None:
    unflattened = unflatten(export(Normalised(), (X,)))
    with pytest.raises(AssertionError, match="Guard failed"):
        unflattened(X[:2])
    with pytest.raises(TypeError, match="Treespec"):
        unflattened((X,))
    unflattened.check_input_constraints = False
    assert unflattened(X[:2]).shape == (2, 4)


def test_an_adapter_makes_inputs_fit() -> None:
    class First(FlatArgsAdapter):
        def adapt(
            self, target_spec: Any, input_spec: Any, input_args: list[Any], metadata: Any = None, obj: Any = None
        ) -> Any:
            assert isinstance(obj, UnflattenedModule)
            return input_args[: target_spec.num_leaves]

    class Short(FlatArgsAdapter):
        def adapt(self, target_spec: Any, input_spec: Any, input_args: list[Any]) -> list[Any]:  # type: ignore[override]
            return []

    module = Normalised().eval()
    program = export(module, (X,))
    assert_same(unflatten(program, First())(X, X), module(X))
    with pytest.raises(AssertionError, match="Short returns 0 values"):
        unflatten(program, Short())(X, X)


def test_containers_of_a_part_s_arguments_are_checked() -> None:
    unflattened = unflatten(program_of(CASES["keywords"], preserved=("part",))[1])
    part = unflattened.get_submodule("part")
    found = part({"q": X, "r": [X, 2]}, option=X, flag=False)
    assert_same(found["y"], X * 4)
    with pytest.raises(TypeError, match="Treespec"):
        part({"q": X}, option=X, flag=False)


# ------------------------------------------------------------------------------------------------------------- refusals


class Secretive(nn.Module):
    """A part that leaves a tensor for others behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.part = SecretivePart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + self.part.kept[0]


class SecretivePart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = [x.sin()]
        return x.cos()


def test_a_part_that_has_secrets_does_not_keep_its_signature() -> None:
    expected = Secretive()(X)
    assert_same(unflatten(export(Secretive(), (X,)))(X), expected)
    program = export(Secretive(), (X,), preserve_module_call_signature=("part",))
    with pytest.raises(UnsupportedByRefimpl, match="'sin', which passes the boundary of 'part'"):
        unflatten(program)


def test_strict_export_keeps_the_signature_of_a_part_with_branches() -> None:
    module = Branches()
    program = export(module, (X,), preserve_module_call_signature=("part",), strict=True)
    unflattened = unflatten(program)
    for x in (X, -X, 0 * X):  # both branches of both
        assert_same(unflattened(x), module(x))
    assert [entry.fqn for entry in program.module_call_graph if entry.signature is not None] == ["", "part"]


def test_unused_results_may_be_gone() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + a, b

    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.pair(x, *torch.topk(y, 2))[0]

    args = (torch.randn(2), torch.randn(5))
    program = export(Largest(), args, preserve_module_call_signature=("pair",))
    program.graph.eliminate_dead_code()
    assert_same(unflatten(program)(*args), Largest()(*args))


def test_functions_of_nodes_are_the_program_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared above is not the module itself, called behind the graphs."""
    module = Normalised().eval()
    unflattened = unflatten(export(module, (X,)))
    expected = unflattened(X)
    monkeypatch.setattr(Normalised, "forward", operator.neg)
    monkeypatch.setattr(nn.Linear, "forward", operator.neg)
    assert_same(unflattened(X), expected)


def test_a_program_of_nothing_but_its_inputs() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, int, None]:
            return x, n, None

    program: ExportedProgram = export(Nothing(), (X, 3))
    result = unflatten(program)(X, 3)
    assert result[0] is X
    assert result[1:] == (3, None)
