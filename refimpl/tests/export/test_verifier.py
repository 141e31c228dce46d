"""Graphs that a verifier refuses: they leave their dialect or do not fit their signature."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from refimpl.export import ExportedProgram, InputKind, OutputKind, SpecViolationError, export
from refimpl.export.verifier import TrainingIRVerifier, Verifier, verify_metadata, verify_placeholder_names
from refimpl.tests.export.forms import STRICT
from refimpl.tests.export.modules import EverythingModule, Mutating, Normalised

aten = torch.ops.aten


@pytest.fixture
def program() -> ExportedProgram:
    return export(Normalised(), (torch.randn(4, 3),))


def nodes(program: ExportedProgram, op: str) -> list[fx.Node]:
    return (
        list(program.graph.find_nodes(op=op))
        if op != "call_function"
        else [n for n in program.graph.nodes if n.op == op]
    )


def test_programs_are_in_their_dialects(program: ExportedProgram) -> None:
    program.validate()
    assert (program.dialect, program.verifier) == ("TRAINING", TrainingIRVerifier)
    functional = program.run_decompositions({})
    functional.validate()
    assert (functional.dialect, functional.verifier) == ("ATEN", Verifier)


def test_a_write_is_in_the_training_dialect_only() -> None:
    module = export(Mutating(), (torch.ones(3),)).graph_module
    TrainingIRVerifier().check_graph_module(module)
    with pytest.raises(SpecViolationError, match="not functional"):
        Verifier().check_graph_module(module)


def test_functional_graphs_do_not_write() -> None:
    program = export(Mutating(), (torch.ones(3),)).run_decompositions({})
    assert not any(node.target._schema.is_mutable for node in nodes(program, "call_function"))  # type: ignore[union-attr]


def _python_function(program: ExportedProgram) -> None:
    node = nodes(program, "call_function")[0]
    with program.graph.inserting_after(node):
        program.graph.call_function(print, (node,))


def _method(program: ExportedProgram) -> None:
    node = nodes(program, "call_function")[0]
    with program.graph.inserting_after(node):
        program.graph.call_method("sin", (node,))


def _tensor_attribute(program: ExportedProgram) -> None:
    program.graph_module.register_buffer("loose", torch.ones(1))
    with program.graph.inserting_before(nodes(program, "call_function")[0]):
        program.graph.get_attr("loose")


def _value_of_no_kind(program: ExportedProgram) -> None:
    nodes(program, "call_function")[0].meta["val"] = object()


def _list_of_values_of_no_kind(program: ExportedProgram) -> None:
    nodes(program, "call_function")[0].meta["val"] = ([[object()]], None)


def _no_value(program: ExportedProgram) -> None:
    del nodes(program, "call_function")[0].meta["val"]


def _no_such_parameter(program: ExportedProgram) -> None:
    program.graph_signature.input_specs[0].target = "missing"


def _another_name(program: ExportedProgram) -> None:
    nodes(program, "placeholder")[0].name = "p_other"


def _output_missing(program: ExportedProgram) -> None:
    program.graph_signature.output_specs.pop()


def _output_of_another_name(program: ExportedProgram) -> None:
    program.graph_signature.replace_all_uses(nodes(program, "call_function")[-1].name, "other")


def _update_of_nothing(program: ExportedProgram) -> None:
    spec = program.graph_signature.output_specs[0]
    spec.kind, spec.target = OutputKind.BUFFER_MUTATION, "missing"


def _no_constant(program: ExportedProgram) -> None:
    spec = program.graph_signature.input_specs[0]
    spec.kind = InputKind.CONSTANT_TENSOR


def _no_parameter(program: ExportedProgram) -> None:
    program.state_dict["linear.weight"] = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_python_function, "not an allowed operator type"),
        (_no_value, "is missing val field"),
        (_method, "call_method"),
        (_tensor_attribute, "Invalid get_attr type"),
        (_value_of_no_kind, "invalid type <class 'object'>"),
        (_list_of_values_of_no_kind, "invalid type <class 'object'>"),
        (_no_such_parameter, "'missing' is not in the state dict"),
        (_another_name, "inputs of the graph are"),
        (_output_missing, "Number of output nodes 1 is different"),
        (_output_of_another_name, "in the signature"),
        (_update_of_nothing, "which is no such input"),
        (_no_constant, "is not in constants"),
        (_no_parameter, r"expected: a torch\.nn\.Parameter"),
    ],
)
def test_what_is_in_no_dialect_or_does_not_fit_the_signature_is_refused(
    program: ExportedProgram, spoil: Callable[[ExportedProgram], None], message: str
) -> None:
    spoil(program)
    with pytest.raises(SpecViolationError, match=message):
        program.validate()


def test_a_value_may_be_a_list_of_lists_as_that_of_a_collective_is() -> None:
    program = export(Normalised(), (torch.randn(4, 3),))
    node = nodes(program, "call_function")[0]
    value = node.meta["val"]
    node.meta["val"] = ([[value]], None)
    program.validate()
    node.meta["val"] = ([[object()]], None)
    with pytest.raises(SpecViolationError):
        program.validate()


@STRICT
def test_nodes_say_which_modules_they_come_from(strict: bool) -> None:
    program = export(Normalised(), (torch.randn(4, 3),), strict=strict)
    for each in (program, program.run_decompositions({})):
        verify_metadata(each.graph_module)
    stacks = [list(node.meta["nn_module_stack"].values()) for node in nodes(program, "call_function")]
    root = ("", f"{Normalised.__module__}.Normalised")
    assert stacks[0] == [root, ("linear", "torch.nn.modules.linear.Linear")]
    assert stacks[-1] == [root]
    assert all("export/modules.py" in node.meta["stack_trace"] or "nn/modules" in node.meta["stack_trace"]
               for node in nodes(program, "call_function"))  # fmt: skip


@pytest.mark.parametrize(
    ("op", "field", "value", "message"),
    [
        ("call_function", "nn_module_stack", None, "is None, but should be a dict"),
        ("call_function", "nn_module_stack", {"a": "b"}, "is {'a': 'b'}, but should be a dict"),
        ("call_function", "stack_trace", 3, "is 3, but should be text"),
        ("placeholder", "stack_trace", "line", "a placeholder should have none"),
        ("output", "nn_module_stack", {}, "an? output should have none"),
    ],
)
def test_metadata_of_another_kind_is_refused(
    program: ExportedProgram, op: str, field: str, value: Any, message: str
) -> None:
    nodes(program, op)[0].meta[field] = value
    with pytest.raises(SpecViolationError, match=message):
        verify_metadata(program.graph_module)


def test_placeholders_of_state_have_prefixes() -> None:
    program = export(EverythingModule(), (torch.ones(2, 3), 3))
    verify_placeholder_names(program.graph_module, program.graph_signature)
    renamed = copy.deepcopy(program.graph_signature)
    node = nodes(program, "placeholder")[0]
    renamed.replace_all_uses(node.name, "weight")
    node.name = "weight"
    with pytest.raises(SpecViolationError, match="does not follow spec"):
        verify_placeholder_names(program.graph_module, renamed)


def test_arithmetic_of_sizes_is_in_both_dialects() -> None:
    assert operator.add in Verifier().allowed_builtin_ops()
    assert operator.add in TrainingIRVerifier().allowed_builtin_ops()
