"""Programs of the corpus do what their modules do: exported, strict or not, decomposed, unflattened, saved and loaded."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

from refimpl._torch import pytree
from refimpl.export import ExportedProgram, load, unflatten
from refimpl.export.errors import InputMismatch
from refimpl.tests.export.corpus import CASES, Arguments, Case, program_of
from refimpl.tests.export.forms import STRICT, archived, saved

EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
DECOMPOSED = {name: case for name, case in CASES.items() if case.decomposes}


def called(function: Any, module: torch.nn.Module, arguments: Arguments, calls: int = 1) -> list[Any]:
    """Results, inputs afterwards and the state of `module` afterwards, which then is what it was."""
    args, kwargs = copy.deepcopy(arguments)
    state = [*module.parameters(), *module.buffers()]
    before = [tensor.detach().clone() for tensor in state]
    results = [pytree.tree_map(_copied, function(*args, **kwargs)) for _ in range(calls)]
    after = [(tensor.detach().clone(), tensor.requires_grad) for tensor in (*module.parameters(), *module.buffers())]
    with torch.no_grad():
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
    return [results, args, kwargs, after]


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def assert_same_results(actual: Any, expected: Any, tolerance: float | None = 0.0) -> None:
    __tracebackhide__ = True
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert actual_spec == expected_spec
    for actual_leaf, expected_leaf in zip(actual_leaves, expected_leaves, strict=True):
        if isinstance(expected_leaf, torch.Tensor):
            torch.testing.assert_close(actual_leaf, expected_leaf, rtol=tolerance, atol=tolerance)
        else:
            assert actual_leaf == expected_leaf


def assert_same_state(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        loaded = actual[name]
        assert type(loaded) is type(tensor), name
        assert (loaded.dtype, loaded.shape, loaded.stride(), loaded.storage_offset(), loaded.requires_grad) == (
            tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad
        ), name  # fmt: skip
        assert (loaded.is_conj(), loaded.is_neg()) == (tensor.is_conj(), tensor.is_neg()), name
        assert torch.equal(_bits(loaded), _bits(tensor)), name


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def aliases(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, bool, bool]]:
    """For every two tensors, whether they are one object, and whether they share a storage."""
    return [
        (a, b, x is y, x.untyped_storage()._cdata == y.untyped_storage()._cdata)
        for a, x in tensors.items()
        for b, y in tensors.items()
    ]


def assert_same_program(actual: ExportedProgram, expected: ExportedProgram) -> None:
    assert str(actual) == str(expected)
    assert str(actual.graph) == str(expected.graph)
    assert actual.graph_module.code == expected.graph_module.code
    assert actual.graph_signature == expected.graph_signature
    assert actual.range_constraints == expected.range_constraints
    assert actual.guards == expected.guards
    assert actual.module_call_graph == expected.module_call_graph
    assert actual.verifiers == expected.verifiers
    assert_same_state(actual.state_dict, expected.state_dict)
    assert_same_state(actual.constants, expected.constants)
    assert aliases({**actual.state_dict, **actual.constants}) == aliases({**expected.state_dict, **expected.constants})
    assert [_meta(node) for node in nodes(actual)] == [_meta(node) for node in nodes(expected)]


def nodes(program: ExportedProgram) -> list[torch.fx.Node]:
    return [
        node
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ]


def _meta(node: torch.fx.Node) -> Any:
    described = pytree.tree_map(_value, node.meta.get("val"))
    kept = (
        "nn_module_stack",
        "stack_trace",
        "torch_fn",
        "original_aten",
        "seq_nr",
        "tensor_meta",
    )
    bindings = {str(symbol): str(path) for symbol, path in node.meta.get("unbacked_bindings", {}).items()}
    return node.name, described, bindings, {key: str(node.meta[key]) for key in kept if key in node.meta}


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = [str(n) for n in (*value.shape, *value.stride(), value.storage_offset())]
        return [str(value.dtype), sizes, value.requires_grad, str(value.device)]
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return [str(value), value.node.pytype.__name__, value.node.hint]
    return value


def assert_is_loaded_again(program: ExportedProgram, case: Case) -> None:
    """Saved and loaded it is the same program, computes the same at every call, and saves the same archive."""
    content = saved(program).getvalue()
    loaded = load(io.BytesIO(content))
    assert_same_program(loaded, program)
    assert saved(loaded).getvalue() == content
    for make in (case.inputs, *case.others):
        arguments = make()
        results = []
        for each in (loaded, program):
            args, kwargs = copy.deepcopy(arguments)
            results.append([each.module()(*args, **kwargs), args, kwargs])
        assert_same_results(*results)
        assert_same_state(loaded.state_dict, program.state_dict)  # updates happen, and the same ones
    for make in case.refused:
        args, kwargs = make()
        for each in (loaded, program):
            with pytest.raises(InputMismatch):
                each.module()(*args, **kwargs)


def original_of(case: Case) -> torch.nn.Module:
    """A module as the one that `program_of` exports was before."""
    torch.manual_seed(0)
    case.inputs()
    return case.module()


@pytest.mark.fractional
@STRICT
@EVERY_CASE
@pytest.mark.filterwarnings("ignore:The attribute")  # that forward assigns to
def test_an_exported_program_is_the_module(case: Case, strict: bool) -> None:
    module, program = program_of(case, strict=strict)
    assert _integers(module) == _integers(original_of(case))
    unflattened = unflatten(program)
    assert list(unflattened.state_dict()) == list(module.state_dict())
    for key, value in program.state_dict.items():
        assert value is module.state_dict(keep_vars=True)[key]
    for key, buffer in module.named_buffers():
        assert buffer is program.module().get_buffer(key)
    for make in (case.inputs, *case.others):
        arguments, original = make(), original_of(case)
        expected = called(original, original, arguments, calls=2)
        assert_same_results(called(program.module(), module, arguments, calls=2), expected)
        assert_same_results(called(unflattened, unflattened, arguments, calls=2), expected)
        assert_same_results(called(copy.deepcopy(unflattened), module, arguments, calls=2)[:3], expected[:3])
    assert_is_loaded_again(program, case)


def _integers(module: torch.nn.Module) -> dict[str, int]:
    """Attributes that a call would count in."""
    return {name: value for name, value in vars(module).items() if type(value) is int}


@pytest.mark.fractional
@STRICT
@pytest.mark.parametrize("case", DECOMPOSED.values(), ids=DECOMPOSED)
@pytest.mark.filterwarnings("ignore:The attribute")
def test_a_decomposed_program_is_the_module_too(case: Case, strict: bool) -> None:
    module, program = program_of(case, strict=strict)
    for table in ({}, None):
        decomposed = program.run_decompositions(table)
        for make in (case.inputs, *case.others):
            arguments, original = make(), original_of(case)
            expected = called(original, original, arguments, calls=2)
            assert_same_results(called(decomposed.module(), module, arguments, calls=2), expected, tolerance=None)
            if case.unflattens_decomposed and table is None:
                unflattened = unflatten(decomposed)
                assert_same_results(called(unflattened, unflattened, arguments, calls=2), expected, tolerance=None)


@pytest.mark.parametrize("case", DECOMPOSED.values(), ids=DECOMPOSED)
def test_a_loaded_program_is_decomposed_as_the_saved_one(case: Case) -> None:
    _, program = program_of(case)
    decomposed = program.run_decompositions()
    again = archived(program).run_decompositions()
    assert str(again.graph) == str(decomposed.graph)
    assert again.graph_signature == decomposed.graph_signature
    assert_is_loaded_again(decomposed, case)
