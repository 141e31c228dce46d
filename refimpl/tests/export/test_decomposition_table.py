"""The default table of `run_decompositions`: composite operators are in it, and one that is deleted is kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._decomp import core_aten_decompositions
from torch.nn import functional as F

from refimpl.export import default_decompositions, export
from refimpl.export.decomposition_table import CompositeTable, composite_decompositions

aten = torch.ops.aten


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.conv = nn.Conv2d(1, 1, 1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        assert isinstance(self.count, torch.Tensor)
        self.count.add_(1)
        return self.conv(self.linear(x)[None, None]).chunk(3, -1)


def targets_of(table: object, module: nn.Module, x: torch.Tensor) -> list[object]:
    program = export(module, (x,)).run_decompositions(table)  # type: ignore[arg-type]
    expected, actual = module(x), program.module()(x)
    torch.testing.assert_close(actual, expected)
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_a_deleted_operator_is_kept_and_others_are_not() -> None:
    table = default_decompositions()
    del table[aten.linear.default]
    kept = targets_of(table, Layers(), torch.randn(3, 3))
    assert aten.linear.default in kept
    assert aten.conv2d.default not in kept
    assert aten.convolution.default in kept
    assert aten.chunk.default not in kept
    table[aten.linear.default] = lambda x, w, b: aten.addmm.default(b, x, aten.t.default(w))
    assert aten.linear.default not in targets_of(table, Layers(), torch.randn(3, 3))


def test_a_kept_operator_does_not_change_how_others_are_decomposed() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    table = default_decompositions()
    del table[aten.linear.default]
    kept = targets_of(table, normalised(), torch.randn(4, 3))
    every = targets_of(None, normalised(), torch.randn(4, 3))
    assert set(kept) - {aten.linear.default} == set(every) - {aten.permute.default, aten.addmm.default}


def test_a_table_of_torch_is_read_where_it_keeps_its_rules() -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.silu(F.linear(x, x)).softmax(-1)

    table = core_aten_decompositions()
    kept = targets_of(table, Several(), torch.randn(3, 3))
    assert not {aten.linear.default, aten.silu.default, aten.softmax.int} & set(kept)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("strict", [False, True])
def test_by_default_composites_of_the_small_set_are_kept_and_others_are_not(mode: str, strict: bool) -> None:
    class Upsampled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.avg_pool1d(F.interpolate(x, scale_factor=2, mode=mode)[0], 2)

    x = torch.randn(1, 1, 2, 2)
    program = export(Upsampled(), (x,), strict=strict).run_decompositions()
    torch.testing.assert_close(program.module()(x), Upsampled()(x))
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert getattr(aten, f"upsample_{mode}2d").vec in called
    assert aten.avg_pool1d.default not in called
    assert aten.avg_pool2d.default in called
    called = targets_of(composite_decompositions(), Upsampled(), x)
    assert getattr(aten, f"upsample_{mode}2d").vec not in called


def test_no_table_leaves_a_copy_that_waits_to_be_lifted() -> None:
    class Lifting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return aten.lift_fresh_copy(x) + 1

    for table in ({}, None, composite_decompositions()):
        assert aten.lift_fresh_copy.default not in targets_of(table, Lifting(), torch.randn(2))


def test_core_operators_are_not_decomposed() -> None:
    class Core(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.LayerNorm(3), nn.BatchNorm1d(3)
            self.embedding = nn.Embedding(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.gelu(self.norm(self.layer(x)).softmax(0)) + self.embedding(torch.tensor([1]))

    targets = targets_of(None, Core().eval(), torch.randn(3, 3))
    for op in (
        aten.native_layer_norm,
        aten._softmax,
        aten.gelu,
        aten.embedding,
        aten._native_batch_norm_legit_no_training,
    ):
        assert op.default in targets
    program = export(Core(), (torch.randn(3, 3),)).run_decompositions()
    assert program.graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_functional.default)


def test_the_table_is_a_mapping_of_its_own() -> None:
    table = default_decompositions()
    for op in (aten.linear.default, aten.conv2d.default, aten.scaled_dot_product_attention.default):
        assert op in table
    for op in (aten.chunk.default, aten.reshape.default, "aten.linear"):
        assert op not in table
    other = table.copy()
    assert isinstance(other, CompositeTable)
    table.pop(aten.linear.default)
    assert (aten.linear.default in table, aten.linear.default in other) == (False, True)
    assert len(other) == len(table) + 1
    assert set(other) - set(table.keys()) == {aten.linear.default}
    with pytest.raises(KeyError):
        table.pop(aten.linear.default)
    assert table.pop(aten.linear.default, 3) == 3


def test_a_custom_composite_is_decomposed_unless_it_is_deleted() -> None:
    table = default_decompositions()
    with torch.library._scoped_library("refimpl_table", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
        op = torch.ops.refimpl_table.twice.default

        class Calling(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return op(x)

        assert targets_of(table, Calling(), torch.randn(2)) == [aten.sin.default, aten.mul.Tensor]
        del table[op]
        assert targets_of(table, Calling(), torch.randn(2)) == [op]


def test_updates_have_no_needless_copies() -> None:
    program = export(Layers(), (torch.randn(3, 3),)).run_decompositions()
    assert aten.copy.default not in [node.target for node in program.graph.nodes]
    assert list(program.graph_signature.buffers_to_mutate.values()) == ["count"]

    class Copied(nn.Module):  # here the copy is the program's: the results must not be one tensor
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = x + 1
            z = torch.empty_like(y).copy_(y)
            return y, z

    y, z = export(Copied(), (torch.ones(2),)).run_decompositions().module()(torch.ones(2))
    torch.testing.assert_close(y, z)
    assert y.data_ptr() != z.data_ptr()
