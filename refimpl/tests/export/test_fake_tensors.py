"""Export of inputs, parameters, buffers and constants that the caller made under its own FakeTensorMode."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from refimpl.errors import ForeignFakeInput
from refimpl.export import Dim, ExportedProgram, export, load, save
from refimpl.export.archive.errors import ArchiveError
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.tests.export.forms import STRICT


class Scaled(torch.nn.Module):
    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(3))
        self.register_buffer("shift", torch.randn(3))
        self.constant = torch.ones(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * self.scale + self.shift, x.reshape(-1) @ x.reshape(-1) + self.constant


def fake_modes(program: ExportedProgram) -> set[Any]:
    values = [node.meta["val"] for node in program.graph.nodes if node.op != "output"]
    return {value.fake_mode for value in values if isinstance(value, FakeTensor)}


@STRICT
def test_a_program_exported_for_fake_inputs_runs_on_real_ones(strict: bool) -> None:
    module = Scaled()
    with FakeTensorMode():
        example = torch.randn(4, 3)
    program = export(module, (example,), strict=strict)
    x = torch.randn(4, 3)
    for got, expected in zip(program.module()(x), module(x), strict=True):
        assert torch.equal(got, expected)


@STRICT
def test_fake_state_and_constants_stay_what_they_are(strict: bool) -> None:
    with FakeTensorMode():
        module = Scaled()
    program = export(module, (torch.randn(4, 3),), dynamic_shapes=({0: Dim("n")},), strict=strict)
    assert program.state_dict["scale"] is module.scale
    assert program.state_dict["shift"] is module.shift
    assert program.constants == {"constant": module.constant}
    assert len(fake_modes(program)) == 1
    assert "c_constant" in [spec.arg.name for spec in program.graph_signature.input_specs]


@STRICT
def test_an_export_below_the_mode_of_its_inputs_is_called_there(strict: bool) -> None:
    with FakeTensorMode():
        module, x = Scaled(), torch.randn(4, 3)
        program = export(module, (x,), strict=strict)
        assert [value.shape for value in program.module()(x)] == [value.shape for value in module(x)]
        decomposed = program.run_decompositions()
        assert [value.shape for value in decomposed.module()(x)] == [value.shape for value in module(x)]


@STRICT
def test_state_and_inputs_of_two_modes_do_not_meet(strict: bool) -> None:
    with FakeTensorMode():
        module = Scaled()
    with FakeTensorMode():
        x = torch.randn(4, 3)
    assert len(fake_modes(export(module, (x,), strict=strict))) == 1


@STRICT
def test_symbols_of_the_caller_are_the_numbers_they_were_made_with(strict: bool) -> None:
    env = ShapeEnv()
    example = symbolic_fake_mode(env).from_tensor(torch.randn(4, 3))
    assert isinstance(example.shape[0], torch.SymInt)
    fixed = export(Scaled(), (example,), strict=strict)
    assert [tuple(node.meta["val"].shape) for node in fixed.graph.find_nodes(op="placeholder")][-1] == (4, 3)
    assert fixed.example_inputs is not None
    assert fixed.example_inputs[0][0] is example
    varying = export(Scaled(), (example,), dynamic_shapes=({0: Dim.AUTO},), strict=strict)
    module = varying.module()
    assert module(torch.ones(7, 3))[0].shape == (7, 3)
    assert not env.guards  # nothing was asked of the caller's sizes


@STRICT
def test_a_fake_view_keeps_its_layout_and_its_gradients(strict: bool) -> None:
    env = ShapeEnv()
    mode = symbolic_fake_mode(env)
    whole = mode.from_tensor(torch.randn(6, 4, requires_grad=True))
    with mode:
        example = whole.t()[1:]
    program = export(torch.nn.Hardtanh(), (example,), strict=strict)
    found = program.graph.find_nodes(op="placeholder")[0].meta["val"]
    assert (tuple(found.shape), found.stride(), found.storage_offset()) == ((3, 6), (1, 4), 1)
    assert found.requires_grad


def test_a_size_without_a_number_is_refused() -> None:
    env = ShapeEnv()
    size = env.create_unbacked_symint()
    with symbolic_fake_mode(env):
        example = torch.empty(size, 3)
    with pytest.raises(ForeignFakeInput, match="an example input with the unbacked symbol u0"):
        export(Scaled(), (example,))


@STRICT
def test_a_fake_constant_in_a_branch(strict: bool) -> None:
    with FakeTensorMode():
        module = Scaled()

    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            constant = self.inner.constant
            return torch.cond(x.sum() > 0, lambda x: x + constant, lambda x: x - constant, (x,))

    program = export(Branching(), (torch.randn(4, 3),), strict=strict)
    assert list(program.constants.values()) == [module.constant]


def test_an_archive_leaves_fake_examples_out_and_refuses_fake_state() -> None:
    module = Scaled()
    with FakeTensorMode():
        example, fake_module = torch.randn(4, 3), Scaled()
    file = io.BytesIO()
    save(export(module, (example,)), file)
    file.seek(0)
    loaded = load(file)
    assert loaded.example_inputs is None
    x = torch.randn(4, 3)
    assert torch.equal(loaded.module()(x)[0], module(x)[0])
    with pytest.raises(ArchiveError, match=r"state_dict\['scale'\] is a .*FakeTensor"):
        save(export(fake_module, (x,)), io.BytesIO())


@STRICT
def test_fake_state_is_returned_as_it_is(strict: bool) -> None:
    with FakeTensorMode():
        shared = Scaled()
        other = torch.randn(2)

    class Returning(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.tied = shared, shared.scale

        def forward(self, x: list[torch.Tensor], *, k: torch.Tensor) -> Any:
            return x[0] + self.tied + k, other, self.inner.shift, self.inner.constant[1:]

    with FakeTensorMode():
        x, k = torch.randn(4, 3), torch.randn(3)[1:2]
    program = export(Returning(), ([x],), {"k": k}, dynamic_shapes={"x": [{0: Dim("n")}], "k": None}, strict=strict)
    specs = {spec.target: spec.kind.name for spec in program.graph_signature.input_specs if spec.target}
    assert specs["tied"] == specs["inner.scale"] == "PARAMETER"
    assert [spec.arg.name for spec in program.graph_signature.output_specs][1:3] == [
        "c_lifted_tensor_0",
        "b_inner_shift",
    ]
    assert program.constants["lifted_tensor_0"] is other
