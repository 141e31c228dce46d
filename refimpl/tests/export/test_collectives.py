"""Collectives of torch.distributed are exported in functional form."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from refimpl.export import export
from refimpl.tests.export.forms import archived


@pytest.fixture(scope="module")
def _group() -> Iterator[None]:
    if distributed.is_initialized():
        pytest.skip("another test has a process group")
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    distributed.all_reduce(y, distributed.ReduceOp.MAX)
    return y + 1


def all_gather(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x), torch.empty_like(x)]
    distributed.all_gather(parts, x)
    return parts[0] + parts[1]


def all_gather_of_number(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty(()), torch.empty(())]
    distributed.all_gather(parts, x.sum())
    return parts[0]


def all_gather_as_a_stack(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(2, *x.shape)
    distributed.all_gather_into_tensor(y, x)
    return y


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(1, 3)
    distributed.reduce_scatter_tensor(y, x)
    return y


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    distributed.all_to_all_single(y, x)
    return y


def all_to_all_of_parts(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    distributed.all_to_all_single(y, x, [1, 1], [1, 1])
    return y


class Calling(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.usefixtures("_group")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (all_reduce, "all_reduce"),
        (all_gather, "all_gather_into_tensor"),
        (all_gather_of_number, "all_gather_into_tensor"),
        (all_gather_as_a_stack, "all_gather_into_tensor"),
        (reduce_scatter, "reduce_scatter_tensor"),
        (all_to_all, "all_to_all_single"),
        (all_to_all_of_parts, "all_to_all_single"),
    ],
)
def test_collectives_are_exported_in_functional_form(
    function: Callable[[torch.Tensor], torch.Tensor], operator: str
) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    program = export(Calling(function), (x,))
    called = [str(node.target) for node in program.graph.nodes if "c10d" in str(node.target)]
    assert called == [f"_c10d_functional.{operator}.default", "_c10d_functional.wait_tensor.default"]
    shape = function(x).shape
    for made in (program, archived(program), program.run_decompositions()):
        assert made.module()(x).shape == shape


@pytest.mark.usefixtures("_group")
def test_a_reduction_writes_to_its_tensor() -> None:
    """The group of the test leaves tensors as they are."""
    x = torch.ones(3)
    assert export(Calling(all_reduce), (x,)).module()(x).tolist() == [3.0] * 3


@pytest.mark.usefixtures("_group")
def test_a_collective_that_returns_a_handle_runs_as_it_is() -> None:
    def waiting(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        distributed.all_reduce(y, async_op=True)
        return y

    program = export(Calling(waiting), (torch.ones(3),))
    assert not [node for node in program.graph.nodes if "_c10d_functional" in str(node.target)]
