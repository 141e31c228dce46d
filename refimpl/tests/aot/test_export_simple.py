"""Exported functions: called as the function is, and partitioned; and helpers that make functions of modules and containers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd.descriptors import PlainAOTInput
from torch._functorch.aot_autograd import run_functionalized_fw_and_collect_metadata as torch_collect
from torch.func import functional_call
from torch.fx.experimental.symbolic_shapes import ShapeEnv as TorchShapeEnv
from torch.utils import _pytree as pytree

from refimpl._torch import FakeTensorMode
from refimpl.aot.export.function import _aot_export_function
from refimpl.aot.export.joint_simple import aot_export_joint_simple
from refimpl.aot.export.view_and_mutation import MutationType, OutputType, run_functionalized_fw_and_collect_metadata
from refimpl.aot.export_errors import ExportError, OutputNotSequence, UnknownOutput
from refimpl.aot.functional_call import (
    create_functional_call,
    create_tree_flattened_fn,
    root_module_when_exporting_non_strict,
)
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.tests.graphs import targets_of

Tensor = torch.Tensor
aten = torch.ops.aten


def _xy() -> tuple[Tensor, Tensor]:
    return torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0], requires_grad=True)


# ---------------------------------------------------------------------------------------------------- joint_simple


def test_an_inference_graph_is_called_as_the_function_is() -> None:
    """AO-37"""
    x, y = _xy()
    graph_module = aot_export_joint_simple(
        lambda x, y, n: [x * y * n, y.t().detach() + 1], (x, y, 3), trace_joint=False
    )
    results = graph_module(x, y, 3)
    assert type(results) is tuple
    assert [r.tolist() for r in results] == [[30.0, 63.0], [6.0, 8.0]]


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_the_forward_of_a_joint_graph_is_called_as_the_function_is(partition: Callable[..., Any]) -> None:
    """AO-37"""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, (y * y.detach()).exp()

    x, y = _xy()
    joint = aot_export_joint_simple(function, (x, y), trace_joint=True)
    forward, backward = partition(joint, [x, y], num_fwd_outputs=2)
    expected = function(x, y)
    with torch.no_grad():
        results = forward(x, y)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=False))
        gradients = backward(*results[2:], torch.ones(2), torch.ones(2))
    for ours, theirs in zip(gradients, torch.autograd.grad([r.sum() for r in expected], [x, y]), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_joint_graph_takes_tangents_and_gives_a_gradient_or_none_per_input() -> None:
    """AO-37, AO-38"""
    x, y = _xy()
    joint = aot_export_joint_simple(lambda x, y, n: (x.detach() + n, x * y.detach()), (x, y, 3), trace_joint=True)
    results, gradients = joint([x, y, 3], [torch.tensor([1.0, 10.0])])
    assert [r.tolist() for r in results] == [[5.0, 6.0], [10.0, 21.0]]
    assert gradients[0].tolist() == [5.0, 70.0]
    assert gradients[1:] == [None, None]


def test_an_output_that_is_returned_twice_has_two_tangents() -> None:
    """AO-37"""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        y, z = x * 2, x * x
        return y, z, y, y

    x, _ = _xy()
    joint = aot_export_joint_simple(function, (x,), trace_joint=True)
    tangents = [torch.tensor([a, b]) for a, b in ((1.0, 2.0), (10.0, 20.0), (100.0, 200.0), (1000.0, 2000.0))]
    results, gradients = joint([x], tangents)
    assert len(results) == 4
    expected = torch.autograd.grad(function(x), [x], tangents)
    assert torch.equal(gradients[0], expected[0])
    joint.graph.lint()


def test_without_gradients_there_is_no_joint_graph() -> None:
    """AO-37"""
    joint = aot_export_joint_simple(lambda x: (x * 2,), (torch.ones(2),), trace_joint=True)
    assert joint(torch.ones(2))[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("trace_joint", [False, True])
@pytest.mark.parametrize(
    ("function", "args", "text"),
    [
        (lambda x, y: (y.add_(1), x * 2)[1:], (), "does not support input mutations: input 1"),
        (lambda x, y: (x.view(2, 1), y * 2), (), "outputs over the memory of inputs: output 0 has the memory of input 0"),
        (lambda x, y: (y * 2, x), (), "outputs over the memory of inputs: output 1 has the memory of input 0"),
        (lambda x, y: x * 2, (), "outputs to be a single list/tuple"),
        (lambda x, y: {"x": x * 2}, (), "outputs to be a single list/tuple"),
        (lambda x, y: ((x * 2,), y), (), "individual outputs not to be pytrees|outputs over the memory of inputs"),
        (lambda x: (x[0] * 2,), ([torch.ones(2)],), "individual inputs not to be pytrees"),
    ],
)  # fmt: skip
def test_what_needs_code_around_the_graph_is_refused(
    function: Callable[..., Any], args: tuple[Any, ...], text: str, trace_joint: bool
) -> None:
    """AO-37"""
    args = args or (torch.ones(2, requires_grad=True), torch.ones(2))
    with pytest.raises(RuntimeError, match=text):
        aot_export_joint_simple(function, args, trace_joint=trace_joint)


def test_outputs_that_share_memory_and_have_gradients_are_refused() -> None:
    """AO-37"""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y.view(2, 1), y.view(1, 2)

    x, _ = _xy()
    with pytest.raises(RuntimeError, match="outputs over shared memory"):
        aot_export_joint_simple(function, (x,), trace_joint=True)
    assert len(aot_export_joint_simple(function, (x,), trace_joint=False)(x)) == 2


# ------------------------------------------------------------------------------------------- _aot_export_function


def test_a_function_is_exported_with_what_it_does_to_its_inputs() -> None:
    """AO-38, AO-31"""

    def function(x: Tensor, options: dict[str, Tensor], *, k: int) -> dict[str, Any]:
        options["y"].mul_(k)
        return {"r": [x + options["y"]]}

    x, y = torch.ones(2), torch.ones(2)
    graph_module, metadata, in_spec, out_spec = _aot_export_function(function, (x, {"y": y}), kwargs={"k": 3})
    assert metadata.mutated_inp_runtime_indices == (1,)
    assert in_spec == pytree.tree_structure(((x, {"y": y}), {"k": 3}))
    updated, result = graph_module(x, y, 3)
    assert y.tolist() == [1.0, 1.0]
    assert updated.tolist() == [3.0, 3.0]
    assert pytree.tree_unflatten([result], out_spec)["r"][0].tolist() == [4.0, 4.0]


def test_without_tangents_the_loss_s_own_gradient_is_one() -> None:
    """AO-38"""
    x, y = _xy()
    joint, _, _, _ = _aot_export_function(lambda x, y: ((x * y).sum(),), (x, y), no_tangents=True, trace_joint=True)
    assert [n.target for n in joint.graph.find_nodes(op="placeholder")] == ["primals_1", "primals_2"]
    (loss,), gradients = joint([x, y], [])
    assert loss == 31
    assert [g.tolist() for g in gradients] == [[5.0, 7.0], [2.0, 3.0]]


def test_without_tangents_there_is_one_differentiable_output() -> None:
    """AO-38"""
    x, y = _xy()
    with pytest.raises(ExportError, match="2 outputs have gradients"):
        _aot_export_function(lambda x, y: (x.sum(), y.sum()), (x, y), no_tangents=True, trace_joint=True)


def test_a_write_may_stay_in_the_graph() -> None:
    """AO-24, AO-46"""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        y.mul_(2)
        x.data.mul_(3)
        return (x + y,)

    x, y = torch.ones(2), torch.ones(2)
    graph_module, metadata, _, _ = _aot_export_function(function, (x, y), keep_input_mutations=True)
    assert [info.mutation_type for info in metadata.input_info] == [MutationType.MUTATED_IN_GRAPH] * 2
    assert targets_of(graph_module).count(aten.copy_.default) == 2
    (result,) = graph_module(x, y)
    assert (x.tolist(), y.tolist(), result.tolist()) == ([3.0, 3.0], [2.0, 2.0], [5.0, 5.0])


def test_integers_are_constants_of_the_graph() -> None:
    """AO-14"""
    x = torch.ones(3)
    graph_module, _, _, _ = _aot_export_function(lambda x, n: (x * n,), (x, 4), dynamic_shapes=True)
    assert graph_module(torch.ones(5), 4)[0].tolist() == [4.0] * 5
    (mul,) = graph_module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    assert mul.args[1] == 4


# -------------------------------------------------------------------------------------------------------- metadata


def test_what_a_function_does_to_its_inputs_and_what_its_outputs_are() -> None:
    """AO-16, AO-46"""

    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Any]:
        a.mul_(2)
        b.t_()
        with torch.no_grad():
            c.add_(1)
        d.data.add_(1)
        y = a * c
        return [y, a, b[0], y.view(2, 2, 1), d.detach(), 3]

    args = [torch.ones(2, 2) for _ in range(4)]
    args[2].requires_grad_()
    collect = run_functionalized_fw_and_collect_metadata(function, flat_args_descs=None, keep_input_mutations=False)
    metadata = collect(*args)
    a, b, c, d = metadata.input_info
    assert [i.mutates_data for i in (a, b, c, d)] == [True, False, True, True]
    assert [i.mutates_metadata for i in (a, b, c, d)] == [False, True, False, False]
    assert [i.mutations_under_no_grad_or_inference_mode for i in (a, b, c, d)] == [False, False, True, False]
    assert [i.mutations_hidden_from_autograd for i in (a, b, c, d)] == [False, False, False, True]
    assert [info.output_type for info in metadata.output_info] == [
        OutputType.non_alias,
        OutputType.is_input,
        OutputType.alias_of_input,
        OutputType.alias_of_intermediate_base_is_user_output,
        OutputType.alias_of_input,
        OutputType.non_alias,
    ]
    assert [info.base_idx for info in metadata.output_info] == [None, 0, 1, 0, 3, None]
    assert [info.requires_grad for info in metadata.output_info] == [True, False, False, True, False, False]
    assert metadata.num_mutated_inp_runtime_indices == 4
    assert metadata.num_outputs == 6


class Flat(torch.autograd.Function):
    """A view that has a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.view(2, 2)


def two_views(x: Tensor) -> list[Any]:
    y = x * 2
    return [y.view(4), y.view(1, 4)]


def view_and_base(x: Tensor) -> list[Any]:
    y = x * 2
    return [y.view(4), y]


@pytest.mark.fractional
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        two_views,
        view_and_base,
        lambda x: [Flat.apply(x)],
        lambda x: [Flat.apply(x.mm(x))],
        lambda x: [(x * 2).view(4)],
        lambda x: [torch.ops.aten._unsafe_view(x.mm(x), [4])],
        lambda x: [x.view(4), x],
    ],
)
def test_kinds_of_outputs_are_upstream_s(function: Any, requires_grad: bool) -> None:
    """AO-16"""
    x = torch.ones(2, 2, requires_grad=requires_grad)
    ours = run_functionalized_fw_and_collect_metadata(function, keep_input_mutations=False)(x)
    mode = FakeTensorMode(shape_env=TorchShapeEnv())
    options: dict[str, Any] = {"keep_input_mutations": False, "static_input_indices": []}
    if "flat_args_descs" in inspect.signature(torch_collect).parameters:
        options["flat_args_descs"] = [PlainAOTInput(0)]
    with mode, enable_python_dispatcher():
        theirs = torch_collect(function, **options)(mode.from_tensor(x))
    seen, expected = (
        [(info.output_type.name, info.base_idx) for info in metadata.output_info] for metadata in (ours, theirs)
    )
    assert seen == expected


# ------------------------------------------------------------------------------------------ functions of functions


def test_a_module_runs_with_other_values() -> None:
    """AO-50"""
    module = torch.nn.Linear(2, 3)
    named = dict(module.named_parameters())
    leaves, spec = pytree.tree_flatten(named)
    others = [torch.randn_like(leaf) for leaf in leaves]
    x = torch.randn(4, 2)
    expected = functional_call(module, dict(zip(named, others, strict=True)), (x,))
    for names in (spec, list(named)):
        call = create_functional_call(module, names, len(leaves), store_orig_mod=True, strict_out_tuple=False)
        assert torch.equal(call(*others, x), expected)
        assert getattr(call, "_orig_mod") is module
    assert all(value is named[name] for name, value in module.named_parameters())


def test_a_module_that_returns_no_tuple_is_refused() -> None:
    """AO-32, AO-50"""
    call = create_functional_call(torch.nn.Identity(), [], 0)
    with pytest.raises(OutputNotSequence, match=r"Graph output must be a \(\)"):
        call(torch.ones(2))


def test_a_function_of_containers_is_one_of_leaves() -> None:
    """AO-50, XC-04"""

    def function(x: tuple[Tensor, int], *, d: dict[str, Any]) -> Any:
        return {"a": (x[0] * x[1], None), "b": [d["u"]]}

    args, kwargs = ((torch.ones(2), 3),), {"d": {"u": "text"}}
    flat, spec = create_tree_flattened_fn(function, args, kwargs)
    leaves = flat(*pytree.tree_leaves((args, kwargs)))
    assert leaves[1:] == [None, "text"]
    assert spec.unflatten(leaves)["b"] == ["text"]
    with pytest.raises(UnknownOutput, match="not a known type"):
        create_tree_flattened_fn(lambda x: object(), (torch.ones(2),))[0](torch.ones(2))


def test_the_user_s_module_is_found_behind_export_s() -> None:
    """AO-50, AO-39"""
    root, wrapper = torch.nn.Linear(2, 2), torch.nn.Identity()
    call = create_functional_call(wrapper, [], 0, store_orig_mod=True)
    assert root_module_when_exporting_non_strict(create_tree_flattened_fn(call, ())[0]) is None
    wrapper._export_root = root
    assert root_module_when_exporting_non_strict(create_tree_flattened_fn(call, ())[0]) is root
    assert root_module_when_exporting_non_strict(lambda: None) is None
