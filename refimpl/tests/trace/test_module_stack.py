"""Module stacks: which modules' calls a node was made in, by the paths the program reached them by."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx

import refimpl


class Leaf(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Branch(torch.nn.Module):
    def __init__(self, d: torch.nn.Module) -> None:
        super().__init__()
        self.d = d

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(x) + 1


class Shared(torch.nn.Module):
    """One leaf, reached as b.d, c.d, and by its place in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        d = Leaf()
        self.b = Branch(d)
        self.c = Branch(d)
        self.layers = torch.nn.Sequential(d, torch.nn.ReLU(), d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.b(self.c(self.b(x)))).sin() + self.c.d(x)


def of_module(module: torch.nn.Module) -> Callable[..., Any]:
    """A function of the module's arguments that says which module it stands for."""

    def call(*args: Any) -> Any:
        return module(*args)

    setattr(call, "_orig_mod", module)
    return call


def trace(module: torch.nn.Module, *args: Any, **options: Any) -> torch.fx.GraphModule:
    return refimpl.make_fx(of_module(module), record_module_stack=True, **options)(*args)


def _calls(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "call_function"]


def _origins(graph_module: torch.fx.GraphModule) -> list[tuple[Any, ...]]:
    return [
        (node.name, list(node.meta["nn_module_stack"].items()), node.meta.get("torch_fn"), node.stack_trace)
        for node in _calls(graph_module)
    ]


def _last_paths(graph_module: torch.fx.GraphModule) -> list[str]:
    return [list(node.meta["nn_module_stack"].values())[-1][0] for node in _calls(graph_module)]


def _state_of(module: torch.nn.Module) -> list[tuple[str, list[str], list[str], type]]:
    """Names in the order they are kept, of attributes and children, and what keeps the children."""
    return [
        (name, list(vars(m)), list(m._modules), type(m._modules)) for name, m in module.named_modules()
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_stack_function_and_trace_of_every_call_are_those_of_torch(mode: str) -> None:
    """PX-36, PX-37"""
    module, x = Shared(), torch.randn(2, 3)
    options: dict[str, Any] = {"tracing_mode": mode, "record_module_stack": True, "_allow_non_fake_inputs": True}
    function = of_module(module)
    ours, theirs = refimpl.make_fx(function, **options)(x), torch_make_fx(function, **options)(x)
    assert _origins(ours) == _origins(theirs)


def test_a_shared_module_is_named_as_it_was_accessed() -> None:
    """PX-36"""
    paths = _last_paths(trace(Shared(), torch.randn(2, 3)))
    expected = ["b.d.linear", "c.d.linear", "layers.0.linear", "layers.1", "layers.2.linear", "c.d.linear"]
    assert [path for i, path in enumerate(paths) if path in expected and path != paths[i - 1]] == [
        "b.d.linear", "c.d.linear", "b.d.linear", "layers.0.linear", "layers.1", "layers.2.linear", "c.d.linear",
    ]  # fmt: skip


def test_only_inputs_and_the_output_are_without_a_stack_and_later_calls_have_keys_of_their_own() -> None:
    """PX-37"""
    graph_module = trace(Shared(), torch.randn(2, 3))
    for node in graph_module.graph.nodes:
        assert ("nn_module_stack" in node.meta) == (node.op not in ("placeholder", "output"))
        assert ("torch_fn" in node.meta) == (node.op == "call_function")
        assert ("stack_trace" in node.meta) == (node.op not in ("placeholder", "output"))
    keys = {key for node in _calls(graph_module) for key in node.meta["nn_module_stack"]}
    assert {"b", "b@1", "b.d", "b.d@1", "c.d", "c.d@1"} <= keys
    kinds = {path: kind for node in _calls(graph_module) for path, kind in node.meta["nn_module_stack"].values()}
    assert kinds["c.d.linear"] == "torch.nn.modules.linear.Linear"
    assert kinds["b"] == f"{__name__}.Branch"


def test_the_program_gets_its_own_modules() -> None:
    """PX-36, PX-38"""
    seen: list[bool] = []

    class Comparing(Shared):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = {self.b.d: 1}
            seen.extend([self.b.d is self.c.d, type(self.b) is Branch, self.layers[0] in kept, self.b.d in kept])
            return self.b(x)

    graph_module = trace(Comparing(), torch.randn(2, 3))
    assert seen == [True] * 4
    assert [isinstance(m, torch.fx.GraphModule) for m in graph_module.modules()] == [True]


def test_a_loop_over_a_slice_or_a_dictionary_names_modules_by_their_place() -> None:
    """PX-36"""

    class Looping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.ReLU() for _ in range(3))
            self.table = torch.nn.ModuleDict({"up": torch.nn.Sigmoid(), "down": torch.nn.Tanh()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks[1:]:
                x = block(x)
            for block in reversed(self.blocks):
                x = block(x)
            for _, block in self.table.items():
                x = block(x)
            return self.table["up"](x)

    paths = _last_paths(trace(Looping(), torch.randn(2)))
    assert paths == [*(f"blocks.{i}" for i in (1, 2, 2, 1, 0)), "table.up", "table.down", "table.up"]


def test_a_module_that_calls_itself_by_another_name_goes_on_under_the_first() -> None:
    class Nested(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = torch.nn.ReLU()
            self.other: Any = [None]

        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            return self.act(self.other[0].second(x, depth - 1) if depth else x)

    class Root(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Nested()
            self.second = self.first
            self.first.other[0] = self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x, 1)

    assert _last_paths(trace(Root(), torch.randn(2))) == ["second.act", "first.act"]


def test_nested_calls_of_one_module_by_two_names_have_both() -> None:
    """PX-36"""

    class Acting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act1 = torch.nn.ReLU()
            self.act2 = self.act1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.act2(self.act1(x).sin())
            kept = self.act1
            return kept(kept(y).cos())

    paths = _last_paths(trace(Acting(), torch.randn(2)))
    assert paths == ["act1", "", "act2", "act1", "", "act1"]


def test_a_module_that_is_not_registered_has_no_scope() -> None:
    """PX-36"""

    class Hiding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [Leaf()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden[0](x).sin()

    assert set(_last_paths(trace(Hiding(), torch.randn(2, 3)))) == {""}


def test_a_graph_module_is_inlined_and_its_children_are_not() -> None:
    """PX-36"""
    inlined = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()))
    paths = _last_paths(trace(Branch(inlined), torch.randn(2)))
    assert paths == ["d.0", "d.1", ""]


def test_hooks_of_a_module_run_in_its_scope_and_stay() -> None:
    module = Branch(torch.nn.ReLU())
    module.d.register_forward_hook(lambda _module, _args, output: output.cos())
    module.d.register_forward_pre_hook(lambda _module, args: args[0].sin())
    graph_module = trace(module, torch.randn(2))
    assert list(zip([node.name for node in _calls(graph_module)], _last_paths(graph_module), strict=True)) == [
        ("sin", "d"), ("relu", "d"), ("cos", "d"), ("add", ""),
    ]  # fmt: skip


def test_ops_of_a_region_without_gradients_have_stacks_above_autograd_too() -> None:
    """PX-28, PX-37"""

    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = Leaf()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return self.leaf(x)

    graph_module = trace(Frozen(), torch.randn(2, 3), pre_dispatch=True)
    assert [(node.name, path) for node, path in zip(_calls(graph_module), _last_paths(graph_module), strict=True)] == [
        ("_set_grad_enabled", ""), ("linear", "leaf.linear"), ("relu", "leaf"), ("_set_grad_enabled_1", ""),
    ]  # fmt: skip


class Failing(Shared):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b(x)
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", [Shared, Failing])
def test_modules_are_afterwards_what_they_were(kind: type[Shared]) -> None:
    """PX-38, PX-50"""
    module = kind()
    before = _state_of(module)
    children = [m._modules for m in module.modules()]
    try:
        trace(module, torch.randn(2, 3))
    except ZeroDivisionError:
        assert kind is Failing
    assert _state_of(module) == before
    assert all(m._modules is kept for m, kept in zip(module.modules(), children, strict=True))


def test_what_the_program_does_to_a_modules_children_is_kept_and_a_copy_is_not_watched() -> None:
    copies: list[torch.nn.Module] = []

    class Growing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.ReLU()
            self.b = torch.nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            copies.append(copy.deepcopy(self))
            del self.a
            self.c = torch.nn.Tanh()
            return self.c(self.b(x))

    module = Growing()
    graph_module = trace(module, torch.randn(2))
    assert list(module._modules) == ["b", "c"]
    assert type(module._modules) is type(torch.nn.Module()._modules)
    assert [type(m._modules) for m in copies[0].modules()] == [type(module._modules)] * 3
    assert _last_paths(graph_module) == ["b", ""]


def test_without_the_parameter_or_the_attribute_nothing_is_recorded() -> None:
    """PX-36, PX-39"""
    module, x = Leaf(), torch.randn(2, 3)
    without_parameter = refimpl.make_fx(of_module(module))(x)
    without_attribute = refimpl.make_fx(module, record_module_stack=True)(x)
    for node in (*without_parameter.graph.nodes, *without_attribute.graph.nodes):
        assert not {"nn_module_stack", "torch_fn", "stack_trace"} & set(node.meta)
    assert all(
        "torch_fn" not in node.meta for node in trace(module, x, _disable_torch_fn_metadata_mode=True).graph.nodes
    )


def test_functions_that_an_operator_takes_belong_to_the_module_that_calls_it() -> None:
    """PX-44"""

    class Choosing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = torch.nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.act(x), lambda x: x.cos(), (x,))

    graph_module = trace(Branch(Choosing()), torch.ones(2))
    true_graph = graph_module.get_submodule("true_graph_0")
    assert isinstance(true_graph, torch.fx.GraphModule)
    relu = next(node for node in _calls(true_graph) if node.name == "relu")
    assert [path for path, _ in relu.meta["nn_module_stack"].values()] == ["", "d", "d.act"]
    assert "return self.act(x)" not in relu.meta["stack_trace"].splitlines()[0]


def test_a_compiled_wrapper_has_no_scope_of_its_own() -> None:
    """PX-36"""

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lin(x).relu()

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a: Any = torch.compiler.disable(Inner())
            self.b: Any = refimpl.disable(Inner())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    outer = Outer()

    def program(x: torch.Tensor) -> torch.Tensor:
        return outer(x)

    program._orig_mod = outer  # type: ignore[attr-defined]
    graph = refimpl.make_fx(program, record_module_stack=True)(torch.ones(1, 2)).graph
    stacks = {
        tuple((path, kind.rpartition(".")[2]) for path, kind in node.meta["nn_module_stack"].values())
        for node in graph.nodes
        if node.target is torch.ops.aten.relu.default
    }
    root = ("", "Outer")
    assert stacks == {(root, ("a._orig_mod", "Inner")), (root, ("b._orig_mod", "Inner"))}
