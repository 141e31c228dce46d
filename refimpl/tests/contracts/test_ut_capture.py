"""Contracts of capture's helpers (rows UT of docs/contracts.md) that are seen by what is captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx

import refimpl
from refimpl._torch import FakeTensor
from refimpl.capture.config import config
from refimpl.capture.public.errors import TorchRuntimeError, Unsupported
from refimpl.tests.contracts.contract_backend import Backend
from refimpl.upstream import predicates

Tensor = torch.Tensor


class Kept(Backend):
    """Gives the calls of its graphs."""

    def calls(self) -> list[list[fx.Node]]:
        return [[node for node in graph.graph.nodes if node.op.startswith("call")] for graph in self.graphs]


@pytest.fixture
def kept() -> Iterator[Kept]:
    refimpl.reset()
    yield Kept()
    refimpl.reset()


def test_an_argument_that_is_no_graph_s_is_a_break_and_no_crash(kept: Kept) -> None:
    """UT-15"""

    class Opaque:
        factor = 3

    def scaled(x: Tensor, how: Any) -> Tensor:
        return x * how.factor

    refimpl.allow_in_graph(scaled)

    def program(x: Tensor, how: Any) -> Tensor:
        return scaled(x + 1, how) * 2

    assert refimpl.optimize(kept)(program)(torch.ones(2), Opaque()).tolist() == [12, 12]
    assert [len(calls) for calls in kept.calls()] == [1, 1], "what is before and after it is in graphs"


def test_a_call_inside_of_a_transform_gives_what_the_function_gives(kept: Kept) -> None:
    """UT-18"""
    compiled = refimpl.optimize(kept)(lambda x: x.sin() * 2)
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(torch.func.vmap(compiled)(x), x.sin() * 2)
    assert kept.graphs == []
    assert torch.equal(torch.func.grad(lambda x: compiled(x).sum())(x), x.cos() * 2)
    assert torch.equal(compiled(x), x.sin() * 2)
    assert len(kept.graphs) == 1, "outside of one it is captured as always"


def test_a_size_that_is_needed_as_a_number_is_guarded(kept: Kept) -> None:
    """UT-24"""

    def program(x: Tensor) -> Tensor:
        y = x
        for _ in range(x.shape[0]):
            y = y + 1
        return y

    compiled = refimpl.optimize(kept, dynamic=True)(program)
    for size in (3, 4, 3):
        assert compiled(torch.zeros(size)).tolist() == [float(size)] * size
    assert len(kept.graphs) == 2


def test_example_values_are_the_running_state(kept: Kept) -> None:
    """UT-26"""

    def program(x: Tensor) -> Tensor:
        y = x + 1
        y.t_()
        return y * 2

    assert refimpl.optimize(kept)(program)(torch.ones(2, 3)).shape == (3, 2)
    add = kept.calls()[0][0]
    assert isinstance(add.meta["example_value"], FakeTensor)
    assert add.meta["example_value"].shape == (3, 2), "what was written in place later shows"


def test_a_tensor_is_found_in_a_list_by_identity(kept: Kept) -> None:
    """UT-27"""

    def program(x: Tensor, y: Tensor) -> Tensor:
        return x + 1 if x in [x, y] else y

    x, y = torch.ones(2), torch.zeros(2)
    assert refimpl.optimize(kept)(program)(x, y).tolist() == [2, 2]
    assert len(kept.graphs) == 1


def test_other_items_are_compared_by_value_as_eager_does(kept: Kept) -> None:
    """UT-27"""

    def program(x: Tensor, y: Tensor) -> Tensor:
        z = x.sin()
        return z + 1 if x in [y, x] else z

    one, two = torch.ones(1), torch.full((1,), 2.0)
    compiled = refimpl.optimize(kept)(program)
    for x, y in ((one, one), (one, torch.ones(1)), (two, one)):
        assert torch.equal(compiled(x, y), program(x, y))
    with pytest.raises(RuntimeError, match="ambiguous"):
        program(torch.ones(2), torch.ones(2))
    with pytest.raises(RuntimeError, match="ambiguous"):
        compiled(torch.ones(2), torch.ones(2))
    with pytest.raises(Unsupported, match="branch_on_tensor"):
        refimpl.optimize_assert(kept)(program)(one, two)
    constants = refimpl.optimize_assert(kept)(lambda x, n: x + (n in (1, "a", None)) + (n in [[1], {"k": n}]))
    for n in (1, "a", None, 1.0, True, 2, [1]):
        assert torch.equal(constants(one, n), one + (n in (1, "a", None)) + (n in [[1], {"k": n}]))


def test_a_symbolic_number_is_searched_for(kept: Kept) -> None:
    """UT-27"""

    def program(x: Tensor, y: Tensor) -> Tensor:
        found = (x.shape[0] in [4, y.shape[0]], 4 in x.shape, x.shape[0] not in (7, 8))
        return x[:1] + torch.tensor(found)

    compiled = refimpl.optimize(kept, dynamic=True, nopython=True)(program)
    for sizes in ((4, 5), (5, 5), (5, 6), (7, 6), (4, 9), (9, 3)):
        x, y = (torch.ones(size) for size in sizes)
        assert torch.equal(compiled(x, y), program(x, y)), sizes
    before = len(kept.graphs)
    compiled(torch.ones(11), torch.ones(12))
    assert len(kept.graphs) == before, "sizes that are in none of the lists share a graph"


def test_one_fake_mode_for_all_values_of_a_graph(kept: Kept) -> None:
    """UT-37, XC-01"""
    linear = torch.nn.Linear(3, 3)
    refimpl.optimize(kept, dynamic=True)(lambda x: linear(x).relu() + x)(torch.ones(2, 3))
    values = [node.meta["example_value"] for node in kept.graphs[0].graph.nodes if "example_value" in node.meta]
    assert len({value.fake_mode for value in values if isinstance(value, FakeTensor)}) == 1
    symbols = {str(value.shape[0]) for value in values if isinstance(value, FakeTensor) and value.dim() == 2}
    assert len(symbols - {"3"}) == 1, "a size is one symbol everywhere"


def test_what_fakes_cannot_do_is_a_break_or_an_error_by_its_kind(kept: Kept) -> None:
    """UT-38, XC-09"""

    def read(x: Tensor) -> Tensor:
        return x * x.sum().item()

    def shaped(x: Tensor) -> Tensor:
        return x.nonzero() + 1

    def wrong(x: Tensor) -> Tensor:
        return x @ torch.ones(7, 7)

    def branches(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else x + 1

    x = torch.ones(2)
    for program, flags in ((read, "capture_scalar_outputs"), (shaped, "capture_dynamic_output_shape_ops")):
        before = len(kept.graphs)
        assert torch.equal(refimpl.optimize(kept)(program)(x), program(x))
        split = len(kept.graphs) - before
        with config.patch(flags, True):
            refimpl.reset()
            assert torch.equal(refimpl.optimize(kept)(program)(x), program(x))
        assert len(kept.graphs) - before - split == 1
    with pytest.raises(RuntimeError, match=r"mat1|size mismatch"):
        refimpl.optimize(kept)(wrong)(x)
    with pytest.raises(TorchRuntimeError):
        refimpl.optimize_assert(kept)(wrong)(x)
    with pytest.raises(Unsupported, match="in branches"):
        refimpl.optimize_assert(kept)(branches)(x)


def test_capturing_leaves_buffers_alone(kept: Kept) -> None:
    """UT-41, XC-16"""
    norm = torch.nn.BatchNorm1d(2)
    x = torch.rand(4, 2)
    mean = norm.running_mean
    assert mean is not None
    before = mean.clone()
    refimpl.export_graph(norm)(x)
    assert torch.equal(mean, before), "an export runs nothing"
    other = torch.nn.BatchNorm1d(2)
    refimpl.optimize(kept)(norm)(x)
    other(x)
    assert other.running_mean is not None
    torch.testing.assert_close(mean, other.running_mean)


def test_state_of_generators_is_never_a_constant(kept: Kept) -> None:
    """UT-52, XC-15"""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.get_rng_state()
        y = x + torch.rand(2)
        torch.set_rng_state(state)
        return y, x + torch.rand(2)

    compiled = refimpl.optimize(kept)(program)
    first, again = compiled(torch.zeros(2))
    assert torch.equal(first, again)
    other, other_again = compiled(torch.zeros(2))
    assert torch.equal(other, other_again)
    functions = [
        torch.get_rng_state, torch.set_rng_state, torch.random.get_rng_state, torch.random.set_rng_state,
        torch.cuda.get_rng_state, torch.cuda.set_rng_state, torch.default_generator.get_state,
        torch.default_generator.set_state,
    ]  # fmt: skip
    assert all(map(predicates.is_rng_state_getter_or_setter, functions))
    assert not predicates.is_rng_state_getter_or_setter(torch.rand)


def test_marks_and_overrides_are_told_by_what_objects_have() -> None:
    """UT-52"""
    tensor = torch.ones(2)
    assert predicates.get_static_address_type(tensor) is None
    refimpl.mark_static_address(tensor)
    assert predicates.get_static_address_type(tensor) == "unguarded"
    refimpl.mark_static_address(tensor, guard=True)
    assert predicates.get_static_address_type(tensor) == "guarded"
    with pytest.raises(TypeError, match="a tensor"):
        refimpl.mark_static_address(3)

    class Overriding:
        @classmethod
        def __torch_function__(cls, *args: Any) -> None:
            return None

    assert predicates.is_torch_function_object(Overriding())
    assert not predicates.is_torch_function_object(3)
    assert predicates.is_tensor_base_attr_getter(getattr(torch.Tensor.shape, "__get__"))
    assert not predicates.is_tensor_base_attr_getter(Overriding().__torch_function__)


def test_whether_values_of_capture_have_an_override(kept: Kept) -> None:
    """UT-52"""

    class Answering(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    class Silent(torch.Tensor):
        __torch_function__: Any = torch._C._disabled_torch_function_impl

    class Answers:
        @classmethod
        def __torch_function__(cls, *args: Any) -> Any:
            return None

    class Plain:
        pass

    def program(x: Tensor, value: Any) -> Tensor:
        asked = (has((value,)), has((x, [value])), has((x,)))
        return x + torch.tensor(asked)

    has = torch.overrides.has_torch_function
    compiled = refimpl.optimize(kept, nopython=True)(program)
    x = torch.zeros(3)
    values = [x, x.as_subclass(Answering), x.as_subclass(Silent), Answers(), Plain(), 3, None, (Answers(),)]
    for value in values:
        assert torch.equal(compiled(x, value), program(x, value)), type(value)
    assert has((Answers(),))
    assert not has((x.as_subclass(Silent),))
