"""Checks of a compiled graph against the graph, for reducers: values and gradients, with float64 as a third witness.

Counterpart: torch/_dynamo/debug_utils.py same_two_models, run_fwd_maybe_bwd, backend_accuracy_fails, cast_to_fp64
Differs: a tolerance may also be an argument.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import pytree
from refimpl.capture.config import config
from refimpl.capture.public.cloning import clone_inputs
from refimpl.capture.public.same import same

_LOG = logging.getLogger("refimpl.capture")


class AccuracyError(Exception):
    """A compiled graph has other values than the graph."""


def clone_inputs_retaining_gradness(example_inputs: Sequence[Any]) -> list[Any]:
    """Copies, of which those of tensors that require a gradient are leaves that require one."""
    cloned: Any = clone_inputs(example_inputs)
    for value, copied in zip(example_inputs, cloned, strict=True):
        if isinstance(value, torch.Tensor):
            copied.requires_grad_(value.requires_grad)
    return list(cloned)


def run_fwd_maybe_bwd(gm: Any, args: Sequence[Any], only_fwd: bool = False, disable_clone: bool = False) -> Any:
    """The results of the module; then, unless `only_fwd`, the gradients of its parameters and arguments, of the sum of results.

    disable_clone: run it on the arguments themselves.
    """
    gm = copy.deepcopy(gm)
    given = list(args) if disable_clone else clone_inputs_retaining_gradness(args)
    if hasattr(gm, "zero_grad"):
        gm.zero_grad(True)
    out = gm(given) if getattr(gm, "_boxed_call", False) else gm(*given)
    if only_fwd:
        return out
    losses = [t.sum() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and _is_differentiable(t)]
    if losses:
        sum(losses[1:], losses[0]).abs().backward()
    # What `compile` made of a module has the names of its parameters with a prefix.
    module = getattr(gm, "_orig_mod", gm)
    parameters = dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else {}
    gradients = {name: value.grad for name, value in parameters.items()}
    return [out, gradients, [value.grad if isinstance(value, torch.Tensor) else None for value in given]]


def _is_differentiable(value: torch.Tensor) -> bool:
    return value.requires_grad and (value.is_floating_point() or value.is_complex())


def same_two_models(
    gm: Any, opt_gm: Any, example_inputs: Sequence[Any], only_fwd: bool = False, *, require_fp64: bool = False,
    ignore_non_fp: bool = False, tolerance: float | None = None,
) -> bool:  # fmt: skip
    """Whether the second module has the results and gradients of the first, within the tolerance
    (by default `config.repro_tolerance`) or no further from those in float64, unless `config.same_two_models_use_fp64` is
    unset. A second module that raises counts as the same: that is another bug.

    Raises RuntimeError with `require_fp64` if there is no result in float64.
    """
    reference = run_fwd_maybe_bwd(gm, example_inputs, only_fwd)
    truth = None
    try:
        if config.same_two_models_use_fp64 or require_fp64:
            truth = run_fwd_maybe_bwd(
                *cast_to_fp64(copy.deepcopy(gm), clone_inputs_retaining_gradness(example_inputs)), only_fwd
            )
    except Exception as error:
        if require_fp64:
            raise RuntimeError("the module does not run in float64") from error
        _LOG.warning("the module does not run in float64")
    try:
        result = run_fwd_maybe_bwd(opt_gm, example_inputs, only_fwd)
    except Exception:
        _LOG.exception("the compiled module raises: it is left out, because this is another bug than a wrong value")
        return True
    if not isinstance(opt_gm, torch.nn.Module) and not only_fwd:  # it has no parameters of its own to look at
        reference, result, truth = (each and [each[0], each[2]] for each in (reference, result, truth))
    return same(
        reference,
        result,
        truth,
        tol=config.repro_tolerance if tolerance is None else tolerance,
        equal_nan=True,
        ignore_non_fp=ignore_non_fp,
    )


def cast_to_fp64(model: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    """The module and its arguments in float64; dtypes that a graph names become float64 too."""
    model = model.to(torch.float64)
    if isinstance(model, fx.GraphModule):
        for node in model.graph.nodes:
            node.kwargs = {name: _widened(value) for name, value in node.kwargs.items()}
            if "convert_element_type" in str(node.target):
                node.args = tuple(map(_widened, node.args))
        model.recompile()
    return model, pytree.tree_map_only(torch.Tensor, _as_float64, inputs)


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _as_float64(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    return value.detach().to(torch.float64).requires_grad_(value.requires_grad)


def backend_accuracy_fails(
    gm: Any, example_inputs: Sequence[Any], compiler_fn: Callable[..., Any], only_fwd: bool = False, *,
    require_fp64: bool = False, ignore_non_fp: bool = False,
) -> bool:  # fmt: skip
    """Whether what the backend makes of the graph has other values. A backend that raises counts as right here."""
    try:
        compiled = compiler_fn(copy.deepcopy(gm), clone_inputs_retaining_gradness(example_inputs))
        return not same_two_models(
            gm, compiled, example_inputs, only_fwd, require_fp64=require_fp64, ignore_non_fp=ignore_non_fp
        )
    except Exception:
        _LOG.exception("the backend raises: the graph is left out, because this is another bug than a wrong value")
        return False
