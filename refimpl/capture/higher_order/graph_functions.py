"""Functions that nodes of captured graphs call, where torch has none.

Counterpart: torch/_functorch/autograd_function.py AutogradFunctionApply
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable
from torch.fx import traceback
from torch.utils.checkpoint import checkpoint

from refimpl._torch import active_dispatch_modes


class _AppliedFunction(torch.autograd.Function):
    """A `torch.autograd.Function` whose forward and backward are graphs."""

    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, lifted: Sequence[Any], *args: Any) -> Any:
        """Returns the outputs, and keeps the graph's other results for backward."""
        outputs, is_saved = backward.outputs, backward.is_saved
        results = forward(*args, *lifted)
        kept = results[outputs:]
        ctx.save_for_backward(*(value for value, saved in zip(kept, is_saved, strict=True) if saved))
        ctx.held = [None if saved else value for value, saved in zip(kept, is_saved, strict=True)]
        ctx.backward_of = backward
        ctx.mark_dirty(*(args[index] for index in backward.dirty))
        ctx.mark_non_differentiable(*(results[index] for index in backward.non_differentiable))
        ctx.set_materialize_grads(backward.materialize_grads)
        return results[:outputs]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of the arguments."""
        return ctx.backward_of(ctx, gradients)


class _Backward:
    """How the backward graphs are called. A new one for each call, so that the graph keeps nothing of the call alive."""

    def __init__(
        self, graphs: Sequence[Callable[..., Any]], patterns: Sequence[tuple[bool, ...]], outputs: int,
        is_saved: Sequence[bool], dirty: Sequence[int], non_differentiable: Sequence[int], materialize_grads: bool,
        is_once: bool,
    ) -> None:  # fmt: skip
        self.graphs = dict(zip(patterns, graphs, strict=True))
        self.outputs = outputs
        self.is_saved = is_saved
        self.dirty = dirty
        self.non_differentiable = non_differentiable
        self.materialize_grads = materialize_grads
        self.run = once_differentiable(self._run) if is_once else self._run

    def __call__(self, ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        return self.run(ctx, *gradients)

    def _run(self, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        if not self.graphs:
            return torch.autograd.Function.backward(ctx, *gradients)  # raises the error for a Function without backward
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if is_saved else value for value, is_saved in zip(ctx.held, self.is_saved, strict=True)]
        graph = self.graphs[tuple(gradient is not None for gradient in gradients)]
        return (None, None, None, *graph(*(gradient for gradient in gradients if gradient is not None), *kept))


@functools.lru_cache(maxsize=256)
def _class_named(name: str) -> Any:
    """Names the class after the program's: a program may print the autograd node."""
    return type(name, (_AppliedFunction,), {})


def autograd_function_apply(
    forward: Callable[..., Any], backwards: Sequence[Callable[..., Any]], args: Sequence[torch.Tensor],
    lifted: Sequence[Any], *, name: str, outputs: int, patterns: Sequence[Sequence[bool]], is_saved: Sequence[bool],
    dirty: Sequence[int] = (), non_differentiable: Sequence[int] = (), materialize_grads: bool = True,
    is_once_differentiable: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """`Function.apply(*args)` of a captured Function.

    forward: computes, from args and lifted, the outputs and the values kept for backward.
    backwards: each computes, from the gradients that are not None and the kept values, one gradient or None for each of args.
        Which is called depends on `patterns`: for each output, whether it has a gradient (without materialize_grads some may
        not).
    outputs: how many results are outputs. is_saved: which of the other results are saved for backward as autograd does, with
        its checks; the rest is kept unchecked. dirty: indices of args that forward writes to; non_differentiable: indices of
        outputs.
    """
    backward = _Backward(
        backwards, [tuple(pattern) for pattern in patterns], outputs, is_saved, dirty, non_differentiable,
        materialize_grads, is_once_differentiable,
    )  # fmt: skip
    return _class_named(name).apply(forward, backward, lifted, *args)


def differentiable_scan(
    combine_fn: Callable[..., Any], init: Sequence[Any], xs: Sequence[torch.Tensor], additional_inputs: Sequence[Any]
) -> Sequence[Any]:
    """torch's scan, which has a gradient. Under a mode that sees every operator the steps run one by one, because the gradient
    traces itself.

    Returns the final carried values, and the outputs of the steps, stacked.
    """
    if not active_dispatch_modes():
        return torch.ops.higher_order.scan(combine_fn, init, xs, additional_inputs)
    return stepwise_scan(combine_fn, init, xs, additional_inputs)


def stepwise_scan(
    combine_fn: Callable[..., Any], init: Sequence[Any], xs: Sequence[torch.Tensor], additional_inputs: Sequence[Any]
) -> tuple[Any, ...]:
    """The results of scan from its steps one by one, which is how vmap maps it."""
    carried, outs = tuple(init), []
    for index in range(xs[0].shape[0]):
        results = combine_fn(*carried, *(x[index] for x in xs), *additional_inputs)
        carried = results[: len(init)]
        outs.append(results[len(init) :])
    return (*carried, *(torch.stack(parts) for parts in zip(*outs, strict=True)))


def activation_checkpoint(
    body: fx.GraphModule, *operands: Any, preserve_rng_state: bool, determinism_check: str, early_stop: bool
) -> Any:
    """The body's result. It saves nothing for backward, which runs the body again.

    Under a mode that sees every operator, the body's operators are seen with their checkpoint marks, and the partitioner
    decides what to save.
    """
    if active_dispatch_modes():
        with traceback.preserve_node_meta():
            return fx.Interpreter(body).run(*operands)
    return checkpoint(
        body, *operands, use_reentrant=False, preserve_rng_state=preserve_rng_state, determinism_check=determinism_check,
        early_stop=early_stop,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ torch.func


def mapped_cond(
    pred: torch.Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """torch.cond within vmap, with a predicate that differs between the slices: both branches run, and each slice takes the
    results of one.
    """
    chosen = pred.reshape(())
    pairs = zip(true_fn(*operands), false_fn(*operands), strict=True)
    return tuple(torch.where(chosen, one, other) for one, other in pairs)


class _TransformedFunction:
    """The methods of a `torch.autograd.Function` made of graphs. torch calls each once for every transform that needs it."""

    def __init__(
        self, forward: Callable[..., Any] | None, set_up: Callable[..., Any] | None, backwards: dict[Any, Callable[..., Any]],
        derivative: Callable[..., Any] | None, mapped: Callable[..., Any] | None, lifted: Sequence[Any], settings: dict[str, Any],
    ) -> None:  # fmt: skip
        self._forward, self._set_up, self._backwards = forward, set_up, backwards
        self._derivative, self._mapped = derivative, mapped
        self._lifted = lifted
        self._settings = settings

    def class_(self) -> Any:
        """The Function. It has those of the optional methods that the program's has."""
        settings = self._settings
        run = once_differentiable(self.backward) if settings["is_once_differentiable"] else self.backward
        methods: dict[str, Any] = {"forward": self.forward, "setup_context": self.setup_context, "backward": run}
        if self._derivative is not None:
            methods["jvp"] = self.jvp
        if settings["has_rule"]:
            methods["vmap"] = self.vmap
        namespace = {name: staticmethod(method) for name, method in methods.items()}
        namespace["generate_vmap_rule"] = settings["generates_vmap_rule"]
        return type(settings["name"], (torch.autograd.Function,), namespace)

    def forward(self, *args: Any) -> Any:
        assert self._forward is not None, "the rule of vmap computes the results"
        return self._forward(*args, *self._lifted)

    def setup_context(self, ctx: Any, inputs: Any, output: Any) -> None:
        """Saves what the program saves, then keeps what its derivatives read besides."""
        settings = self._settings
        assert self._set_up is not None, "no transform above vmap needs a derivative"
        made = self._set_up(*inputs, *(output[index] for index in settings["read"]), *self._lifted)
        backward, forward = settings["saved"], settings["saved_for_forward"]
        ctx.save_for_backward(*made[:backward])
        if forward:
            ctx.save_for_forward(*made[backward : backward + forward])
        ctx.held = made[backward + forward :]
        ctx.mark_non_differentiable(*(output[index] for index in settings["non_differentiable"]))
        ctx.set_materialize_grads(settings["materialize_grads"])

    def backward(self, ctx: Any, *gradients: Any) -> Any:
        if not self._backwards:
            return torch.autograd.Function.backward(ctx, *gradients)  # raises the error for a Function without backward
        graph = self._backwards[tuple(gradient is not None for gradient in gradients)]
        return graph(*(gradient for gradient in gradients if gradient is not None), *ctx.saved_tensors, *ctx.held)

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        assert self._derivative is not None
        return self._derivative(*tangents, *ctx.saved_tensors, *ctx.held)

    def vmap(self, info: Any, in_dims: Any, *args: Any) -> Any:
        assert self._mapped is not None, "vmap runs over no argument"
        assert tuple(in_dims) == tuple(self._settings["in_dims"]), "vmap runs over other dimensions than in capture"
        return self._mapped(*args, *self._lifted), tuple(self._settings["out_dims"])


def transformed_function_apply(
    forward: Callable[..., Any] | None, set_up: Callable[..., Any] | None, backwards: Sequence[Callable[..., Any]],
    derivative: Callable[..., Any] | None, mapped: Callable[..., Any] | None, args: Sequence[torch.Tensor],
    lifted: Sequence[Any], *, patterns: Sequence[Sequence[bool]], **settings: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """`Function.apply(*args)` of a captured Function within transforms of torch.func.

    forward: computes the outputs from args and lifted.
    set_up: computes what is saved for backward, what is saved for forward mode and what else is kept, from args, those outputs
        that it reads, and lifted.
    backwards: as in `autograd_function_apply`, from gradients, saved and kept values. derivative: the same for tangents of args.
    mapped: the outputs with all slices, from args with all slices and lifted; instead of forward.
    """
    graphs = dict(zip([tuple(pattern) for pattern in patterns], backwards, strict=True))
    made = _TransformedFunction(forward, set_up, graphs, derivative, mapped, lifted, settings)
    return made.class_().apply(*args)


def with_gradient(wrapper: torch.Tensor) -> torch.Tensor:
    """The wrapper that a level of torch.func.grad differentiates with respect to; it requires grad from now on."""
    return wrapper.requires_grad_()


def gradients_within(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], grad_outputs: Sequence[torch.Tensor] | None = None,
    retain_graph: bool = False, create_graph: bool = True,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Gradients at a level of torch.func.grad. A gradient is zero for an input that no output depends on."""
    tangents = [None] * len(outputs) if grad_outputs is None else grad_outputs
    used = [(output, tangent) for output, tangent in zip(outputs, tangents, strict=True) if output.requires_grad]
    if not used:
        return tuple(torch.zeros_like(each) for each in inputs)
    differentiated, given = zip(*used, strict=True)
    found = torch.autograd.grad(
        differentiated, inputs, None if grad_outputs is None else given, retain_graph=retain_graph,
        create_graph=create_graph, allow_unused=True,
    )  # fmt: skip
    return tuple(
        torch.zeros_like(each) if gradient is None else gradient for gradient, each in zip(found, inputs, strict=True)
    )
