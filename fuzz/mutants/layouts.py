"""Mutants that return the right numbers with wrong strides, aliases, dtypes, shapes or requires_grad, or lose writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzz.mutants.editing import aten_backend, named_after, wrong_calls
from fuzz.mutants.mutant import Mutant, planting

LAYOUTS: list[Mutant] = []
_mutant = planting(LAYOUTS, stage="runtime")


def _after_call(change: Callable[[Any, tuple[Any, ...]], Any]) -> Callable[[Any, Any], Any]:
    """A backend that changes the result of the captured graph: change(output, args)."""

    def backend(gm: Any, example_inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            return tuple(change(output, args) for output in gm(*args))

        return call

    return named_after(change, backend)


@_mutant(
    "results of rank 3 and more are made contiguous",
    "some",
    "def program(x):\n    return torch.sin(x)\n\ndef inputs(call):\n    return (torch.ones(2, 3, 4).transpose(0, 2),), {}",
    "def program(x):\n    return torch.sin(x)\n\ndef inputs(call):\n    return (torch.ones(2, 3, 4),), {}",
    statuses=("fail_stride", "fail_alias"),
)
@_after_call
def strides_of_results_are_contiguous(output: Any, args: tuple[Any, ...]) -> Any:
    if isinstance(output, torch.Tensor) and output._base is None and output.dim() >= 3:
        return output.contiguous()
    return output


@_mutant(
    "results that are views are copies",
    "common",
    "def program(x):\n    return x[1:]\n\ndef inputs(call):\n    return (torch.ones(3),), {}",
    "def program(x):\n    return x + 1\n\ndef inputs(call):\n    return (torch.ones(3),), {}",
    statuses=("fail_alias",),
)
@_after_call
def views_are_copied(output: Any, args: tuple[Any, ...]) -> Any:
    return output.clone() if isinstance(output, torch.Tensor) and output._base is not None else output


@_mutant(
    "two results with equal elements are one tensor",
    "some",
    "def program(x):\n    return torch.sin(x), x.sin()\n\ndef inputs(call):\n    return (torch.ones(3),), {}",
    "def program(x):\n    return torch.sin(x), x.cos()\n\ndef inputs(call):\n    return (torch.ones(3),), {}",
    statuses=("fail_alias",),
)
def equal_results_are_one(gm: Any, example_inputs: Any) -> Any:
    """Common subexpressions of the results are merged into one tensor."""

    def call(*args: Any) -> Any:
        outputs = list(gm(*args))
        for i, output in enumerate(outputs):
            for earlier in outputs[:i]:
                if (
                    isinstance(output, torch.Tensor)
                    and isinstance(earlier, torch.Tensor)
                    and output.shape == earlier.shape
                    and output.dtype is earlier.dtype
                    and output.numel()
                    and torch.equal(output, earlier)
                ):
                    outputs[i] = earlier
                    break
        return tuple(outputs)

    return call


@_mutant(
    "0-d results do not require gradients",
    "some",
    "def program(x):\n    return x.sum()\n\ndef inputs(call):\n    return (torch.ones(3, requires_grad=True),), {}",
    "def program(x):\n    return x * 2\n\ndef inputs(call):\n    return (torch.ones(3, requires_grad=True),), {}",
    statuses=("fail_metadata", "fail_grad", "fail_to_run"),
)
@_after_call
def scalars_lose_requires_grad(output: Any, args: tuple[Any, ...]) -> Any:
    is_small = isinstance(output, torch.Tensor) and output.dim() == 0
    return output.detach() if is_small else output


@_mutant(
    "where with a 0-d branch gives float64 for float32",
    "rare",
    "def program(x):\n    return torch.where(x > 0, x, 0.0)\n\ndef inputs(call):\n    return (torch.ones(3),), {}",
    "def program(x):\n    return torch.where(x > 0, x, x + 1)\n\ndef inputs(call):\n    return (torch.ones(3),), {}",
    statuses=("fail_metadata",),
    stage="forward",
)
@wrong_calls("aten.where")
def where_with_a_scalar_is_double(op: Any, condition: Any, x: Any, y: Any) -> Any:
    result = op(condition, x, y)
    numbers = [value.dim() == 0 for value in (x, y) if isinstance(value, torch.Tensor)]
    return result.double() if any(numbers) and result.dtype is torch.float32 else result


def _keeping(op: Any, x: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    if isinstance(dim, (list, tuple)) and len(dim) > 1:
        keepdim = False
    return op(x, dim, keepdim, **kwargs)


@_mutant(
    "keepdim is ignored for reductions over several dimensions",
    "rare",
    "def program(x):\n    return x.sum((0, 1), keepdim=True)\n\ndef inputs(call):\n    return (torch.ones(2, 3),), {}",
    "def program(x):\n    return x.sum(0, keepdim=True)\n\ndef inputs(call):\n    return (torch.ones(2, 3),), {}",
    statuses=("fail_metadata", "fail_to_run"),
    stage="forward",
)
def keepdim_of_two_dimensions(gm: Any, example_inputs: Any) -> Any:
    names = ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax", "aten.amin")
    return aten_backend(dict.fromkeys(names, _keeping))(gm, example_inputs)


@_mutant(
    "writes to arguments that are not contiguous are lost",
    "some",
    "def program(x):\n    x.add_(1)\n    return x * 2\n\ndef inputs(call):\n    return (torch.ones(2, 3).t(),), {}",
    "def program(x):\n    x.add_(1)\n    return x * 2\n\ndef inputs(call):\n    return (torch.ones(2, 3),), {}",
    statuses=("fail_mutation", "fail_alias"),
)
def writes_to_strided_arguments_are_lost(gm: Any, example_inputs: Any) -> Any:
    """The captured graph runs on contiguous copies of its inputs; writes are copied back only to contiguous inputs."""

    def call(*args: Any) -> Any:
        copies = [
            a.clone() if isinstance(a, torch.Tensor) and not a.requires_grad and not a.is_contiguous() else a
            for a in args
        ]
        return gm(*copies)

    return call


@_mutant(
    "the copy in x[1:] = x[:-1].clone() is left out",
    "rare",
    "def program(x):\n    x[1:] = x[:-1].clone()\n    return x\n\ndef inputs(call):\n    return (torch.arange(5.0),), {}",
    "def program(x):\n    x[1:] = x[1:].clone()\n    return x\n\ndef inputs(call):\n    return (torch.arange(5.0),), {}",
    statuses=("fail_accuracy", "fail_mutation"),
    stage="graph",
)
def shifted_writes_read_what_they_wrote(gm: Any, example_inputs: Any) -> Any:
    """`x[1:] = x[:-1].clone()`: the copy is left out, and elements are written in ascending order."""
    for node in gm.graph.nodes:
        is_setitem = node.op == "call_function" and "setitem" in str(node.target)
        copied = node.args[2] if is_setitem else None
        if isinstance(copied, torch.fx.Node) and copied.op == "call_method" and copied.target == "clone":
            source = copied.args[0]
            if isinstance(source, torch.fx.Node) and source.args[:1] == node.args[:1]:  # both are views of one tensor
                node.target, node.args = _walking_setitem, (*node.args[:2], source)
    gm.recompile()
    return gm.forward


def _walking_setitem(target: Any, index: Any, source: Any) -> None:
    written = target[index]
    if written.dim() == 0 or written.shape != source.shape:
        target[index] = source.clone()
        return
    for i in range(written.shape[0]):
        written[i] = source[i].clone()


@_mutant(
    "in-place operators on float vectors without gradients are not run",
    "some",
    "def program(x):\n    x.mul_(3)\n    return x + 1\n\ndef inputs(call):\n    return (torch.ones(4),), {}",
    "def program(x):\n    x.mul_(3)\n    return x + 1\n\ndef inputs(call):\n    return (torch.ones(2, 2),), {}",
    statuses=("fail_mutation", "fail_accuracy", "fail_state"),
    stage="graph",
)
def writes_of_buffers_are_lost(gm: Any, example_inputs: Any) -> Any:
    """In-place operators on one-dimensional tensors without gradients are not run."""
    for node in gm.graph.nodes:
        is_write = node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__")
        if is_write and node.target not in ("requires_grad_", "detach_"):
            node.op, node.args, node.target = "call_function", (node.target, *node.args), _write_unless_vector
    gm.recompile()
    return gm.forward


def _write_unless_vector(method: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.dim() == 1 and not x.requires_grad and x.is_floating_point():
        return x
    return getattr(x, method)(*args, **kwargs)
