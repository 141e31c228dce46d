"""Programs with `local_map`, on plain tensors and on DTensors, and calls of its operator.

The process group is one of torch's that communicates with nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import refimpl

if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import local_map
from torch.testing._internal.distributed.fake_pg import FakeStore

Program = Callable[..., Any]
ROADS: dict[str, Callable[[Program], Program]] = {
    "compile": lambda function: refimpl.compile(function, backend="aot_eager"),
    "compile_aot": refimpl.compile_aot,
}


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    if torch.distributed.is_initialized():
        pytest.skip("another test has a process group")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


map_locally: Any = local_map


def mapped(mesh: DeviceMesh, placement: Any) -> Program:
    """The sine of what `local_map` computes."""

    def products(w: Any, x: Any) -> Any:
        return torch.mm(w, x).relu()

    function = map_locally(
        products, out_placements=[placement], in_placements=([placement], [Replicate()]), device_mesh=mesh
    )
    return lambda w, x: function(w, x).sin()


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 4), torch.randn(4, 4)


def test_plain_tensors_are_one_graph(mesh: DeviceMesh) -> None:
    function = mapped(mesh, Replicate())
    for compiled in (refimpl.compile(function, fullgraph=True, backend="aot_eager"), refimpl.compile_aot(function)):
        assert torch.equal(compiled(*pair()), function(*pair()))


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("placement", [Replicate(), Shard(0)], ids=str)
def test_distributed_tensors_give_values_gradients_and_placements_of_eager_mode(
    mesh: DeviceMesh, placement: Any, road: str
) -> None:
    """The mesh is a part of a DTensor that is no tensor."""

    def seen(function: Program) -> list[Any]:
        w, x = pair()
        distributed = DTensor.from_local(w, mesh, [placement]), DTensor.from_local(x, mesh, [Replicate()])
        w, x = (tensor.detach().requires_grad_() for tensor in distributed)
        result = function(w, x)
        result.to_local().sum().backward()
        return [result, w.grad, x.grad]

    function = mapped(mesh, placement)
    compiled = ROADS[road](function)
    for _ in range(2):
        for expected, actual in zip(seen(function), seen(compiled), strict=True):
            assert actual.placements == expected.placements
            torch.testing.assert_close(actual.to_local(), expected.to_local())


def test_operators_on_distributed_tensors_are_one_graph(mesh: DeviceMesh) -> None:
    def function(w: Any, x: Any) -> Any:
        return (w + x).sin()

    w, x = (DTensor.from_local(tensor, mesh, [Shard(0)]) for tensor in pair())
    compiled = refimpl.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(w, x).to_local(), function(w, x).to_local())
    w, x = (DTensor.from_local(tensor, mesh, [Replicate()]) for tensor in pair())
    assert compiled(w, x).placements == (Replicate(),)


def test_a_trace_records_what_the_operator_runs(mesh: DeviceMesh) -> None:
    module = pytest.importorskip("torch._higher_order_ops.local_map")
    body = torch.fx.symbolic_trace(lambda w, x: (torch.mm(w, x).relu(),))
    placements = ([Replicate()], [Replicate()])
    body.meta["local_map_kwargs"] = {
        "in_placements": placements, "out_placements": placements[:1], "device_mesh": mesh,
    }  # fmt: skip

    def function(w: Any, x: Any) -> Any:
        return module.local_map_hop(body, w, x)[0].sin()

    def seen(function: Program) -> list[Any]:
        w, x = (tensor.requires_grad_() for tensor in pair())
        result = function(w, x)
        result.sum().backward()
        return [result, w.grad, x.grad]

    for expected, actual in zip(seen(function), seen(refimpl.compile_aot(function)), strict=True):
        torch.testing.assert_close(actual, expected)
    targets = [node.target for node in refimpl.make_fx(function, tracing_mode="fake")(*pair()).graph.nodes]
    assert torch.ops.aten.mm.default in targets
