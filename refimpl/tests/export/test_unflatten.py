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
from refimpl.tests.export.modules import EverythingModule, Mutating, Normalised, Tied

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["non_strict", "strict"])
X = torch.arange(12.0).reshape(4, 3) / 7


class Counting(nn.Module):
    """Two ways through, and a count of the calls."""

    count: torch.Tensor
    one: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor, adds: bool = True) -> torch.Tensor:
        self.count.add_(self.one)
        return x + self.count if adds else x * self.count


class Twice(nn.Module):
    """Calls a module by two names, and both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Counting()
        self.inner = nn.Sequential(Counting(), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.inner(self.first(self.first(x), adds=False)))


class Keywords(nn.Module):
    """A part with containers in and out, arguments by name, and results that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.part = KeywordsPart()

    def forward(self, x: torch.Tensor, *, more: dict[str, torch.Tensor]) -> Any:
        found = self.part({"q": x, "r": [more["a"], 2]}, option=more["b"], flag=False)
        return found["y"] + found["pair"][0], found["k"]


class KeywordsPart(nn.Module):
    def forward(self, given: dict[str, Any], *rest: Any, flag: bool = True, option: Any = None) -> dict[str, Any]:
        y = given["q"] + given["r"][0] * given["r"][1] + option
        return {"y": y, "pair": (given["q"], None), "k": 3}


class Sizes(nn.Module):
    """Numbers that are computed in one part, or around it, and used in others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = SizesFirst()
        self.second = SizesSecond()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y, y.shape[0] * 2) + x.shape[0]


class SizesFirst(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]).view(-1, x.shape[1])


class SizesSecond(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x.reshape(-1)[:n] + n + x.shape[0]


class Branches(nn.Module):
    """Operators with functions, of which one is inside of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.part = BranchesPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + torch.cond(x.sum() > 0, self.linear, lambda x: x - 1, (x,))


class BranchesPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 3, lambda x: x * self.scale, lambda x: x - self.scale, (x,))


class Reading(nn.Module):
    """Parts that read numbers out of tensors, and assert what they need of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ReadingPart()
        self.second = ReadingPart()

    def forward(self, n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.first(n, x).sum() * self.second(n + 1, x).shape[0]


class ReadingPart(nn.Module):
    def forward(self, n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        size: Any = n.item()
        torch._check(size >= 0)
        torch._check(size < x.size(0))
        return x[:size]


class Constants(nn.Module):
    """Tensors that are attributes and literals, outside and inside of a part, and one of another module's."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.ones(3)
        self.part = ConstantsPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x, self.constant) + self.part.constant + torch.tensor([1.0, 2.0, 3.0])


class ConstantsPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x * self.constant + torch.tensor(2.5) - other


class Writing(nn.Module):
    """A part that writes to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.part = WritingPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part(x)
        return self.part(x + 1) + x


class WritingPart(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


class NamedSelf(nn.Module):
    """A child by the name that code has for the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.self = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.self(x))


class GivingBack(nn.Module):
    """A part whose conversion has nothing to do, so that its result is the argument."""

    def __init__(self) -> None:
        super().__init__()
        self.part = GivingBackPart()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return self.part(y) * y


class GivingBackPart(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32).mean(0)


PROGRAMS: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {
    "twice": (Twice(), (X,), {}),
    "keywords": (Keywords(), (X,), {"more": {"a": X + 1, "b": X - 1}}),
    "sizes": (Sizes(), (X,), {}),
    "branches": (Branches(), (X,), {}),
    "reading": (Reading(), (torch.tensor(2), X), {}),
    "constants": (Constants(), (X,), {}),
    "writing": (Writing(), (X,), {}),
    "named_self": (NamedSelf(), (X,), {}),
    "giving_back": (GivingBack(), (X,), {}),
    "everything": (EverythingModule(), (X, 2), {}),
    "mutating": (Mutating(), (X,), {}),
    "normalised": (Normalised(), (X,), {}),
    "tied": (Tied(), (X,), {}),
    "shared": (nn.Sequential(*[nn.LayerNorm(3)] * 2, nn.ReLU()), (X,), {}),
}
PARTS = {
    "twice": ("first", "inner", "inner.0"),
    "keywords": ("part",),
    "sizes": ("first", "second"),
    "branches": ("part", "linear"),
    "reading": ("first", "second"),
    "constants": ("part",),
    "writing": ("part",),
    "named_self": ("self", "other"),
    "giving_back": ("part",),
    "normalised": ("norm", "linear"),
    "tied": ("first", "second"),
    "shared": ("0", "1"),
}


def called(f: Any, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Result, inputs afterwards and state afterwards, from the state of now; `module` has that state, and has it again then."""
    before = copy.deepcopy(module.state_dict())
    given = copy.deepcopy((args, kwargs))
    result = f(*given[0], **given[1])
    after = copy.deepcopy(module.state_dict())
    module.load_state_dict(before)
    return result, given, after


def assert_same(found: Any, expected: Any) -> None:
    """Bit by bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def graphs(module: UnflattenedModule) -> list[torch.fx.Graph]:
    """Of all modules."""
    return [inner.graph for inner in module.modules() if isinstance(inner, (UnflattenedModule, InterpreterModule))]


@STRICT
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_unflattened_program_is_the_module(name: str, strict: bool) -> None:
    module, args, kwargs = PROGRAMS[name]
    expected = called(module, module, args, kwargs)
    unflattened = unflatten(export(module, args, kwargs, strict=strict))
    assert_same(called(unflattened, module, args, kwargs), expected)
    assert_same(called(copy.deepcopy(unflattened), module, args, kwargs)[0], expected[0])


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - {"shared"}))
def test_a_decomposed_program_is_the_module_too(name: str) -> None:
    module, args, kwargs = PROGRAMS[name]
    expected = called(module, module, args, kwargs)
    program = export(module, args, kwargs).run_decompositions()
    torch.testing.assert_close(called(unflatten(program), module, args, kwargs), expected)


@STRICT
@pytest.mark.parametrize("name", PARTS)
def test_parts_that_keep_their_signature_can_be_replaced(name: str, strict: bool) -> None:
    if strict and name == "branches":
        pytest.skip("strict export has the operands of a branch in another order: see the test of refusals")
    module, args, kwargs = PROGRAMS[name]
    expected = called(module, module, args, kwargs)
    unflattened = unflatten(export(module, args, kwargs, preserve_module_call_signature=PARTS[name], strict=strict))
    assert_same(called(unflattened, module, args, kwargs), expected)
    for path in PARTS[name]:
        replaced = unflatten(export(module, args, kwargs, preserve_module_call_signature=PARTS[name], strict=strict))
        calls: list[str] = []
        part = module.get_submodule(path)
        replaced.set_submodule(path, part)
        hook = part.register_forward_hook(lambda *_, calls=calls, path=path: calls.append(path))
        assert_same(called(replaced, module, args, kwargs), expected)
        hook.remove()
        assert calls or path == "linear", f"{path} has not been called"  # in a branch there is no module to be called


@STRICT
@pytest.mark.parametrize("name", sorted(set(PARTS) - {"twice", "writing", "shared"}))
def test_parts_keep_their_signature_through_decomposition(name: str, strict: bool) -> None:
    if strict and name == "branches":
        pytest.skip("strict export has the operands of a branch in another order: see the test of refusals")
    module, args, kwargs = PROGRAMS[name]
    expected = called(module, module, args, kwargs)
    program = export(module, args, kwargs, preserve_module_call_signature=PARTS[name], strict=strict)
    unflattened = unflatten(program.run_decompositions())
    torch.testing.assert_close(called(unflattened, module, args, kwargs), expected)
    for path in PARTS[name]:
        if path != "linear" or name != "branches":
            unflattened.set_submodule(path, module.get_submodule(path))
    torch.testing.assert_close(called(unflattened, module, args, kwargs), expected)


def test_updates_of_what_several_calls_share_are_refused() -> None:
    for module, part in ((Twice(), "first"), (Writing(), "part")):
        program = export(module, (X,), preserve_module_call_signature=(part,)).run_decompositions()
        expected = called(module, module, (X,), {})
        torch.testing.assert_close(called(program.module(), module, (X,), {}), expected)
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


def test_branches_are_taken_at_every_call() -> None:
    module = Branches()
    unflattened = unflatten(export(module, (X,)))
    for given in (X - 5, X + 5, X):
        assert_same(unflattened(given), module(given))


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
    assert str(unflattened.type_name()).endswith("tests.export.test_unflatten.Twice")
    assert str(unflattened.get_submodule("inner.1").type_name()) == "torch.nn.modules.activation.ReLU"  # type: ignore[operator]
    assert [node.target for node in unflattened.graph.find_nodes(op="call_module")] == [
        "first", "first@1", "inner", "first",
    ]  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_state_is_the_program_s_and_has_the_module_s_names(name: str) -> None:
    module, args, kwargs = PROGRAMS[name]
    program = export(module, args, kwargs)
    unflattened = unflatten(program)
    assert list(unflattened.state_dict()) == list(module.state_dict())
    for key, value in unflattened.state_dict(keep_vars=True).items():
        assert value is program.state_dict[key]
    for key, buffer in unflattened.named_buffers():
        assert buffer is module.get_buffer(key)


def test_further_graphs_of_a_module_have_its_state() -> None:
    module = Twice()
    unflattened = copy.deepcopy(unflatten(export(module, (X,))))
    unflattened.get_submodule("first").register_buffer("count", torch.tensor(10.0))
    assert unflattened.get_submodule("first@1").count is unflattened.get_buffer("first.count")
    assert_same(unflattened(X), torch.relu((X + 11) * 12 + 1) + 13)
    state = {name: torch.full_like(value, 100.0) for name, value in module.state_dict().items()}
    unflattened.load_state_dict(state)
    assert unflattened.get_submodule("first@1").count == 100


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
    expected = called(module, module, (X,), {})
    again = export(unflatten(export(module, (X,))), (X,), strict=strict)
    assert_same(called(again.module(), module, (X,), {}), expected)


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
    module, args, kwargs = PROGRAMS["keywords"]
    unflattened = unflatten(export(module, args, kwargs, preserve_module_call_signature=("part",)))
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


def test_strict_export_refuses_signatures_where_running_gives_another_graph() -> None:
    with pytest.raises(UnsupportedByRefimpl, match="whose strict and non-strict graphs differ"):
        export(Branches(), (X,), preserve_module_call_signature=("part",), strict=True)


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
