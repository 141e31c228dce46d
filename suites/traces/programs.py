"""Programs to trace: `model` and `joint_of_sample`, the functions that a planned program's source calls.

A *joint* function computes its result and the gradients of a loss in one run, by `torch.autograd.grad`: traced, it is one graph
of forward and backward. Its inputs are plain tensors and its results are detached, so that all of autograd is inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.program.clone import clone_tree
from suites.models.catalog import ARCHITECTURES
from suites.models.zoo import build, make_inputs
from suites.opinfo.samples import bind
from suites.traces.sizes import enlarged

Inputs = Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]

# No other dimension of an input, parameter or buffer has this size in any model of the zoo, so that the batch has a symbol of its
# own in symbolic mode; a test checks this.
BATCH = 13


def model(name: str, *, direction: str, dtype: str, device: str, masks: bool) -> tuple[Callable[..., Any], Inputs]:
    """A model as a function of (parameters, buffers, inputs). "forward": its outputs in eval mode under no_grad;
    "joint": loss, first output and the gradients of all parameters, in training mode.

    Inputs have the batch size `BATCH` if the model accepts it, else the catalog's. With `masks=False` attention masks are
    left out, or given as they are added to the scores, whichever keeps the model from reading values: transformers ask
    `mask.all()` unless tensors are fake, and no tracer of real tensors gets past that.
    """
    mode = "train" if direction == "joint" else "eval"
    module = build(name, mode=mode, dtype=dtype, device=device).train(direction == "joint")
    parameters = {key: value.detach() for key, value in module.named_parameters()}
    buffers = {key: value.detach() for key, value in module.named_buffers()}
    _, given = make_inputs(name, mode=mode, dtype=dtype, device=device, call=0)
    program = _joint_model(module) if direction == "joint" else _eval_model(module)
    if not masks:
        given = _without_reads(name, given, lambda chosen: _takes(program, (parameters, buffers, chosen), reads=False))
    batched = _with_batch(given)
    fitting = batched if _takes(program, (parameters, buffers, batched)) else given

    def inputs(call: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (parameters, buffers, fitting), {}

    return program, inputs


def joint_of_sample(op: str, *, dtype: str, index: int, device: str) -> tuple[Callable[..., Any], Inputs]:
    """An operator's sample as a joint function: the result, and the gradients of the sum of the squares of its floats."""
    function, sample_inputs = bind(op, dtype=dtype, kind="sample", index=index, device=device, direction="backward")
    args, kwargs = sample_inputs(0)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    differentiated = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    plain = pytree.tree_unflatten(
        [leaf.detach() if at in differentiated else leaf for at, leaf in enumerate(leaves)], spec
    )

    def program(*args: Any, **kwargs: Any) -> Any:
        values, its_spec = pytree.tree_flatten((args, kwargs))
        for at in differentiated:
            values[at] = values[at].detach().requires_grad_()
        given, named = pytree.tree_unflatten(values, its_spec)
        with torch.enable_grad():
            result = function(*given, **named)
            return _with_gradients(result, [values[at] for at in differentiated])

    def inputs(call: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return plain

    return program, inputs


def _with_gradients(result: Any, wanted: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor | None]]:
    outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    losses = [
        (one * one.conj()).real.sum() if one.is_complex() else one.pow(2).sum() for one in outputs if one.requires_grad
    ]
    gradients: list[torch.Tensor | None] = [None] * len(wanted)
    if losses:
        gradients = list(torch.autograd.grad(sum(losses[1:], losses[0]), wanted, allow_unused=True))
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result), gradients


def _joint_model(module: torch.nn.Module) -> Callable[..., Any]:
    def program(parameters: dict[str, Any], buffers: dict[str, Any], inputs: dict[str, Any]) -> Any:
        with torch.enable_grad():
            leaves = {
                key: value.detach().requires_grad_(value.is_floating_point()) for key, value in parameters.items()
            }
            loss, output = torch.func.functional_call(module, {**leaves, **buffers}, kwargs=inputs)
            wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
            gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        return loss.detach(), output.detach(), list(gradients)

    return program


def _eval_model(module: torch.nn.Module) -> Callable[..., Any]:
    def program(parameters: dict[str, Any], buffers: dict[str, Any], inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            result = torch.func.functional_call(module, {**parameters, **buffers}, kwargs=inputs)
        return [leaf for leaf in pytree.tree_leaves(_plain(result)) if isinstance(leaf, torch.Tensor)]

    return program


def _plain(result: Any) -> Any:
    """A model's output as containers that pytree knows: transformers' output classes are mappings of their own."""
    if isinstance(result, torch.Tensor) or not hasattr(result, "keys"):
        return result
    return [_plain(result[key]) for key in result]


def _with_batch(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs with `BATCH` rows in place of as many as the first of them has."""
    old = next(iter(given.values())).shape[0]
    return {
        key: enlarged(value, (BATCH, *value.shape[1:])) if value.dim() and value.shape[0] == old else value
        for key, value in given.items()
    }


def _without_reads(
    name: str, given: dict[str, torch.Tensor], is_taken: Callable[[dict[str, torch.Tensor]], bool]
) -> dict[str, torch.Tensor]:
    """The first variant of the inputs with which the model reads no values; else the inputs unchanged."""
    masks = {key for key, spec in ARCHITECTURES[name].inputs.items() if spec.kind == "mask"}
    without = {key: value for key, value in given.items() if key not in masks}
    added = {key: _added_mask(value) if key in masks else value for key, value in given.items()}
    forms = [given, without, added]
    if "decoder_input_ids" in given:
        decoder = {"decoder_attention_mask": _added_mask(torch.ones_like(given["decoder_input_ids"]))}
        forms += [{**without, **decoder}, {**added, **decoder}]
    return next((form for form in forms if is_taken(form)), given)


def _added_mask(mask: torch.Tensor) -> torch.Tensor:
    """A causal mask [batch, 1, length, length], added to attention scores: 0 where `mask` [batch, length] lets through."""
    length = mask.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool).tril() & mask[:, None, None, :].bool()
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


class _NoReads(TorchDispatchMode):
    """A dispatch mode that refuses calls whose result is a Python value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.data_dependent_output in func.tags:
            raise RuntimeError(f"{func} reads a value")
        return func(*args, **(kwargs or {}))


def _takes(program: Callable[..., Any], args: Any, *, reads: bool = True) -> bool:
    try:
        with contextlib.nullcontext() if reads else _NoReads():
            program(*clone_tree(args))
    except Exception:  # not accepted: the program then uses the catalog's own inputs
        return False
    return True
