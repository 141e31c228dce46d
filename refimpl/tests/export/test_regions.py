"""Regions with gradients or casts switched: graphs of their own, which are kept by all that is made of a program."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl.export import ExportedProgram, export
from refimpl.export.region_operators import wrap_with_autocast, wrap_with_set_grad_enabled
from refimpl.export.regions import with_regions
from refimpl.tests.export.forms import FORMS, STRICT


class Regions(nn.Module):
    """Writes, views and results in regions without gradients; one with gradients inside of one without."""

    count: torch.Tensor
    state: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("state", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.linear(x))
        self.state.copy_(y)
        with torch.no_grad():
            self.count.add_(y.sum(0) + 1)
            z = y.relu() + 1
            with torch.enable_grad():
                w = z * self.linear.weight.sum()
            v = w * 2
        return y + w + v + self.state + self.count + y.detach() * x, z


class Casts(nn.Module):
    """Casts, with a region without gradients and one without casts inside, and the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = self.linear(x)
            with torch.no_grad():
                b = self.linear(x)
            with torch.autocast("cpu", enabled=False):
                c = self.linear(x)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            d = self.linear(x)
        return a + b.float(), c + d


class InBranch(nn.Module):
    """Regions inside of branches, one of which is in a region itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def first(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x.sin()
            return x * y

        def second(x: torch.Tensor) -> torch.Tensor:
            return x.cos()

        y = torch.cond(x.sum() > 0, first, second, (x,))
        with torch.no_grad():
            z = torch.cond(x.sum() > 0, first, second, (x,))
        return y + z


def observed(module: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Results, gradients, and what has a history afterwards. Runs twice where the state has no history."""
    x = x.clone().requires_grad_()
    results = module(x)
    total = sum((result.float().sum() * (i + 1) for i, result in enumerate(results)), torch.zeros(()))
    total.backward()
    found: dict[str, Any] = {f"result {i}": result.detach() for i, result in enumerate(results)}
    found |= {f"result {i} has history": result.requires_grad for i, result in enumerate(results)}
    found |= {f"gradient of {name}": parameter.grad for name, parameter in module.named_parameters()}
    found |= {name: buffer.detach() for name, buffer in module.named_buffers()}
    found |= {f"{name} has history": buffer.requires_grad for name, buffer in module.named_buffers()}
    return {**found, "gradient of x": x.grad}


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(actual[name], value, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert actual[name] == value, name


@pytest.mark.fractional
@STRICT
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [Regions, Casts], ids=lambda kind: kind.__name__)
def test_values_gradients_and_histories_are_those_of_the_module(kind: type[nn.Module], form: str, strict: bool) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(2, 3)
    program = export(copy.deepcopy(module), (torch.randn(2, 3, requires_grad=True),), strict=strict)
    assert_same(observed(FORMS[form](program).module(), x), observed(module, x))


@pytest.mark.fractional
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_regions_inside_of_branches_compute_the_same(form: str, sign: float) -> None:
    program = FORMS[form](export(InBranch(), (torch.ones(3),)))
    x = torch.full((3,), 0.7 * sign)
    torch.testing.assert_close(program.module()(x), InBranch()(x))


def test_branches_have_regions_where_their_mode_is_not_that_of_the_call() -> None:
    program = export(InBranch(), (torch.ones(3),))
    branches = [module for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]
    regions = [
        branch for branch in branches if any(node.target is wrap_with_set_grad_enabled for node in branch.graph.nodes)
    ]
    # The program, for the second call, and the first branch of the first call; that of the second is in the mode it asks for.
    assert len(regions) == 2


@STRICT
def test_a_region_is_a_graph_under_an_operator(strict: bool) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x * 2
            return x + y

    program = export(Doubled(), (torch.ones(3),), strict=strict)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert [node.name for node in calls] == ["wrap_with_set_grad_enabled", "mul", "add"]
    assert calls[0].target is wrap_with_set_grad_enabled
    assert calls[0].args[0] is False
    body = program.graph_module.get_submodule(str(calls[0].args[1]))
    assert isinstance(body, fx.GraphModule)
    assert [node.target for node in body.graph.nodes if node.op == "call_function"] == [torch.ops.aten.mul.Tensor]
    assert [node.meta["val"].shape for node in body.graph.find_nodes(op="placeholder")] == [(3,)]


def test_what_runs_in_the_mode_of_the_export_is_no_region() -> None:
    class Differences(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x - 1
            with torch.no_grad():
                return x + 1

    def operators(program: ExportedProgram) -> list[Any]:
        (name,) = [str(node.target) for node in program.graph.find_nodes(op="get_attr")]
        body = program.graph_module.get_submodule(name)
        assert isinstance(body, fx.GraphModule)
        return [node.target for node in body.graph.nodes if node.op == "call_function"]

    with torch.no_grad():
        assert operators(export(Differences(), (torch.ones(3),))) == [torch.ops.aten.sub.Tensor]
    assert operators(export(Differences(), (torch.ones(3),))) == [torch.ops.aten.add.Tensor]


def test_a_region_leaves_the_caller_s_mode_alone() -> None:
    module = export(Regions(), (torch.ones(2, 3),)).module()
    with torch.no_grad():
        module(torch.ones(2, 3))
        assert not torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError):
        wrap_with_set_grad_enabled(False, lambda: 1 / 0)
    assert torch.is_grad_enabled()
    assert wrap_with_autocast("cpu", torch.bfloat16, True, None, torch.is_autocast_enabled, "cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_a_region_that_only_writes_is_not_dead_code() -> None:
    class Writing(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.count.add_(1)
            return x * 2

    program = export(Writing(), (torch.ones(3),))
    program.graph.eliminate_dead_code()
    module = program.module()
    module(torch.ones(3))
    assert module.get_buffer("count").item() == 1


def test_inference_mode_is_a_region_without_gradients() -> None:
    class Inferring(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                shift = x.mean() * 2
            return x * shift.clone()

    module = export(Inferring(), (torch.ones(3),)).module()
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 4.0))


def test_a_module_without_switches_is_left_as_it_is() -> None:
    module = fx.symbolic_trace(nn.Linear(2, 2))
    assert with_regions(module, has_gradients=True) is module


def test_a_number_that_is_read_in_a_region_has_its_range() -> None:
    class Reading(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                n: Any = x.sum().item()
                torch._check(n >= 1)
                torch._check(n <= 7)
            return torch.ones(n)

    program = export(Reading(), (torch.tensor([1, 2]),))
    for made in (program, program.run_decompositions()):
        assert [(int(r.lower), int(r.upper)) for r in made.range_constraints.values()] == [(1, 7)]
        assert made.module()(torch.tensor([2, 3])).shape == (5,)
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            made.module()(torch.tensor([2, 8]))


region: Any = torch.compiler.nested_compile_region


@region
def inner_region(x: torch.Tensor, linear: nn.Module) -> torch.Tensor:
    return linear(x).sin()


@region
def outer_region(x: torch.Tensor, linear: nn.Module, count: int) -> torch.Tensor:
    return outer_region(inner_region(x, linear), linear, count - 1) if count else x * 2


class NestedRegions(nn.Module):
    """Calls a region that calls another one, and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return outer_region(x, self.linear, 2) + outer_region(x, self.linear, count=1)


@STRICT
def test_nested_compile_regions_are_kept_by_strict_export_and_else_part_of_their_caller(strict: bool) -> None:
    module, x = NestedRegions(), torch.randn(2, 3)
    program = export(module, (x,), strict=strict)
    targets = [node.target for node in program.graph.nodes]
    if strict:
        assert torch.ops.higher_order.invoke_subgraph in targets
    else:
        assert targets.count(torch.ops.aten.linear.default) == 3
    torch.testing.assert_close(program.module()(x), module(x))
    torch.testing.assert_close(refimpl.compile(module, fullgraph=True)(x), module(x))


@STRICT
def test_a_checkpoint_around_a_branch_is_exported(strict: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def body(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x + 1, (x,)) * 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.body, x, use_reentrant=False)

    module = Checkpointed()
    program = export(module, (torch.ones(2, 3),), strict=strict)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        torch.testing.assert_close(program.module()(x), module(x))
