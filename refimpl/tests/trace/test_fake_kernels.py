"""A remembered result of a fake op is what the op gives."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import refimpl
from refimpl.errors import WrongFakeKernel
from refimpl.pipeline import compile_aot
from refimpl.tests.poisoned_kernels import HANDLERS, Poison, replaced
from refimpl.trace.fake_kernels import FakeKernelsState
from refimpl.trace.tracker import TrackerState

aten = torch.ops.aten


def _facts(result: Any, tensors: list[torch.Tensor]) -> Any:
    """All that a program can see of a fake result."""
    facts = []
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, FakeTensor) and leaf.layout is torch.strided:
            key = leaf.untyped_storage()._cdata
            same = [i for i, t in enumerate(tensors) if t is leaf]
            strided = [(i, t) for i, t in enumerate(tensors) if t.layout is torch.strided]
            shared = [i for i, t in strided if t.untyped_storage()._cdata == key]
            sizes = (leaf.shape, leaf.stride(), leaf.storage_offset())
            facts.append((sizes, leaf.dtype, leaf.device, leaf.is_conj(), leaf.is_neg(), same, shared))
        else:
            facts.append((type(leaf), leaf if isinstance(leaf, (int, float, bool)) else None))
    return type(result).__name__, facts


_NOT_IN_QUESTION = (RuntimeError, NotImplementedError, AssertionError, ValueError, TypeError, IndexError)
_OPS = [op for op in op_db if torch.float32 in op.supported_dtypes("cpu") and "sparse" not in op.name]


def _samples(op: OpInfo) -> Iterator[SampleInput]:
    """The samples of an op. `op.sample_inputs` looks for a unittest on the stack at each one, half of the time of this test."""
    set_rng_seed()
    return iter(op.sample_inputs_func(op, "cpu", torch.float32, False))


@pytest.mark.parametrize("part", range(4))
def test_cached_fake_results_equal_uncached_ones(part: int) -> None:
    """Every op of the OpInfo database with a few samples each, and all aten calls inside them."""
    fake_mode = FakeTensorMode(allow_fallback_kernels=True)
    kernels = FakeKernelsState(fake_mode)
    compared = 0
    for op in _OPS[part::4]:
        for sample in itertools.islice(_samples(op), 2):
            inputs = pytree.tree_map_only(
                torch.Tensor, fake_mode.from_tensor, (sample.input, list(sample.args), dict(sample.kwargs))
            )
            checker = _Checker(kernels)
            # What has no fake kernel, reads values, or has a shape that depends on data, is not in question here.
            with contextlib.suppress(*_NOT_IN_QUESTION), fake_mode, checker:
                op.op(inputs[0], *inputs[1], **inputs[2])
            assert checker.differences == [], op.full_name
            compared += checker.compared
    assert compared > 300


class _Checker(TorchDispatchMode):
    """Runs each call with no memory, as a miss and as a hit, on clones where it writes, and compares what is seen of results."""

    def __init__(self, kernels: FakeKernelsState) -> None:
        super().__init__()
        self.kernels = kernels
        self.forgetful = FakeKernelsState(kernels.fake_mode, is_caching=False)
        self.differences: list[str] = []
        self.compared = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
            return func(*args, **kwargs)
        seen = []
        for is_remembering in (False, True, True):
            a, k = _copies((args, kwargs)) if func._schema.is_mutable else (args, kwargs)
            tensors = [t for t in pytree.tree_leaves((a, k)) if isinstance(t, torch.Tensor)]
            if not is_remembering:
                result = self.forgetful.run(func, a, k, list(tensors), TrackerState())
            else:
                tracker = TrackerState()
                for tensor in tensors:
                    tracker.track(tensor, torch.fx.Graph().placeholder("x"), signature=self.kernels.signature(tensor))
                result = self.kernels.run(func, a, k, list(tensors), tracker)
            seen.append((_facts(result, tensors), _facts(tensors, [])))
        if not seen[0] == seen[1] == seen[2]:
            self.differences.append(f"{func}: {seen}")
        self.compared += 1
        return func(*args, **kwargs)


def _copies(value: Any) -> Any:
    """Tensors of the same sizes, strides and sharing, so that an op may write to them."""
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        return copies[id(tensor)]

    return pytree.tree_map_only(torch.Tensor, copy, value)


def _state() -> tuple[FakeTensorMode, FakeKernelsState]:
    fake_mode = FakeTensorMode()
    return fake_mode, FakeKernelsState(fake_mode)


def _run(kernels: FakeKernelsState, func: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    tracker = TrackerState()
    for tensor in tensors:
        tracker.track(tensor, torch.fx.Graph().placeholder("x"), signature=kernels.signature(tensor))
    with kernels.fake_mode:
        return kernels.run(func, args, kwargs, tensors, tracker)


@pytest.mark.parametrize("scalar", [(2, 2.0), (True, 1)])
def test_equal_numbers_of_other_types_are_other_calls(scalar: tuple[Any, Any]) -> None:
    fake_mode, kernels = _state()
    with fake_mode:
        x = torch.ones(3, dtype=torch.bool)
    dtypes = [_run(kernels, aten.mul.Tensor, x, s).dtype for s in scalar]
    assert dtypes == [(torch.ones(3, dtype=torch.bool) * s).dtype for s in scalar]
    assert dtypes[0] != dtypes[1]


def test_the_default_dtype_belongs_to_the_call() -> None:
    fake_mode, kernels = _state()
    with fake_mode:
        x = torch.ones(3, dtype=torch.int64)
    assert _run(kernels, aten.div.Tensor, x, 2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert _run(kernels, aten.div.Tensor, x, 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_remembered_view_shares_its_own_base() -> None:
    fake_mode, kernels = _state()
    with fake_mode:
        bases = [torch.ones(4, 6)[1:] for _ in range(2)]
    views = [_run(kernels, aten.select.int, base, 1, 2) for base in bases]
    assert [v.storage_offset() for v in views] == [8, 8]
    keys = [tensor.untyped_storage()._cdata for tensor in (*bases, *views)]
    assert keys[0] == keys[2] != keys[1] == keys[3]


def _written_over_its_input_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    torch.add(x, y, out=x)
    torch.add(x, y, out=z)
    return z


def _twice_the_same_first(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z, w = x.clone(), y.clone()
    torch.mul(z, z, out=z)
    torch.mul(w, z, out=y)
    return y + w


def _results_that_grow(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    grown = [torch.add(x, y, out=torch.empty(0)) for _ in range(3)]
    assert [out.shape for out in grown] == [x.shape] * 3
    return torch.stack(grown)


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("program", [_written_over_its_input_first, _twice_the_same_first, _results_that_grow])
def test_arguments_that_are_one_tensor_are_another_call(program: Any, mode: str) -> None:
    def arguments() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])

    graph_module = refimpl.make_fx(program, tracing_mode=mode)(*arguments())
    assert torch.equal(graph_module(*arguments()), program(*arguments()))


def test_the_base_of_a_view_is_not_an_argument_that_once_shared_its_storage() -> None:
    """With one storage for both arguments nothing says which of them the result is a view of."""
    fake_mode, kernels = _state()
    with fake_mode:
        x, y = torch.ones(3), torch.ones(3)
        alias = y.view(3)
    for other in (alias, x):
        result = _run(kernels, aten.add_.Tensor, y, other)
        assert result is y
    for other in (y, x):
        assert _run(kernels, aten.copy_.default, alias, other) is alias


def test_no_two_fresh_results_share_memory() -> None:
    fake_mode, kernels = _state()
    with fake_mode:
        x = torch.ones(4)
    first, second = (_run(kernels, aten.sin.default, x) for _ in range(2))
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_a_shape_that_changes_in_place_is_seen_by_the_next_op() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        before = y.sin()
        y.t_()
        return before.sum() + y.sin()

    graph = refimpl.make_fx(program, tracing_mode="fake")(torch.ones(2, 3)).graph
    shapes = [tuple(n.meta["val"].shape) for n in graph.nodes if n.target is aten.sin.default]
    assert shapes == [(2, 3), (3, 2)]


def test_a_mode_around_the_trace_sees_every_call() -> None:
    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += func is aten.cos.default
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        refimpl.make_fx(lambda x: x.cos() + x.cos() + x.cos(), tracing_mode="fake")(torch.ones(3))
    assert counter.calls == 3


def test_an_op_that_fails_fails_every_time() -> None:
    fake_mode, kernels = _state()
    with fake_mode:
        x, y = torch.ones(3), torch.ones(4)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            _run(kernels, aten.add.Tensor, x, y)


def _slice_scatter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, y, step=2)


def _index_put(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.clone().index_put_((torch.tensor([2, 0, 1]),), y)


@pytest.mark.parametrize("function", [_slice_scatter, _index_put])
@pytest.mark.parametrize("tracing_mode", ["fake", "symbolic"])
def test_what_is_written_has_the_shape_of_its_places(function: Any, tracing_mode: str) -> None:
    """Fake kernels ask nothing of it, so that a graph of some sizes would be run with sizes for which eager mode raises."""
    x, fitting, other = torch.zeros(6), torch.ones(3), torch.ones(5)
    graph = refimpl.make_fx(function, tracing_mode=tracing_mode)(x, fitting)
    torch.testing.assert_close(graph(x, fitting), function(x, fitting))
    with pytest.raises(RuntimeError, match=r"src size|shape mismatch") as expected:
        function(x, other)
    with pytest.raises(RuntimeError) as raised:
        refimpl.make_fx(function, tracing_mode=tracing_mode)(x, other)
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


def sorted_into(x: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
    torch.sort(x, dim=0, out=(values, places))


def sorted_stably_into(x: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> None:
    torch.sort(x, stable=True, dim=1, out=(values, places))


def solved_into(x: torch.Tensor, result: torch.Tensor, _: torch.Tensor) -> None:
    torch.linalg.solve(x[:, :5], x, out=result)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [sorted_into, sorted_stably_into, solved_into])
def test_what_is_written_to_keeps_its_layout_where_its_size_is_right(program: Any, dynamic: bool) -> None:
    def written(function: Any) -> tuple[torch.Tensor, torch.Tensor]:
        outs = torch.zeros(5, 16)[:, ::2], torch.zeros(16, 5, dtype=torch.int64).t()[:, 8:]
        function(x, *outs)
        return outs

    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    compiled = compile_aot(program, dynamic=dynamic)
    for expected, actual in zip(written(program), written(compiled), strict=True):
        assert actual.stride() == expected.stride()
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_kernel_in_python_asks_for_no_gradient_of_its_result(*, dynamic: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.nn.functional.pad(x, (1, 3))

    x = torch.arange(2.0, requires_grad=True)
    compiled = refimpl.compile(program, backend="aot_eager", dynamic=dynamic)
    assert compiled(x).requires_grad is program(x).requires_grad is False


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_of_a_kernel_in_python_may_be_asked_for_its_gradient(*, dynamic: bool) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        padded = torch.nn.functional.pad(x, (1, 3))
        with torch.no_grad():
            return [padded, torch.nn.functional.pad(x, (2, 1)).requires_grad_()]

    x = torch.arange(2.0, requires_grad=True)
    compiled = refimpl.compile(program, backend="aot_eager", dynamic=dynamic)
    assert [made.requires_grad for made in compiled(x)] == [made.requires_grad for made in program(x)] == [True, True]


@pytest.mark.parametrize(
    "program",
    [
        lambda x, scale: x.mul_(scale),
        lambda x, scale: torch.rsub(scale, x),
        lambda x, scale: torch.where(x == scale, x, scale),
        lambda x, scale: torch._foreach_mul([x], scale)[0],
        lambda x, scale: torch.mul(x, scale, out=torch.empty_like(x)),
    ],
    ids=["in place", "untagged", "where", "list", "out"],
)
@pytest.mark.parametrize("small", [torch.float8_e5m2, torch.float8_e4m3fn])
def test_a_complex_tensor_takes_8_bit_floats_without_dimensions(program: Any, small: torch.dtype) -> None:
    scale = torch.tensor(2.0).to(small)
    expected, actual = (call(torch.arange(3.0).to(torch.complex128), scale) for call in (program, compile_aot(program)))
    assert actual.dtype is expected.dtype
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(1, 0), (2, 3)])
def test_the_mask_of_a_dropout_of_nothing_is_what_the_kernel_gives(shape: tuple[int, ...], *, dynamic: bool) -> None:
    """On the CPU the mask of an empty dropout has the dtype of the values, not bool."""

    def program(x: torch.Tensor) -> Any:
        return [part.t() for part in torch.native_dropout(x, 0.5, train=True)]

    x = torch.ones(shape, dtype=torch.bfloat16)
    found = [(part.dtype, part.shape) for part in refimpl.compile(program, backend="triton", dynamic=dynamic)(x)]
    assert found == [(part.dtype, part.shape) for part in program(x)]


@pytest.mark.parametrize("poison", ["shape", "dtype"])
def test_a_wrong_fake_kernel_is_corrected_by_the_operator_or_named(poison: Poison) -> None:
    """A size that a trace burns in (`a * (a @ b).shape[1]`) is that of the operator, whatever the fake kernel says."""

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        product = a @ b
        return a * product.shape[1] + product.dtype.itemsize

    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with replaced({"_meta_registrations.meta_mm": HANDLERS[poison]}) as calls:
        graph = refimpl.make_fx(program, tracing_mode="fake")(a, b)
        assert torch.equal(graph(a, b), program(a, b))
        (node,) = graph.graph.find_nodes(op="call_function", target=aten.mm.default)
        assert (node.meta["val"].shape, node.meta["val"].dtype) == ((2, 4), torch.float32)
        with pytest.raises(WrongFakeKernel, match=r"aten.mm.default gives .*\n  expected: torch.float32 \(2, 4\)"):
            refimpl.make_fx(program, tracing_mode="symbolic")(a, b)
    assert calls["_meta_registrations.meta_mm"] == 2


def test_a_fake_kernel_that_resizes_what_it_writes_to_is_named() -> None:
    with replaced({"_refs.normal": HANDLERS["shape"]}), pytest.raises(WrongFakeKernel, match=r"aten.normal_.default"):
        refimpl.make_fx(lambda x: x.clone().normal_() + 1, tracing_mode="fake")(torch.ones(2, 3))


def test_a_kernel_is_asked_with_operands_that_are_indices() -> None:
    """With ones the real kernel raises, since a dimension of size 1 has only the index 0."""

    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x + x.index_fill(0, index, 3.0).dim()

    given = torch.tensor(2.0), torch.tensor([0])
    with replaced({"_refs.index_fill": HANDLERS["shape"]}) as calls:
        graph = refimpl.make_fx(program, tracing_mode="symbolic")(*given)
    assert calls["_refs.index_fill"] == 1
    assert torch.equal(graph(*given), program(*given))
