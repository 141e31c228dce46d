"""Contracts of ahead-of-time autograd (rows AO of docs/contracts.md) that no broader test shows.

Entry points: test_ao_entry.py. Rows shown elsewhere: AO-09, 18, 48 (aot/test_subclasses.py), AO-10, 11
(aot/test_effects.py), AO-15, 52 (aot/test_hooks.py), AO-49 (aot/test_rng.py), AO-19..22, 31..39, 50 (aot/test_export*.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._functorch import aot_autograd as torch_aot
from torch._functorch.aot_autograd import aot_function as torch_aot_function
from torch._library.opaque_object import OpaqueBase, register_opaque_type
from torch.testing._internal.two_tensor import TwoTensor

import refimpl
from refimpl.aot.options import aot_settings
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot_entry_points import aot_autograd_decompositions, aot_function, aot_module, aot_module_simplified
from refimpl.symbolic.fake_inputs import symbolic_fake_mode
from refimpl.tests.aot.kept_graphs import Compiler, Tuple, is_functional, leaf_of_numbers, outputs_of, tangents_of
from refimpl.tests.graphs import placeholders_of, targets_of

Tensor = torch.Tensor
aten = torch.ops.aten
PARTITIONS = (default_partition, min_cut_rematerialization_partition)


# ------------------------------------------------------------------------------------------ environment of a trace


def test_autograd_s_threads_are_off_while_tracing() -> None:
    """AO-15"""
    seen: list[bool] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(torch._C._is_multithreading_enabled())
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            seen.append(torch._C._is_multithreading_enabled())
            return gradient * 2

    def failing(x: Tensor) -> Tensor:
        seen.append(torch._C._is_multithreading_enabled())
        raise ZeroDivisionError

    compiler = Compiler()
    with torch.autograd.set_multithreading_enabled(True):
        compiler.function(Watched.apply)(leaf_of_numbers(2))
        with pytest.raises(ZeroDivisionError):
            compiler.function(failing)(leaf_of_numbers(2))
        assert torch._C._is_multithreading_enabled(), "put back, also after an error"
    assert seen == [False] * len(seen)
    assert len(seen) >= 3, "forward, backward, and the one that fails"
    assert torch_aot.aot_autograd_decompositions == {}


def test_decompositions_of_the_user_win_over_those_for_all_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """AO-12"""
    monkeypatch.setitem(aot_autograd_decompositions, aten.sigmoid.default, lambda x: 1 / (1 + (-x).exp()))
    monkeypatch.setitem(aot_autograd_decompositions, aten.relu.default, lambda x: x.clamp(min=0))
    compiler = Compiler()
    user = {aten.sigmoid.default: lambda x: (x / 2).tanh() / 2 + 0.5}
    x = torch.randn(3)
    result = aot_function(lambda x: x.sigmoid() + x.relu(), compiler.kind("fw"), decompositions=user)(x)
    torch.testing.assert_close(result, x.sigmoid() + x.relu())
    targets = targets_of(compiler.graph("fw"))
    assert aten.tanh.default in targets
    assert {aten.sigmoid.default, aten.relu.default, aten.exp.default}.isdisjoint(targets)
    before = dict(user)
    monkeypatch.undo()
    aot_function(torch.relu, compiler.kind("plain"))(x)
    assert targets_of(compiler.graph("plain")) == [aten.relu.default]
    assert user == before, "the caller's table is left as it is"


# ------------------------------------------------------------------------------------------ mutation of inputs


def test_a_changed_input_is_an_output_that_is_copied_back() -> None:
    """AO-01"""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x * 3

    compiler = Compiler()
    x = torch.ones(2)
    assert compiler.function(function)(x).tolist() == [6.0, 6.0]
    assert x.tolist() == [2.0, 2.0]
    graph = compiler.graph("inference")
    assert is_functional(graph)
    assert [output.target for output in outputs_of(graph)] == [aten.mul.Tensor, aten.mul.Tensor]
    assert outputs_of(graph)[1].args[0] is outputs_of(graph)[0]


def test_gradients_flow_through_a_changed_input() -> None:
    """AO-02"""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x * 3

    compiler = Compiler()
    leaf = leaf_of_numbers(2)
    x = leaf * 1
    out = compiler.function(function)(x)
    (out.sum() + x.sum()).backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [8.0, 8.0]
    assert len(tangents_of(compiler.graph("bw"))) == 2


def test_changed_metadata_is_an_output_without_tangent() -> None:
    """AO-03"""

    def function(x: Tensor) -> Tensor:
        x.t_()
        return x * 3

    compiler = Compiler()
    leaf = leaf_of_numbers(2, 3)
    x = leaf * 1
    memory = x.data_ptr()
    out = compiler.function(function)(x)
    assert (x.shape, x.stride(), x.data_ptr()) == ((3, 2), (1, 3), memory)
    assert torch.equal(x, leaf.t())
    out.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[3.0] * 3] * 2
    assert len(tangents_of(compiler.graph("bw"))) == 1


# ------------------------------------------------------------------------------------------ aliases among results


def test_a_view_of_an_input_is_one_of_the_real_input() -> None:
    """AO-04"""
    compiler = Compiler()
    leaf = leaf_of_numbers(2, 3)
    x = leaf * 1
    out = compiler.function(lambda x: x.view(3, 2)[1:])(x)
    assert out._base is x
    assert out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    with torch.no_grad():
        x.zero_()
    assert not out.any()
    out.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    assert aten.view.default in targets_of(compiler.graphs[0][1])


@pytest.mark.parametrize("is_written", [False, True])
def test_an_input_that_is_returned_is_the_same_object(is_written: bool) -> None:
    """AO-04"""
    x = torch.ones(2)
    out, other = Compiler().function(lambda x: (x.add_(1) if is_written else x, x * 2))(x)
    assert out is x
    assert other.tolist() == [4.0, 4.0] if is_written else [2.0, 2.0]


def test_siblings_share_the_memory_of_a_base_that_is_an_output() -> None:
    """AO-05, AO-07"""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y.view(-1), y.t()

    compiler = Compiler()
    x = leaf_of_numbers(2, 2)
    a, b = compiler.function(function, partition_fn=default_partition)(x)
    forward = compiler.graph("fw")
    assert [o.target for o in outputs_of(forward)] == [aten.view.default, aten.t.default, aten.mul.Tensor]
    assert a._base is b._base is not None
    a.mul_(3)
    assert b.tolist() == [[6.0, 18.0], [12.0, 24.0]]
    (a.sum() + b.sum()).backward()
    assert len(tangents_of(compiler.graph("bw"))) == 1
    assert x.grad is not None
    assert x.grad.tolist() == [[12.0, 12.0], [12.0, 12.0]]


def test_views_stay_in_the_graph_and_are_made_again_on_what_the_backend_returns() -> None:
    """AO-06"""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y.t()

    graphs: list[torch.fx.GraphModule] = []

    def other_layout(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph_module)

        def run(*args: Any) -> list[Any]:
            results = list(graph_module(*args))
            return [r.t().contiguous().t() if isinstance(r, Tensor) and r.dim() == 2 else r for r in results]

        return run

    y, z = aot_function(function, other_layout, Compiler().kind("bw"))(leaf_of_numbers(2, 3))
    assert aten.t.default in targets_of(graphs[0])
    assert z._base is y or z._base is y._base
    for ours, theirs in zip((y, z), function(leaf_of_numbers(2, 3)), strict=True):
        assert torch.equal(ours, theirs)
    y.data.zero_()
    assert not z.any()
    y, z = Compiler().function(function)(leaf_of_numbers(2, 3))
    assert (y.stride(), z.stride()) == ((3, 1), (1, 3))


def test_a_tangent_belongs_to_what_has_a_gradient_of_its_own() -> None:
    """AO-07"""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 5
        return y.view(-1), x.view(-1), y.detach() + 1, y

    compiler = Compiler()
    x = leaf_of_numbers(2)
    results = compiler.function(function)(x)
    results[0].sum().backward()
    assert tangents_of(compiler.graph("bw")) == ["tangents_1"]
    assert x.grad is not None
    assert x.grad.tolist() == [5.0, 5.0]


# ---------------------------------------------------------------------------------------- arguments that share memory


def test_arguments_that_share_written_memory_have_one_placeholder() -> None:
    """AO-08"""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y.view(2, 2)

    for make in (lambda: torch.ones(2, 2), lambda: leaf_of_numbers(2, 2) * 1):
        compiler = Compiler()
        ours, theirs = make(), make()
        result, expected = compiler.function(function)(ours, ours.view(-1)), function(theirs, theirs.view(-1))
        assert torch.equal(result, expected)
        assert torch.equal(ours, theirs)
        assert len(placeholders_of(compiler.graphs[0][1])) == 1
    leaf, other = leaf_of_numbers(2, 2), leaf_of_numbers(2, 2)
    for call, x in ((Compiler().function(function), leaf), (function, other)):
        y = x * 1
        (call(y, y.view(-1)) * y).sum().backward()
    assert leaf.grad is not None
    assert other.grad is not None
    assert torch.equal(leaf.grad, other.grad)


def test_disjoint_parts_of_a_storage_are_arguments_of_their_own() -> None:
    """AO-47"""
    compiler = Compiler()
    x = torch.ones(4)
    out = compiler.function(lambda a, b: a.mul_(2) + b)(x[:2], x[2:])
    assert out.tolist() == [3.0, 3.0]
    assert x.tolist() == [2.0, 2.0, 1.0, 1.0]
    assert len(placeholders_of(compiler.graph("inference"))) == 2


def test_an_argument_that_is_passed_twice() -> None:
    """AO-51"""

    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    for function, count in ((lambda x, y: x + y, 2), (write, 1)):
        for make in (lambda: torch.ones(2), lambda: leaf_of_numbers(2) * 1):
            compiler = Compiler()
            ours, theirs = make(), make()
            assert torch.equal(compiler.function(function)(ours, ours), function(theirs, theirs))
            assert torch.equal(ours, theirs)
            primals = [n for n in placeholders_of(compiler.graphs[0][1]) if "tangents" not in str(n.target)]
            assert len(primals) == count


# ------------------------------------------------------------------------------------- decompositions, fakes, sizes


def test_the_user_s_decompositions_hold() -> None:
    """AO-12"""
    table = {aten.sigmoid.default: lambda x: 1 / (1 + (-x).exp())}
    compiler = Compiler()
    x = leaf_of_numbers(2)
    compiler.function(lambda x: x.sigmoid().sum(), decompositions=table)(x).backward()
    assert aten.exp.default in targets_of(compiler.graph("fw"))
    assert all(aten.sigmoid.default not in targets_of(graph) for _, graph in compiler.graphs)
    y = x.detach().sigmoid()
    torch.testing.assert_close(x.grad, y * (1 - y))
    plain = Compiler()
    plain.function(lambda x: x.sigmoid(), decompositions=None)(x)
    assert aten.sigmoid.default in targets_of(plain.graph("fw"))


def test_the_user_s_decompositions_win_over_the_functional_forms_of_random_ops() -> None:
    """AO-12"""
    x, found = torch.ones(3), {}
    table = {aten.rand_like.default: lambda x, **_: torch.full_like(x, 7.0)}
    for name, decompositions in (("user", table), ("plain", {})):
        compiler = Compiler()
        with aot_settings(functionalize_rng_ops=True):
            found[name] = compiler.function(torch.rand_like, decompositions=decompositions)(x)
        ((_, graph),) = compiler.graphs
        has_state = any("seed" in node.name for node in placeholders_of(graph))
        assert has_state is (name == "plain")
        assert aten.rand_like.default not in targets_of(graph)
    assert found["user"].tolist() == [7.0] * 3


def test_the_mode_of_fake_arguments_is_the_graph_s() -> None:
    """AO-13, XC-01"""
    mode = symbolic_fake_mode(allow_fallback_kernels=False, allow_non_fake_inputs=True, static_shapes=False)
    compiler = Compiler()
    with mode:
        x = torch.empty(2, 3)
    aot_module_simplified(
        torch.nn.Sequential(torch.nn.Linear(3, 2), Tuple()), [x], compiler.kind("fw"), compiler.kind("bw")
    )
    values = [node.meta["val"] for node in compiler.graph("fw").graph.nodes if node.op != "output"]
    assert values
    assert all(getattr(value, "fake_mode") is mode for value in values if isinstance(value, Tensor))
    other = Compiler()
    other.function(lambda x: x + 1)(torch.ones(2))
    (value,) = [node.meta["val"] for node in other.graph("inference").graph.nodes if node.op == "call_function"]
    assert value.fake_mode is not mode


def test_sizes_of_parameters_are_numbers_and_those_of_inputs_symbols() -> None:
    """AO-14"""
    compiler = Compiler()
    module = aot_module(
        torch.nn.Linear(3, 2), fw_compiler=compiler.kind("fw"), bw_compiler=compiler.kind("bw"), dynamic=True
    )
    assert torch.equal(module(torch.ones(4, 3)), module.orig_module(torch.ones(4, 3)))  # type: ignore[operator]
    shapes = [
        node.meta["val"].shape for node in placeholders_of(compiler.graph("fw")) if isinstance(node.meta["val"], Tensor)
    ]
    assert [all(type(size) is int for size in shape) for shape in shapes] == [True, True, False]


def test_an_integer_is_a_symbol_where_sizes_are() -> None:
    """AO-14"""
    compiler = Compiler()
    function = compiler.function(lambda x, n: x.expand(n, 3) * n, dynamic=True)
    assert torch.equal(function(torch.ones(3), 4), torch.full((4, 3), 4.0))
    assert torch.equal(function(torch.ones(3), 6), torch.full((6, 3), 6.0))
    assert compiler.kinds == ["inference"]
    assert any(isinstance(node.meta["val"], torch.SymInt) for node in placeholders_of(compiler.graph("inference")))


class Queue(OpaqueBase):
    """Tensors in a row."""

    def __init__(self, *items: Tensor) -> None:
        self.items = list(items)


@pytest.fixture(scope="module")
def pop() -> Iterator[Any]:
    """An op that takes the first tensor off a queue."""
    register_opaque_type(Queue, typ="reference")
    library = torch.library.Library("refimpl_test_queue", "FRAGMENT")
    library.define(f"pop({Queue.__module__}.{Queue.__qualname__} queue, Tensor like) -> Tensor")
    library.impl("pop", lambda queue, like: queue.items.pop(0), "CPU")
    torch.library.register_fake("refimpl_test_queue::pop", lambda queue, like: torch.empty_like(like), lib=library)
    yield torch.ops.refimpl_test_queue.pop.default
    library._destroy()


def test_tracing_twice_leaves_an_object_alone(pop: Any) -> None:
    """AO-17"""
    captured = torch.ones(1)  # a program that captures a tensor is traced a second time

    def function(queue: Queue, x: Tensor) -> Tensor:
        first = pop(queue, x)
        return first * 10 + pop(queue, x) + captured * x

    for options in ({}, {"dynamic": True}):
        compiled = Compiler().function(function, **options)
        ours, theirs = (Queue(*(torch.full((1,), float(i)) for i in range(6))) for _ in range(2))
        for _ in range(2):
            assert torch.equal(compiled(ours, torch.ones(1)), function(theirs, torch.ones(1)))
            assert len(ours.items) == len(theirs.items)


# --------------------------------------------------------------------------------------- which graphs are compiled


@pytest.mark.parametrize(
    ("function", "is_training"),
    [
        (lambda x: x * 2, True),
        (lambda x: x.detach() * 2, False),
        (lambda x: x.view(-1), False),
        (lambda x: torch.no_grad()(torch.sin)(x), False),
        (lambda x: (x.detach().clone().add_(1), (x * 1).sum())[1], True),
    ],
)
def test_autograd_is_needed_for_results_of_its_own_that_have_gradients(
    function: Callable[..., Any], is_training: bool
) -> None:
    """AO-16, XC-14"""
    compiler = Compiler()
    ours, theirs = compiler.function(function)(leaf_of_numbers(2)), function(leaf_of_numbers(2))
    assert compiler.kinds == (["fw"] if is_training else ["inference"])
    assert ours.requires_grad is theirs.requires_grad


def test_forward_is_compiled_before_backward_and_inference_not_at_all() -> None:
    """AO-23"""
    compiler = Compiler()
    x = leaf_of_numbers(2)
    compiler.function(lambda x: x.sin())(x).sum().backward()
    assert compiler.kinds == ["fw", "bw"]
    assert torch.equal(x.grad, x.detach().cos())  # type: ignore[arg-type]
    with torch.no_grad():
        compiler.function(lambda x: x.sin())(x)
    assert compiler.kinds == ["fw", "bw", "inference"]


def test_the_forward_compiler_stands_in_for_the_others() -> None:
    """AO-24"""
    ours, theirs = (dict(inspect.signature(f).parameters) for f in (aot_function, torch_aot_function))
    assert list(ours) == [name for name in theirs if name in ours]
    assert {"partition_fn", "decompositions", "num_params_buffers", "dynamic", "enable_log"} <= set(ours)
    defaults = {name: p.default for name, p in ours.items() if name != "partition_fn"}
    assert defaults == {name: theirs[name].default for name in defaults}
    seen: list[torch.fx.GraphModule] = []

    def compile(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> torch.fx.GraphModule:
        seen.append(graph_module)
        return graph_module

    x = leaf_of_numbers(2)
    aot_function(lambda x: x.sin(), compile)(x).sum().backward()
    aot_function(lambda x: x.sin(), compile)(torch.ones(2))
    assert len(seen) == 3


def test_writes_may_stay_in_an_inference_graph() -> None:
    """AO-24, AO-46"""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y.data.add_(1)
        return x + y

    for keeps in (False, True):
        compiler = Compiler()
        x, y = torch.ones(2), torch.ones(2)
        out = compiler.function(function, keep_inference_input_mutations=keeps)(x, y)
        assert (x.tolist(), y.tolist(), out.tolist()) == ([2.0, 2.0], [2.0, 2.0], [4.0, 4.0])
        assert (x._version, y._version) == (1, 0)
        assert targets_of(compiler.graph("inference")).count(aten.copy_.default) == (2 if keeps else 0)


def test_a_write_that_autograd_does_not_see_changes_no_history() -> None:
    """AO-46"""

    def function(x: Tensor) -> Tensor:
        x.data.mul_(2)
        return x * 3

    leaf = leaf_of_numbers(2)
    x = leaf * 1
    history = x.grad_fn
    out = Compiler().function(function)(x)
    assert x.grad_fn is history
    assert x._version == 0
    out.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [3.0, 3.0]

    def write(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.add_(1)
        return x * 3

    parameter = leaf_of_numbers(2)
    Compiler().function(write)(parameter).sum().backward()
    assert parameter.is_leaf
    assert (parameter.tolist(), parameter._version) == ([2.0, 3.0], 1)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_any_partition_gives_eager_s_result(partition: Callable[..., Any]) -> None:
    """AO-45"""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.nn.functional.gelu(x @ w)
        return h.softmax(-1), h.sum()

    seen: list[int] = []

    def counting(joint: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int) -> Any:
        forward, backward = partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        saved = outputs_of(forward)[num_fwd_outputs:]
        assert num_fwd_outputs == 2
        assert len(placeholders_of(backward)) == len(saved) + 2
        seen.append(len(saved))
        return forward, backward

    torch.manual_seed(0)
    values = [torch.randn(3, 4, dtype=torch.double), torch.randn(4, 5, dtype=torch.double)]
    results: list[list[Tensor]] = []
    for call in (function, Compiler().function(function, partition_fn=counting)):
        args = [value.clone().requires_grad_() for value in values]
        a, b = call(*args)
        (a.pow(2).sum() + b).backward()
        results.append([a.detach(), b.detach(), *(arg.grad for arg in args if arg.grad is not None)])
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(seen) == 1


def test_fakes_of_another_mode_are_refused_and_wrappers_of_fakes_taken() -> None:
    """AO-14"""
    module = torch.nn.Sequential(torch.nn.Tanh(), Tuple())
    modes = [symbolic_fake_mode() for _ in range(2)]
    fakes = [mode.from_tensor(torch.ones(2, 3)) for mode in modes]

    class Both(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
            return (x + y,)

    compiler = Compiler()
    with pytest.raises(AssertionError, match=r"different FakeTensorModes|another"):
        aot_module_simplified(Both(), fakes, compiler.kind("fw"))
    wrapped = TwoTensor(modes[0].from_tensor(torch.ones(4)), modes[0].from_tensor(torch.ones(4)))
    aot_module_simplified(module, [wrapped], compiler.kind("inner"))
    values = [node.meta["val"] for node in placeholders_of(compiler.graph("inner"))]
    assert len(values) == 2, "one for each inner tensor"
    assert {value.fake_mode for value in values} == {modes[0]}


def test_symbols_of_a_captured_graph_have_the_sources_that_capture_gave_them() -> None:
    """AO-14"""
    compiler = Compiler()

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return aot_module_simplified(graph_module, example_inputs, compiler.kind("inference"))

    def program(x: Tensor, d: dict[str, Tensor]) -> Tensor:
        return x.reshape(-1) + d["y"].sum(0)

    x, y = torch.ones(2, 6), torch.ones(3, 12)
    assert torch.equal(refimpl.compile(program, backend=backend, dynamic=True)(x, {"y": y}), program(x, {"y": y}))
    sources: set[str] = set()
    for node in placeholders_of(compiler.graph("inference")):
        value = node.meta["val"]
        for size in value.shape if isinstance(value, Tensor) else ():
            if isinstance(size, torch.SymInt):
                env: Any = size.node.shape_env
                sources |= {env.var_to_sources[symbol][0].name for symbol in size.node.expr.free_symbols}
    assert "L['x'].size()[0]" in sources
    assert "L['d']['y'].size()[0]" in sources
    assert all(source.startswith("L['") for source in sources)
