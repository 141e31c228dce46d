"""Contracts of export (rows EX of docs/contracts.md) that the other tests of export do not show."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import refimpl
from refimpl.capture.config import config
from refimpl.capture.public.errors import Unsupported, UserError, UserErrorType
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import (
    ConstantArgument,
    Dim,
    ExportedProgram,
    OutputKind,
    SymIntArgument,
    TensorArgument,
    export,
)
from refimpl.export.entry_points import _export, _export_for_training
from refimpl.export.lifted_graph import argument_of
from refimpl.export.module_stacks import ROOT_KEY, normalise_module_stacks
from refimpl.export.shapes.policies import argument_names
from refimpl.export.traced_program import TracedProgram
from refimpl.tests.export.modules import EverythingModule, Mutating, Normalised
from refimpl.tests.graphs import targets_of

MODES = pytest.mark.parametrize("strict", [False, True], ids=["non_strict", "strict"])
aten = torch.ops.aten


def kinds(program: ExportedProgram) -> list[str]:
    return [spec.kind.name for spec in program.graph_signature.output_specs]


def test_carriers_of_results_are_frozen() -> None:
    carrier = TracedProgram(graph_module=torch.fx.GraphModule({}, torch.fx.Graph()), out_spec=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        carrier.out_spec = None  # type: ignore[misc, assignment]


def test_backends_with_kernels_of_their_own_leave_no_trace() -> None:
    module = nn.Conv2d(3, 4, 3)
    codes = []
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled):
            codes.append(export(module, (torch.randn(1, 3, 5, 5),)).graph_module.code)
            assert torch.backends.mkldnn.enabled is enabled
    assert codes[0] == codes[1]
    assert targets_of(export(module, (torch.randn(1, 3, 5, 5),))) == [aten.conv2d.default]


@MODES
def test_no_wrapper_is_seen_in_names(strict: bool) -> None:
    program = export(Normalised(), (torch.randn(4, 3),), strict=strict)
    for node in program.graph.nodes:
        for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
            assert key == ROOT_KEY + path
            assert "_export_root" not in path
            assert "L['self']" not in path


def test_strict_export_keeps_the_symbols_of_the_capture() -> None:
    n = Dim("n")
    program = export(Normalised(), (torch.randn(4, 3),), dynamic_shapes=({0: n},), strict=True)
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert len({id(value.fake_mode) for value in values if isinstance(value, FakeTensor)}) == 1
    sizes = [size for value in values if isinstance(value, FakeTensor) for size in value.shape]
    assert {size.node.expr for size in sizes if isinstance(size, torch.SymInt)} == set(program.range_constraints)


@MODES
def test_modules_in_containers_have_dotted_paths(strict: bool) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU())])
            self.named = nn.ModuleDict({"k": nn.Tanh()})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.named["k"](x)

    program = export(Deep(), (torch.randn(1, 2),), strict=strict)
    stacks = [node.meta["nn_module_stack"] for node in program.graph.nodes if node.op == "call_function"]
    assert [[path for path, _ in stack.values()][-1] for stack in stacks] == ["layers.0.0", "layers.0.1", "named.k"]
    assert stacks[0][ROOT_KEY] == ("", f"{__name__}.{Deep.__qualname__}")


@MODES
def test_placeholders_require_gradients_as_what_they_stand_for(strict: bool) -> None:
    program = export(nn.Linear(2, 2), (torch.randn(1, 2),), strict=strict)
    values = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")]
    assert [value.requires_grad for value in values] == [True, True, False]


@MODES
def test_every_name_of_every_module_is_in_the_call_graph(strict: bool) -> None:
    linear = nn.Linear(2, 2)
    program = export(nn.Sequential(linear, nn.ReLU(), linear), (torch.randn(1, 2),), strict=strict)
    assert [entry.fqn for entry in program.module_call_graph] == ["", "0", "1", "2"]
    assert [entry.signature is not None for entry in program.module_call_graph] == [True, False, False, False]
    signature = program.module_call_graph[0].signature
    assert signature is not None
    assert (signature.in_spec, signature.out_spec) == program.call_spec


def test_arguments_must_be_a_tuple_that_forward_takes() -> None:
    x = torch.randn(1, 2)
    for args in ([x], x, {"input": x}):
        with pytest.raises(UserError, match="Expecting `args` to be a tuple of example positional inputs") as raised:
            export(nn.Linear(2, 2), args)  # type: ignore[arg-type]
        assert raised.value.error_type is UserErrorType.INVALID_INPUT
    with pytest.raises(UserError, match="Expecting `kwargs` to be a dict"):
        export(nn.Linear(2, 2), (x,), [x])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="missing a required argument"):
        export(nn.Linear(2, 2), ())
    with pytest.raises(UserError, match="not supported or pytree-flattenable"):
        export(nn.Linear(2, 2), (object(),))


def test_only_modules_are_exported() -> None:
    with pytest.raises(ValueError, match=r"Expected `mod` to be an instance of `torch\.nn\.Module`"):
        export(torch.sin, (torch.ones(1),))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ScriptModule"):
        export(torch.jit.script(nn.Linear(1, 1)), (torch.ones(1),))


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x


def test_control_flow_that_depends_on_data_is_refused_with_the_user_s_line() -> None:
    with pytest.raises(UserError, match=r"torch\._check") as raised:
        export(DataDependent(), (torch.ones(2),))
    assert raised.value.error_type is UserErrorType.ANTI_PATTERN
    assert raised.value.case_name == "constrain_as_size_example"
    assert "x.sum() > 0" in str(raised.value)
    assert isinstance(raised.value, GuardOnDataDependentSymNode)
    with pytest.raises(UserError) as raised:
        export(DataDependent(), (torch.ones(2),), strict=True)
    assert raised.value.error_type is UserErrorType.DYNAMIC_CONTROL_FLOW


def test_a_graph_break_is_an_error_in_strict_export() -> None:
    class Breaking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x + 1

    with pytest.raises(Unsupported):
        export(Breaking(), (torch.ones(2),), strict=True)


@MODES
def test_programs_are_told_that_they_are_exported(strict: bool) -> None:
    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            is_told = torch.compiler.is_compiling() and refimpl.is_compiling()
            return x + 1 if is_told else x - 1

    assert not torch.compiler.is_compiling()
    assert targets_of(export(Asking(), (torch.ones(2),), strict=strict)) == [aten.add.Tensor]
    assert not torch.compiler.is_compiling()
    with pytest.raises(UserError):
        export(DataDependent(), (torch.ones(2),))
    assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()


@MODES
def test_parameters_are_not_touched(strict: bool) -> None:
    module = Normalised()
    before = {name: (id(value), value._version) for name, value in module.state_dict(keep_vars=True).items()}
    export(module, (torch.randn(4, 3),), strict=strict)
    assert {name: (id(value), value._version) for name, value in module.state_dict(keep_vars=True).items()} == before


@MODES
def test_arguments_are_specified_by_their_kinds(strict: bool) -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor, n: int, s: str, z: None) -> tuple[Any, ...]:
            return x * n, n + 1, None, 2.5, s

    program = export(Many(), (torch.ones(1), 3, "word", None), strict=strict)
    assert [type(spec.arg) for spec in program.graph_signature.input_specs] == [TensorArgument] + [ConstantArgument] * 3
    outputs = [spec.arg for spec in program.graph_signature.output_specs]
    assert outputs[1:] == [ConstantArgument("", value) for value in (4, None, 2.5, "word")]
    assert program.module()(torch.ones(1), 3, "word", None)[1:] == (4, None, 2.5, "word")
    with pytest.raises(RuntimeError, match="n == 3"):
        program.module()(torch.ones(1), 5, "word", None)


@MODES
def test_sizes_among_the_results_are_numbers_of_the_graph(strict: bool) -> None:
    class Size(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return x + 1, x.shape[0] * 2

    program = export(Size(), (torch.ones(3),), dynamic_shapes=({0: Dim("n")},), strict=strict)
    assert isinstance(program.graph_signature.output_specs[1].arg, SymIntArgument)
    assert program.module()(torch.ones(5))[1] == 10


def test_results_that_no_graph_gives_are_refused() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, {1, 2}

    for strict in (False, True):
        with pytest.raises(UserError, match="outputs with type") as raised:
            export(Odd(), (torch.ones(1),), strict=strict)
        assert raised.value.error_type is UserErrorType.INVALID_OUTPUT


@MODES
def test_updates_are_the_first_outputs_of_a_functional_graph(strict: bool) -> None:
    program = export(Mutating(), (torch.ones(3),), strict=strict)
    assert kinds(program) == ["USER_OUTPUT"]
    functional = program.run_decompositions({})
    assert kinds(functional) == ["BUFFER_MUTATION", "USER_INPUT_MUTATION", "USER_OUTPUT"]
    assert list(functional.graph_signature.buffers_to_mutate.values()) == ["calls"]
    assert list(functional.graph_signature.user_inputs_to_mutate.values()) == ["x"]


@MODES
def test_the_graph_for_training_is_above_autograd_and_writes_in_place(strict: bool) -> None:
    program = export(Normalised(), (torch.randn(4, 3),), strict=strict)
    assert targets_of(program) == [aten.linear.default, aten.add_.Tensor, aten.batch_norm.default, aten.relu.default]
    assert kinds(program) == ["USER_OUTPUT"]
    functional = program.run_decompositions({})
    assert aten.linear.default in targets_of(functional)  # a composite operator that nobody asked to decompose
    assert kinds(functional) == ["BUFFER_MUTATION"] * 3 + ["USER_OUTPUT"]
    assert aten.linear.default not in targets_of(program.run_decompositions())


def test_a_table_says_which_operators_are_decomposed() -> None:
    program = export(nn.Sequential(nn.Linear(2, 2), nn.SiLU()), (torch.randn(1, 2),))
    table = {aten.silu.default: lambda x: x * torch.sigmoid(x)}
    assert targets_of(program.run_decompositions(table)) == [
        aten.linear.default,
        aten.sigmoid.default,
        aten.mul.Tensor,
    ]


@MODES
def test_changes_of_the_grad_mode_are_accepted(strict: bool) -> None:
    class Switching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x * 2
            with torch.enable_grad():
                return x + y

    module = Switching()
    for is_enabled in (True, False):
        with torch.set_grad_enabled(is_enabled):
            program = export(module, (torch.ones(2, requires_grad=True),), strict=strict)
            assert torch.is_grad_enabled() is is_enabled
            assert program.module()(torch.ones(2)).tolist() == [3.0, 3.0]


def test_names_of_arguments_are_those_of_forward_and_of_the_call() -> None:
    def forward(a: Any, *args: Any, b: Any, **kwargs: Any) -> None: ...

    names = argument_names(inspect.signature(forward), (1, 2, 3), {"b": 4, "z": 5})
    assert names == ["a", "args_0", "args_1", "b", "z"]
    assert argument_names(inspect.signature(forward), (1,), {"z": 5, "b": 4}) == ["a", "z", "b"]


class AllAtOnce(nn.Module):
    """Tied parameters, a buffer that does not persist, a tensor attribute, an update."""

    buffer: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("buffer", torch.ones(3), persistent=False)
        self.register_buffer("count", torch.zeros(()))
        self.constant = torch.full((3,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.second(self.first(x)) * self.constant + self.buffer + self.count


def test_strict_and_non_strict_export_agree() -> None:
    for module, args in (
        (AllAtOnce(), (torch.randn(2, 3),)),
        (EverythingModule(), (torch.randn(2, 3), 2)),
        (Normalised(), (torch.randn(2, 3),)),
    ):
        one, other = (export(module, args, strict=strict) for strict in (False, True))
        assert str(one.graph_signature) == str(other.graph_signature)
        assert targets_of(one) == targets_of(other)
        assert one.constants.keys() == other.constants.keys()
        assert one.state_dict.keys() == other.state_dict.keys()
        stacks = [[n.meta.get("nn_module_stack") for n in program.graph.nodes] for program in (one, other)]
        assert stacks[0] == stacks[1]


@MODES
def test_a_result_that_is_one_value_stays_one(strict: bool) -> None:
    program = export(nn.Linear(2, 2), (torch.randn(1, 2),), strict=strict)
    assert program.call_spec.out_spec.is_leaf()
    assert isinstance(program.module()(torch.randn(1, 2)), torch.Tensor)


def test_private_entry_points_have_the_defaults_of_upstream() -> None:
    defaults = {p.name: p.default for p in inspect.signature(_export).parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert defaults == {
        "strict": True,
        "preserve_module_call_signature": (),
        "pre_dispatch": False,
        "prefer_deferred_runtime_asserts_over_guards": False,
    }
    public = inspect.signature(export).parameters
    assert (public["strict"].default, public["dynamic_shapes"].default) == (False, None)
    args = (torch.randn(4, 3),)
    assert _export(Normalised(), args, pre_dispatch=True).dialect == "TRAINING"
    functional = _export(Normalised(), args)
    assert functional.dialect == "ATEN"
    assert aten.linear.default not in targets_of(functional)
    assert _export_for_training(Normalised(), args, strict=False).dialect == "TRAINING"


def test_signatures_of_submodules_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="names of submodules"):
        export(nn.Linear(2, 2), (torch.ones(1, 2),), preserve_module_call_signature=("missing",))
    with pytest.raises(UnsupportedByRefimpl, match="whose strict and non-strict graphs differ"):
        export(TwoFaced(), (torch.ones(1, 2),), preserve_module_call_signature=("0",), strict=True)


class TwoFaced(nn.Sequential):
    """Does one thing where its bytecode is read, and another where it is run."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self[0](input) + (1 if torch.compiler.is_dynamo_compiling() else 2)


class Part(nn.Module):
    def forward(self, x: torch.Tensor, *, factor: int) -> tuple[torch.Tensor, int]:
        return x * factor, factor


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.part(x, factor=2)
        z, _ = self.part(y, factor=3)
        return z + y


@MODES
def test_inputs_and_outputs_of_submodules_are_told_where_asked_for(strict: bool) -> None:
    module = Whole()
    program = export(module, (torch.ones(1),), preserve_module_call_signature=("part",), strict=strict)
    calls = {entry.fqn: entry.signature for entry in program.module_call_graph}
    assert list(calls) == ["", "part", "part@1"]
    first, second = calls["part"], calls["part@1"]
    assert first is not None
    assert second is not None
    assert first.inputs == [TensorArgument("x"), ConstantArgument("", 2)]
    assert first.outputs == [TensorArgument("mul"), ConstantArgument("", 2)]
    assert second.inputs == [TensorArgument("mul"), ConstantArgument("", 3)]
    assert first.forward_arg_names == ["x", "factor"]
    assert first.out_spec.num_children == 2
    assert not module.part._forward_hooks
    assert not module.part._forward_pre_hooks
    decomposed = program.run_decompositions(
        {aten.mul.Tensor: lambda a, b: a + a * (b - 1) if b != 1 else NotImplemented}
    )
    assert [entry.fqn for entry in decomposed.module_call_graph] == list(calls)
    kept = decomposed.module_call_graph[2].signature
    assert kept is not None
    (added,) = decomposed.module_call_graph[1].signature.outputs[:1]  # type: ignore[union-attr]
    assert kept.inputs == [added, ConstantArgument("", 3)]
    nodes = {node.name: node.target for node in decomposed.graph.nodes}
    assert [nodes[arg.name] for arg in (added, kept.outputs[0])] == [aten.add.Tensor] * 2
    assert "clone" not in decomposed.graph_module.code


@MODES
def test_an_ambient_fake_mode_is_left_aside(strict: bool) -> None:
    module, x = nn.Linear(2, 2), torch.randn(3, 2)
    with FakeTensorMode() as ambient:
        program = export(module, (x,), strict=strict)
    value = next(iter(program.graph.nodes)).meta["val"]
    assert isinstance(value, FakeTensor)
    assert value.fake_mode is not ambient
    torch.testing.assert_close(program.module()(x), module(x))


@MODES
def test_conditions_may_be_assertions_of_the_graph(strict: bool) -> None:
    class Checked(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            torch._check(x.shape[0] * y.shape[0] <= 20)
            return x.sum() + y.sum()

    args, said = (torch.ones(3), torch.ones(4)), ({0: Dim("a")}, {0: Dim("b")})
    program = export(
        Checked(), args, dynamic_shapes=said, strict=strict, prefer_deferred_runtime_asserts_over_guards=True
    )
    assert aten._assert_scalar.default in targets_of(program)
    guarded = export(Checked(), args, dynamic_shapes=said, strict=strict)
    assert aten._assert_scalar.default not in targets_of(guarded)
    for runnable in (program.module(check_guards=False), guarded.module()):
        assert runnable(torch.ones(5), torch.ones(4)).item() == 9
        with pytest.raises(RuntimeError, match=r"20|s0\*s1"):
            runnable(torch.ones(5), torch.ones(5))


def test_a_program_prints_its_graph_signature_and_ranges() -> None:
    program = export(Normalised(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim("n", max=9)},))
    text = str(program)
    for expected in ("torch.ops.aten.linear.default", "p_linear_weight: PARAMETER", "VR[0, 9]", "# outputs"):
        assert expected in text


def test_the_guide_s_examples_give_what_they_say() -> None:
    guide = Path(__file__).parents[3] / "docs" / "export.md"
    assert doctest.testfile(str(guide), module_relative=False).failed == 0


def test_losses_and_gradients_have_kinds() -> None:
    assert {"LOSS_OUTPUT", "GRADIENT_TO_PARAMETER", "GRADIENT_TO_USER_INPUT", "TOKEN"} <= set(OutputKind.__members__)


class _Checked(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size: Any = n.item()
        torch._check(size >= 1)
        torch._check(size <= 5)
        return x.new_ones(size) + x.sum()


def _nested(program: ExportedProgram) -> list[torch.fx.GraphModule]:
    return [
        module
        for name, module in program.graph_module.named_modules()
        if name and isinstance(module, torch.fx.GraphModule)
    ]


@MODES
def test_nodes_of_assertions_say_where_the_condition_is(strict: bool) -> None:
    """EX-25"""
    program = export(_Checked(), (torch.ones(2), torch.tensor(3)), strict=strict)
    asserting = [node for node in program.graph.nodes if node.target is aten._assert_scalar.default]
    assert len(asserting) == 2
    for node in [*asserting, *(node.args[0] for node in asserting)]:
        assert "test_ex.py" in node.meta["stack_trace"]
        assert "forward" in node.meta["stack_trace"]
        assert node.meta["nn_module_stack"][ROOT_KEY][0] == ""
        assert "val" in node.meta


@MODES
def test_a_setting_leaves_assertions_out(strict: bool) -> None:
    """EX-25, EX-54"""

    class Related(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.reshape(y.shape[0], -1)

    shapes = {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}
    for module, args, options in (
        (_Checked(), (torch.ones(2), torch.tensor(3)), {}),
        (Related(), (torch.ones(12), torch.ones(3)), {"dynamic_shapes": shapes}),
    ):
        options = {"prefer_deferred_runtime_asserts_over_guards": bool(options), **options}
        asserting = export(module, args, strict=strict, **options)
        assert aten._assert_scalar.default in targets_of(asserting)
        with config.patch(do_not_emit_runtime_asserts=True):
            silent = export(module, args, strict=strict, **options)
        assert aten._assert_scalar.default not in targets_of(silent)
        assert torch.equal(silent.module()(*args), module(*args))
    with config.patch(do_not_emit_runtime_asserts=True):
        program = export(_Checked(), (torch.ones(2), torch.tensor(3)), strict=strict)
    inner = program.graph_module
    assert inner(torch.ones(2), torch.tensor(6))[0].shape == (6,)


def test_the_environment_has_that_setting(run_forked: Callable[[str], Any]) -> None:
    """EX-54"""
    code = (
        "import importlib, os, refimpl.capture.config as module\n"
        "for value in '10':\n"
        "    os.environ['TORCH_DYNAMO_DO_NOT_EMIT_RUNTIME_ASSERTS'] = value\n"
        "    print(importlib.reload(module).config.do_not_emit_runtime_asserts)"
    )
    assert (done := run_forked(code)).stdout.split() == ["True", "False"], done.stderr


@MODES
def test_a_condition_that_one_size_solves_is_checked_at_calls_and_an_equality_is_refused(strict: bool) -> None:
    """EX-54"""

    class Quarter(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] // 4 == 2 else x - 1

    class Four(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] == 4 else x - 1

    shapes = ({0: Dim("n")},)
    program = export(Quarter(), (torch.zeros(9),), dynamic_shapes=shapes, strict=strict)
    for size in (8, 9, 11):
        assert program.module()(torch.zeros(size)).tolist() == [1.0] * size
    for size in (7, 12):
        with pytest.raises((RuntimeError, AssertionError)):
            program.module()(torch.zeros(size))
    with pytest.raises(UserError, match="specialized it to be a constant \\(4\\)"):
        export(Four(), (torch.zeros(4),), dynamic_shapes=shapes, strict=strict)


@MODES
def test_a_program_s_own_error_and_the_user_s_have_torch_s_types(strict: bool) -> None:
    """EX-18"""

    class Violated(nn.Module):
        def forward(self, n: torch.Tensor) -> torch.Tensor:
            size: Any = n.item()
            torch._check(size >= 2)
            torch._check(size <= 1)
            return torch.ones(size)

    class Branching(nn.Module):
        def forward(self, n: torch.Tensor) -> torch.Tensor:
            size: Any = n.item()
            torch._check(size >= 0)
            return torch.ones(size) if size > 5 else torch.zeros(size)

    for exporting in (export, torch.export.export):
        with pytest.raises(RuntimeError) as raised:
            exporting(Violated(), (torch.tensor(7),), strict=strict)
        assert "UserError" not in type(raised.value).__name__
        assert ("TorchRuntimeError" in type(raised.value).__name__) is strict
    with pytest.raises(UserError, match=r"torch\._check") as caught:
        export(Branching(), (torch.tensor(7),), strict=strict)
    assert (caught.value.error_type, caught.value.case_name) == (
        UserErrorType.ANTI_PATTERN,
        "constrain_as_size_example",
    )

    class Promised(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.shape[0] > 3 else x

    with pytest.raises(UserError) as caught:
        export(Promised(), (torch.ones(5),), dynamic_shapes=({0: Dim("n", max=9)},), strict=strict)
    assert caught.value.error_type is UserErrorType.CONSTRAINT_VIOLATION


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k = torch.ones(2)
        self.K = torch.full((2,), 2.0)
        self.lin = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, c_k: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.lin(x) + self.k, lambda x: x.cos() * self.K + self.k + c_k, (x,))


@MODES
def test_constants_have_their_names_in_nested_graphs_too_and_do_not_collide(strict: bool) -> None:
    """EX-14"""
    args = torch.ones(2), torch.ones(2)
    program = export(_Branches(), args, strict=strict)
    outer = [node.name for node in program.graph.find_nodes(op="placeholder")]
    assert len({*outer}) == len(outer)
    assert {"c_k", "c_k_1", "c_k_2"} <= {*outer}, "the user's c_k, and the constants k and K"
    assert [spec.arg.name for spec in program.graph_signature.input_specs] == outer
    assert len(_nested(program)) == 2
    for nested in _nested(program):
        assert {node.name for node in nested.graph.find_nodes(op="placeholder")} <= {*outer}
        assert [node.name for node in nested.graph.find_nodes(op="placeholder")] == [
            node.target for node in nested.graph.find_nodes(op="placeholder")
        ]
    for sign in (1, -1):
        x = torch.ones(2) * sign
        torch.testing.assert_close(program.module()(x, args[1]), _Branches.forward(_bound(program), x, args[1]))


@MODES
def test_a_node_added_to_a_nested_graph_gets_a_name_of_its_own(strict: bool) -> None:
    """The graph knows the name that its placeholder got from the operand: `cos`, as a call of cos is called."""

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x.cos(),))

    program = export(Branching(), (torch.ones(2),), strict=strict)
    for nested in _nested(program):
        (placeholder,) = nested.graph.find_nodes(op="placeholder")
        assert placeholder.name == placeholder.target == "cos"
        with nested.graph.inserting_after(placeholder):
            added = nested.graph.call_function(torch.cos, (placeholder,))
        with nested.graph.inserting_before(nested.graph.output_node()):
            both = nested.graph.call_function(torch.mul, (placeholder, added))
        nested.graph.output_node().args = ((both,),)
        nested.recompile()
        x = torch.arange(2.0)
        torch.testing.assert_close(nested(x), (x * x.cos(),))
        assert added.name != "cos"


def _bound(program: ExportedProgram) -> Any:
    """A module with the parameters and constants of the program."""
    module = _Branches()
    module.load_state_dict(program.state_dict)
    return module


def test_what_is_no_argument_of_a_graph_is_refused() -> None:
    """EX-20"""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    with pytest.raises(AssertionError, match="has no 'val' in its meta"):
        argument_of(node)
    node.meta["val"] = object()
    with pytest.raises(AssertionError, match="Encountered an unsupported object of type <class 'object'> in x"):
        argument_of(node)
    with pytest.raises(AssertionError, match="Encountered an unsupported object of type <class 'set'>"):
        argument_of({1})
    for value in (3, 2.5, True, "text", None):
        assert argument_of(value) == ConstantArgument(name="", value=value)


@MODES
def test_nodes_of_branches_say_which_modules_they_come_from(strict: bool) -> None:
    """EX-10"""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU())])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.layers[0](x), lambda x: x.cos(), (x,))

    true_branch, false_branch = _nested(export(Deep(), (torch.ones(1, 2),), strict=strict))
    paths = [
        [path for path, _ in node.meta["nn_module_stack"].values()]
        for node in true_branch.graph.nodes
        if node.op == "call_function"
    ]
    assert paths == [["", "layers.0", "layers.0.0"], ["", "layers.0", "layers.0.1"]]
    for nested in (true_branch, false_branch):
        for node in nested.graph.nodes:
            assert ("nn_module_stack" in node.meta) is (node.op not in ("placeholder", "output"))
            if node.op == "call_function":
                assert node.meta["nn_module_stack"][ROOT_KEY] == ("", f"{__name__}.{Deep.__qualname__}")


def test_paths_are_read_off_sources_and_others_kept() -> None:
    """EX-10"""
    graph = torch.fx.Graph()
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    graph.output((node,))
    sources = ["L['self']", "L['self'].a[0]", "L['self'].a['k'].b", "weird().path", "a.b"]
    node.meta["nn_module_stack"] = {f"k{i}": (source, nn.ReLU) for i, source in enumerate(sources)}
    normalise_module_stacks(torch.fx.GraphModule(nn.Module(), graph), nn.Linear)
    paths = [path for path, _ in node.meta["nn_module_stack"].values()]
    assert paths == ["", "a.0", "a.k.b", "weird().path", "a.b"]
