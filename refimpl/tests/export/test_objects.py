"""Objects that are no tensors, as constants and inputs: packed weights of torch's own class, and opaque objects of Python's."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._library.opaque_object import OpaqueBase, register_opaque_type

from refimpl.export import CustomObjArgument, InputKind, draft_export, export, save
from refimpl.export.archive.errors import ArchiveError
from refimpl.export.draft_report import FailureType

PACKED = "__torch__.torch.classes.quantized.LinearPackedParamsBase"


class Factor(OpaqueBase):
    """A number in an object."""

    def __init__(self, value: float) -> None:
        self.value = value


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Ops of namespace refimpl_objects: times(Tensor, Factor), and packed(Tensor, packed weights)."""
    register_opaque_type(Factor, typ="reference")
    kind = f"{Factor.__module__}.{Factor.__qualname__}"
    library = torch.library.Library("refimpl_objects", "FRAGMENT")
    library.define(f"times(Tensor x, {kind} factor) -> Tensor")
    library.impl("times", lambda x, factor: x * factor.value, "CompositeExplicitAutograd")
    torch.library.register_fake("refimpl_objects::times", lambda x, factor: torch.empty_like(x), lib=library)
    library.define(f"packed(Tensor x, {PACKED} weights) -> Tensor")
    library.impl("packed", lambda x, w: torch.ops.quantized.linear_dynamic_fp16(x, w), "CPU")
    torch.library.register_fake("refimpl_objects::packed", lambda x, w: x.new_empty(x.shape[0], 3), lib=library)
    yield
    library._destroy()


def packed_weights() -> torch.ScriptObject:
    torch.manual_seed(0)
    return torch.ops.quantized.linear_prepack_fp16(torch.randn(3, 4), torch.randn(3))


class Packed(nn.Module):
    """Has packed weights under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = packed_weights()
        self.inner: Any = nn.Module()
        self.inner.same = self.weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.refimpl_objects.packed(x, self.weights) + torch.ops.refimpl_objects.packed(x, self.inner.same)


@pytest.mark.parametrize("decomposed", [False, True], ids=["exported", "decomposed"])
def test_packed_weights_are_a_constant_under_all_their_names(decomposed: bool) -> None:
    module, x = Packed(), torch.randn(2, 4)
    program = export(module, (x,))
    program = program.run_decompositions() if decomposed else program
    (constant,) = [spec for spec in program.graph_signature.input_specs if spec.kind is InputKind.CUSTOM_OBJ]
    assert (constant.target, constant.arg) == ("weights", CustomObjArgument("obj_weights", PACKED))
    assert program.constants.keys() == {"weights", "inner.same"}
    assert all(value is module.weights for value in program.constants.values())
    assert list(program.graph_signature.lifted_custom_objs) == ["weights"]
    torch.testing.assert_close(program.module()(x), module(x))
    again = export(program.module(), (x,))
    torch.testing.assert_close(again.module()(x), module(x))


class Given(nn.Module):
    """Takes an object among its inputs."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        return getattr(torch.ops.refimpl_objects, self.operator)(x, given) + 1


@pytest.mark.parametrize("operator", ["packed", "times"])
def test_objects_are_inputs(operator: str) -> None:
    module, x = Given(operator), torch.randn(2, 4)
    given: Any = packed_weights() if operator == "packed" else Factor(2.0)
    other: Any = (
        torch.ops.quantized.linear_prepack_fp16(torch.ones(3, 4), None) if operator == "packed" else Factor(3.0)
    )
    program = export(module, (x, given))
    assert [spec.kind for spec in program.graph_signature.input_specs] == [InputKind.USER_INPUT] * 2
    assert isinstance(program.graph_signature.input_specs[1].arg, CustomObjArgument)
    for made in (program, program.run_decompositions()):
        for each in (given, other):
            torch.testing.assert_close(made.module()(x, each), module(x, each))
    with pytest.raises(AssertionError, match="given"):
        program.module()(x, 3)


def test_an_opaque_object_is_a_constant() -> None:
    class Owning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = Factor(2.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.refimpl_objects.times(x, self.factor)

    module = Owning()
    program = export(module, (torch.ones(2),))
    assert program.constants == {"factor": module.factor}
    assert program.module()(torch.ones(2)).tolist() == [2.0, 2.0]
    module.factor.value = 3.0  # the object itself, not what it was
    assert program.module()(torch.ones(2)).tolist() == [3.0, 3.0]


def test_archives_refuse_objects_by_name() -> None:
    with pytest.raises(ArchiveError, match="weights"):
        save(export(Packed(), (torch.randn(2, 4),)), io.BytesIO())


def test_operators_on_packed_weights_that_have_no_fake_kernel_are_exported_as_drafts() -> None:
    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = packed_weights()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized.linear_dynamic_fp16(x, self.weights).relu()

    module, x = Quantized(), torch.randn(2, 4)
    program = draft_export(module, (x,))
    assert program.report is not None
    assert [failure.failure_type for failure in program.report.failures] == [FailureType.MISSING_FAKE_KERNEL]
    torch.testing.assert_close(program.module()(x), module(x))
