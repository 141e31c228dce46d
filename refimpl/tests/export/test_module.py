"""What the module of an exported program does when it is called: the same as the original, for the inputs it was made for."""

from __future__ import annotations

import enum
import sys
from typing import Any

import pytest
import torch
from torch import nn

from refimpl._torch import hop_map
from refimpl._torch import hop_scan as scan
from refimpl._torch import hop_while_loop as while_loop
from refimpl.capture.public.errors import UserError
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, export, unflatten
from refimpl.export.errors import InputMismatch, StructureMismatch
from refimpl.tests.export.forms import STRICT, TABLES, exported
from refimpl.tests.export.modules import Containers, EverythingModule, Normalised

map_over: Any = hop_map


@STRICT
def test_an_assigned_buffer_that_is_returned_is_the_buffer(strict: bool) -> None:
    class Returning(nn.Module):
        state: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state = self.state + x
            return self.state

    runnable = exported(Returning(), torch.ones(3), strict=strict)
    assert runnable(torch.ones(3)) is runnable.get_buffer("state")
    assert runnable(torch.ones(3)).tolist() == [2.0] * 3


@STRICT
def test_hooks_that_rename_the_state_do_not_run(strict: bool) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.layer.register_state_dict_post_hook(self._renamed)

        @staticmethod
        def _renamed(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
            state["other"] = state.pop(f"{prefix}weight")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    module, x = Layers(), torch.ones(2, 2)
    program = export(module, (x,), strict=strict)
    assert set(program.state_dict) == {"layer.weight", "layer.bias"}
    assert torch.equal(program.module()(x), module(x))
    assert set(module.state_dict()) == {"other", "layer.bias"}


def test_checks_of_shared_memory_do_not_ask_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    module = export(Writing(), (torch.ones(2),)).run_decompositions({}).module()
    callers: set[str] = set()

    def is_compiling() -> bool:
        callers.add(sys._getframe(1).f_globals["__name__"].partition(".")[0])
        return False

    monkeypatch.setattr(torch.compiler, "is_compiling", is_compiling)
    assert module(torch.ones(2)).tolist() == [2.0, 2.0]
    assert callers == {"torch"}


def test_a_decomposed_program_returns_the_input_that_it_wrote_to() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            new = y * 2
            return x.add_(1), x, new, y.copy_(new)

    module = export(Writing(), (torch.ones(2), torch.ones(2))).run_decompositions({}).module()
    x, y = torch.ones(2), torch.ones(2)
    first, second, new, last = module(x, y)
    assert first is x
    assert second is x
    assert last is y
    assert new.data_ptr() != y.data_ptr()
    assert (x.tolist(), y.tolist(), new.tolist()) == ([2.0, 2.0], [2.0, 2.0], [2.0, 2.0])


@STRICT
def test_gradients_reach_the_original_s_parameters(strict: bool) -> None:
    module = Normalised()
    runnable = exported(module, torch.randn(5, 3), strict=strict)
    x = torch.randn(5, 3)
    runnable(x).square().sum().backward()
    actual = [p.grad for p in module.parameters()]
    module.zero_grad()
    module.norm.reset_running_stats()
    module(x).square().sum().backward()
    torch.testing.assert_close(actual, [p.grad for p in module.parameters()])


def test_a_computed_input_may_be_written_to() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x.sin()

    leaf = torch.ones(3, requires_grad=True)
    runnable = exported(Writing(), leaf * 1)
    runnable(leaf * 3).sum().backward()
    torch.testing.assert_close(leaf.grad, torch.full((3,), 6.0).cos() * 6)


@STRICT
def test_regions_without_gradients_have_none(strict: bool) -> None:
    class Partly(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.no_grad():
                y = x * 2
            return x * y, y

    x = torch.tensor([3.0], requires_grad=True)
    result, inner = exported(Partly(), torch.ones(1, requires_grad=True), strict=strict)(x)
    assert not inner.requires_grad
    result.backward()
    assert x.grad is not None
    assert x.grad.item() == 6.0


def test_arguments_go_by_position_or_by_name_as_in_forward() -> None:
    class Three(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return x + 2 * y + 4 * z

    t = torch.ones(2)
    program = export(Three(), (t,), {"z": t, "y": t})
    for call in (lambda m: m(t, y=t * 2, z=t), lambda m: m(t, z=t, y=t * 2), lambda m: m(x=t, y=t * 2, z=t)):
        assert call(program.module()).tolist() == [9.0, 9.0]


@pytest.mark.parametrize(
    ("args", "kwargs", "kind"),
    [
        ((torch.ones(3), 3), {"mask": torch.ones(4)}, InputMismatch),
        ((torch.ones(2, 4), 3), {"mask": torch.ones(4)}, InputMismatch),
        ((torch.ones(2, 3).double(), 3), {"mask": torch.ones(4)}, InputMismatch),
        ((torch.ones(2, 3), 4), {"mask": torch.ones(4)}, InputMismatch),
        ((torch.ones(2, 3), 3.0), {"mask": torch.ones(4)}, InputMismatch),
        ((torch.ones(2, 3), True), {"mask": torch.ones(4)}, InputMismatch),
        ((torch.ones(2, 3), 3), {"mask": 1}, InputMismatch),
        ((torch.ones(2, 3), 3), {"mask": [torch.ones(4)]}, StructureMismatch),
        ((torch.ones(2, 3), 3), {}, StructureMismatch),
        ((torch.ones(2, 3), 3), {"mask": torch.ones(4), "more": 1}, StructureMismatch),
        ((torch.ones(2, 3), 3, torch.ones(4), 1), {}, StructureMismatch),
    ],
)
def test_inputs_of_another_kind_are_refused(args: Any, kwargs: Any, kind: type[Exception]) -> None:
    runnable = exported(EverythingModule(), torch.ones(2, 3), 3, mask=torch.ones(4))
    with pytest.raises(kind, match="what to do"):
        runnable(*args, **kwargs)


def test_more_positional_arguments_than_exported_are_refused() -> None:
    t = torch.ones(2)
    program = export(Containers(), ((t, [t]), t), {"last": t, "deep": {"k": t}})
    with pytest.raises(StructureMismatch):
        program.module()((t, [t]), t, t, last=t, deep={"k": t})


def test_what_was_exported_by_name_is_passed_by_name() -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return x + y

    t = torch.ones(2)
    runnable = export(Named(), (t,), {"y": t}).module()
    assert runnable(t, y=t).tolist() == [2.0, 2.0]
    with pytest.raises(StructureMismatch):  # as forward refuses it
        runnable(t, t)


def test_keys_of_dicts_may_be_in_another_order() -> None:
    class Subtracting(nn.Module):
        def forward(self, d: dict[str, torch.Tensor]) -> torch.Tensor:
            return d["a"] - d["b"]

    t = torch.ones(2)
    program = export(Subtracting(), ({"a": t, "b": t},))
    for runnable in (program.module(), unflatten(program)):
        assert runnable({"b": t, "a": t * 3}).tolist() == [2.0, 2.0]
        for wrong in ({"b": t, "c": t}, {"b": t}, {"b": t, "a": [t]}, {"b": t, "a": t, "c": t}, [t, t]):
            with pytest.raises(StructureMismatch):
                runnable(wrong)


class Colour(enum.Enum):
    RED, BLUE = 2, 3


@STRICT
def test_a_size_among_the_inputs_is_a_tuple_of_integers(strict: bool) -> None:
    class Expanding(nn.Module):
        def forward(self, x: torch.Tensor, size: torch.Size) -> torch.Tensor:
            return x.expand(size)

    x = torch.ones(1, 3)
    module = export(Expanding(), (x, torch.Size((2, 3))), strict=strict).module()
    for size in (torch.Size((2, 3)), (2, 3)):
        assert module(x, size).shape == (2, 3)
    with pytest.raises(InputMismatch):
        module(x, torch.Size((4, 3)))
    with pytest.raises(StructureMismatch):
        module(x, torch.Size((2, 2, 3)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((torch.ones(3),), "a tuple of arguments"),
        (((torch.ones(3),), {}), r"kwarg keyword mismatch: Got the following keywords \[\] but expected \['y'\]"),
        (((), {"y": torch.ones(3)}), "Trying to flatten user inputs"),
    ],
)
def test_example_inputs_have_the_containers_of_the_program(wrong: Any, message: str) -> None:
    class Adding(nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return x + y

    program = export(Adding(), (torch.ones(3),), {"y": torch.ones(3)})
    program.example_inputs = ((torch.zeros(3),), {"y": torch.zeros(3)})
    with pytest.raises(ValueError, match=message):
        program.example_inputs = wrong
    assert program.example_inputs[0][0].tolist() == [0.0] * 3


@STRICT
@pytest.mark.parametrize("value", [Colour.RED, enum.IntEnum("Level", "LOW HIGH").HIGH])
def test_a_member_of_an_enum_is_a_constant(value: Any, strict: bool) -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, factor: Any) -> torch.Tensor:
            return x * factor.value

    t = torch.ones(2)
    program = export(Scaled(), (t, value), strict=strict)
    for runnable in (program.module(), program.run_decompositions().module()):
        assert runnable(t, value).tolist() == [2.0, 2.0]
        for other in (Colour.BLUE, 2):
            with pytest.raises(InputMismatch):
                runnable(t, other)


@STRICT
@pytest.mark.parametrize(
    ("value", "other"),
    [(torch.float64, torch.int32), (torch.device("cpu"), torch.device("meta")), (b"a", b"b"), (2j, 3j)],
)
def test_other_constants_among_the_inputs_are_checked(value: Any, other: Any, strict: bool) -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor, chosen: Any) -> torch.Tensor:
            return x.to(chosen) if isinstance(chosen, (torch.dtype, torch.device)) else x + (chosen in (b"a", 2j))

    t = torch.ones(2)
    program = export(Chosen(), (t, value), strict=strict)
    for runnable in (program.module(), program.run_decompositions().module()):
        torch.testing.assert_close(runnable(t, value), Chosen()(t, value))
        with pytest.raises(InputMismatch, match="Guard failed: chosen =="):
            runnable(t, other)


@STRICT
def test_constants_are_no_state_of_the_module(strict: bool) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.tensor([2.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale + torch.tensor([1.0])

    runnable = exported(Scaled(), torch.ones(2), strict=strict)
    assert runnable(torch.ones(2)).tolist() == [3.0, 3.0]
    assert not runnable.state_dict()


def test_checks_can_be_left_out() -> None:
    program = export(Normalised().eval(), (torch.ones(2, 3),))
    with pytest.raises(InputMismatch):
        program.module()(torch.ones(5, 3))
    assert program.module(check_guards=False)(torch.ones(5, 3)).shape == (5, 4)


def test_inputs_that_share_memory_are_refused_where_updates_come_last() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return y * 2

    program = export(Writing(), (torch.ones(2), torch.ones(2)))
    t = torch.ones(2)
    assert program.module()(t, t).tolist() == [4.0, 4.0]  # the graph writes where the program does
    with pytest.raises(InputMismatch, match="share memory"):
        program.run_decompositions({}).module()(t, t)


@TABLES
def test_updates_do_not_see_each_other(table: str) -> None:
    class Swapping(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                old = x.clone()
                x.copy_(y.t())
                y.copy_(old)
            return x + y

    x = torch.arange(4.0).view(2, 2).requires_grad_()
    y = torch.full((2, 2), 7.0)
    exported(Swapping(), torch.ones(2, 2, requires_grad=True), torch.ones(2, 2), table=table)(x, y)
    assert x.tolist() == [[7.0, 7.0], [7.0, 7.0]]
    assert y.tolist() == [[0.0, 1.0], [2.0, 3.0]]


class BranchChecked(nn.Module):
    """Reads a number in a branch, and bounds it there."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        def yes(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            size: Any = n.item()
            torch._check(size >= 1)
            torch._check(size <= 4)
            return x * x.new_ones(size).sum()

        return torch.cond(x.sum() > 0, yes, lambda x, n: x - 1, (x, n))


class Selecting(nn.Module):
    """Has a size that depends on values, and bounds it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        torch._check(y.shape[0] < 3)
        return y * 2


@STRICT
def test_assertions_of_a_branch_are_in_the_branch(strict: bool) -> None:
    runnable = exported(BranchChecked(), torch.ones(3), torch.tensor(3), strict=strict)
    assert runnable(torch.ones(3), torch.tensor(4)).tolist() == [4.0] * 3
    assert runnable(-torch.ones(3), torch.tensor(9)).tolist() == [-2.0] * 3
    with pytest.raises(RuntimeError, match="Runtime assertion"):
        runnable(torch.ones(3), torch.tensor(9))


@STRICT
def test_assertions_of_a_branch_say_where_they_come_from(strict: bool) -> None:
    """EX-05"""
    program = export(BranchChecked(), (torch.ones(3), torch.tensor(3)), strict=strict)
    nested = [module for module in program.graph_module.children() if isinstance(module, torch.fx.GraphModule)]
    found = [n for module in nested for n in module.graph.nodes if n.target is torch.ops.aten._assert_scalar.default]
    assert found
    for node in found:
        assert 'File "' in node.meta["stack_trace"]
        assert "test_module.py" in node.meta["stack_trace"]


@STRICT
def test_assertions_of_one_branch_are_not_the_other_s(strict: bool) -> None:
    class OneChecked(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            def no(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
                size: Any = n.item()
                torch._check_is_size(size)
                torch._check(size <= 4, lambda: f"not {size}")
                return x + size

            return torch.cond(x.sum() > 0, lambda x, n: x * n.item(), no, (x, n))

    runnable = exported(OneChecked(), torch.ones(3), torch.tensor(3), strict=strict)
    assert runnable(torch.ones(3), torch.tensor(9)).tolist() == [9.0] * 3
    assert runnable(-torch.ones(3), torch.tensor(3)).tolist() == [2.0] * 3
    for wrong in (-1, 5):
        with pytest.raises(RuntimeError, match="Runtime assertion"):
            runnable(-torch.ones(3), torch.tensor(wrong))


def test_strict_export_refuses_assertions_that_it_would_lose() -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x, n: x * x.new_ones(n.item() + 2).sum(), lambda x, n: x - 1, (x, n))

    with pytest.raises(UnsupportedByRefimpl, match="strict=False"):
        export(Sized(), (torch.ones(3), torch.tensor(3)), strict=True)


@STRICT
def test_sizes_that_depend_on_values_are_checked(strict: bool) -> None:
    runnable = exported(Selecting(), torch.tensor([1.0, -1.0, 2.0, -2.0]), strict=strict)
    assert runnable(torch.tensor([1.0, -1.0, -2.0, -2.0])).tolist() == [2.0]
    with pytest.raises(RuntimeError, match="Runtime assertion"):
        runnable(torch.ones(4))


@STRICT
def test_an_assertion_is_said_without_common_divisors(strict: bool) -> None:
    class Viewing(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            rows: Any = n.item()
            return x.view(rows, 4)

    runnable = exported(Viewing(), torch.ones(24), torch.tensor(6), strict=strict)
    assert runnable(torch.ones(24), torch.tensor(6)).shape == (6, 4)
    with pytest.raises(RuntimeError, match=r"failed for expression Eq\(u\d+, 6\)"):
        runnable(torch.ones(24), torch.tensor(5))


def test_an_operator_that_raises_and_is_caught_is_not_in_the_graph() -> None:
    class Trying(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                y = x.view(-1, 7)
            except RuntimeError:
                y = x * 2
            return y + 1

    program = export(Trying(), (torch.ones(8),))
    assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == [
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]
    assert program.module()(torch.ones(8)).tolist() == [3.0] * 8


@STRICT
def test_values_read_at_run_time_are_checked(strict: bool) -> None:
    class Read(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            size: Any = n.item()
            torch._check(size >= 1)
            torch._check(size <= 5)
            return x.new_ones(size) + x.sum()

    program = export(Read(), (torch.ones(2), torch.tensor(3)), strict=strict)
    assert [(bounds.lower, bounds.upper) for bounds in program.range_constraints.values()] == [(1, 5)]
    for runnable in (program.module(), program.run_decompositions({}).module()):
        assert runnable(torch.ones(2), torch.tensor(5)).shape == (5,)
        with pytest.raises(RuntimeError, match="u0 <= 5"):
            runnable(torch.ones(2), torch.tensor(6))


def test_assertions_come_before_what_relies_on_them() -> None:
    class Late(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            size: Any = n.item()
            torch._check(size <= 5)
            x.add_(size)
            return x

    program = export(Late(), (torch.ones(2), torch.tensor(3)))
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="Runtime assertion"):
        program.module()(x, torch.tensor(6))
    assert x.tolist() == [1.0, 1.0]


@STRICT
def test_an_exported_module_can_be_exported_again(strict: bool) -> None:
    module = Normalised().eval()
    first = export(module, (torch.randn(4, 3),))
    again = export(first.module(), (torch.randn(4, 3),), strict=strict)
    assert [str(spec) for spec in again.graph_signature.input_specs] == [
        str(spec) for spec in first.graph_signature.input_specs
    ]
    x = torch.randn(4, 3)
    torch.testing.assert_close(again.module()(x), module(x))


class Limited(nn.Module):
    """Refuses an x whose first size is no multiple of 4, and an n of 3. Exported with 8 rows, it also needs at least 8."""

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        torch._check(x.shape[0] % 4 == 0)
        torch._check(n != 3)
        return x * n if x.shape[0] > 5 else x - n


@STRICT
def test_an_exported_module_keeps_its_guards_when_it_is_exported_again(strict: bool) -> None:
    def sizes(least: int | None = None) -> Any:
        return {0: Dim.AUTO if least is None else Dim("size", min=least, max=64)}, Dim.AUTO

    given = torch.randn(8, 3), 5
    first = export(Limited(), given, dynamic_shapes=sizes())
    for module, is_variadic in ((first.module(), False), (unflatten(first), True)):
        shapes, too_wide = ((made,) if is_variadic else made for made in (sizes(), sizes(least=2)))
        again = export(module, given, dynamic_shapes=shapes, strict=strict).module()
        torch.testing.assert_close(again(torch.ones(16, 3), 7), torch.full((16, 3), 7.0))
        for size, n in ((4, 5), (10, 5), (8, 3)):
            for refusing in (first.module(), again):
                with pytest.raises((InputMismatch, RuntimeError)):
                    refusing(torch.ones(size, 3), n)
        with pytest.raises(UserError, match="Constraints violated"):
            export(module, given, dynamic_shapes=too_wide, strict=strict)
    constant = export(first.module(), given, strict=strict)  # a program for one number is no program for another
    with pytest.raises(UserError, match=r"specialized it to be a constant \(5\)"):
        export(constant.module(), given, dynamic_shapes={"x": None, "n": Dim.DYNAMIC}, strict=strict)


@STRICT
def test_hooks_of_a_graph_module_are_exported(strict: bool) -> None:
    module = torch.fx.symbolic_trace(nn.Linear(3, 3))
    module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    module.register_forward_hook(lambda _, args, result: result * args[0])
    x = torch.randn(2, 3)
    torch.testing.assert_close(export(module, (x,), strict=strict).module()(x), module(x))
    assert "forward" not in vars(module)


def test_the_mode_is_that_of_the_export() -> None:
    runnable = exported(Normalised().eval(), torch.randn(4, 3))
    with pytest.raises(NotImplementedError, match="train"):
        runnable.train()
    with pytest.raises(NotImplementedError, match="eval"):
        runnable.eval()


def test_a_program_is_not_called_itself() -> None:
    program = export(Normalised(), (torch.randn(4, 3),))
    with pytest.raises(RuntimeError, match=r"call the module that its `module\(\)` returns"):
        program(torch.randn(4, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def step(i: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, self.linear(a).tanh()

        _, y = while_loop(lambda i, a: i < 2, step, (torch.tensor(0), x))
        return scan(lambda carry, row: (self.linear(carry + row), carry * 2), x[0] * 1, y)


def test_loops_that_read_parameters_are_exported_as_loops_of_any_length() -> None:
    """A trace for export has no backward: the loops are neither unrolled nor stacked for one."""
    module = Recurrent()
    program = export(module, (torch.randn(2, 3),), dynamic_shapes={"x": {0: Dim.DYNAMIC}})
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert names.count("while_loop") == names.count("scan") == 1
    for size in (3, 4):
        x = torch.randn(size, 3)
        y = module.linear(module.linear(x).tanh()).tanh()
        carry, outs = x[0], []
        for row in y:
            outs.append(carry * 2)
            carry = module.linear(carry + row)
        torch.testing.assert_close(program.module()(x), (carry, torch.stack(outs)))


class Switching(nn.Module):
    """no_grad in the function of a loop that reads parameters."""

    def __init__(self, loops: str) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.loops = loops

    def step(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.sum()
        return self.linear(x) * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "map" in self.loops:
            x = map_over(self.step, x)
        if "scan" in self.loops:
            x = scan(lambda carry, row: (carry + self.step(row), carry * 2), x[0] * 1, x)[1]
        return x


@pytest.mark.parametrize("loops", ["map", "scan", "scan of map"])
def test_a_switch_of_gradients_in_a_loop_holds_for_its_block_only(loops: str) -> None:
    module, x = Switching(loops), torch.randn(2, 3)
    runnable = exported(module, torch.randn(2, 3))
    rows = [module.step(row) for row in x] if "map" in loops else [*x]
    if "scan" in loops:
        rows = [rows[0] * 2, (rows[0] + module.step(rows[0])) * 2]
    expected, found = torch.stack(rows), runnable(x)
    torch.testing.assert_close(found, expected)
    pairs = ((found, runnable), (expected, module))
    gradients = [torch.autograd.grad(y.sum(), list(m.parameters())) for y, m in pairs]
    torch.testing.assert_close(*gradients)
