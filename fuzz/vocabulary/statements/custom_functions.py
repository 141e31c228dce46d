"""Custom autograd Functions: a table of class bodies with special features, and the statements that call them.

Some have wrong gradients on purpose, which shows whether a subject differentiates the forward itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Definition, OpCall, Operand, Ref, Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionBody:
    """Lines of `forward(ctx, ...)` and `backward(ctx, ...)`."""

    forward: str
    backward: str
    inputs: str = "x"
    gradients: str = "g"
    outputs: int = 1
    writes: bool = False
    numbers: tuple[Operand, ...] = ()  # further arguments that are not tensors
    before_backward: str = ""  # decorators
    setup: str = ""  # of `setup_context(ctx, inputs, output)`; then forward takes no ctx


BODIES: Mapping[str, FunctionBody] = {
    "scaled": FunctionBody(forward="return x * 2", backward="return g * 3"),
    "saves_input": FunctionBody(
        forward="ctx.save_for_backward(x)\nreturn x.sin()", backward="(x,) = ctx.saved_tensors\nreturn g * x.cos()"
    ),
    "saves_output": FunctionBody(
        forward="y = x.sigmoid()\nctx.save_for_backward(y)\nreturn y",
        backward="(y,) = ctx.saved_tensors\nreturn g * y * (1 - y)",
    ),
    "saves_both": FunctionBody(
        forward="y = x.tanh()\nctx.save_for_backward(x, y)\nreturn y",
        backward="x, y = ctx.saved_tensors\nreturn g * (1 - y * y) + 0 * x",
    ),
    "no_gradient_of_second": FunctionBody(
        inputs="x, y",
        forward="ctx.save_for_backward(y)\nreturn x * y",
        backward="(y,) = ctx.saved_tensors\nreturn g * y, None",
    ),
    "needs_input_grad": FunctionBody(
        inputs="x, y",
        forward="ctx.save_for_backward(x, y)\nreturn x * y",
        backward=(
            "x, y = ctx.saved_tensors\n"
            "return (g * y if ctx.needs_input_grad[0] else None), (g * x if ctx.needs_input_grad[1] else None)"
        ),
    ),
    "two_outputs": FunctionBody(
        forward="return x * 2, x + 1", backward="return g * 2 + h", gradients="g, h", outputs=2
    ),
    "unused_output": FunctionBody(
        forward="ctx.set_materialize_grads(False)\nreturn x * 2, x * 3",
        backward="return None if g is None and h is None else (0 if g is None else g * 2) + (0 if h is None else h * 3)",
        gradients="g, h",
        outputs=2,
    ),
    "mask_output": FunctionBody(
        forward="mask = x > 0\nctx.mark_non_differentiable(mask)\nctx.save_for_backward(mask)\nreturn x * mask, mask",
        backward="(mask,) = ctx.saved_tensors\nreturn g * mask",
        gradients="g, _",
        outputs=2,
    ),
    "dirty": FunctionBody(forward="x.mul_(2)\nctx.mark_dirty(x)\nreturn x", backward="return g * 2", writes=True),
    "number": FunctionBody(
        inputs="x, k", forward="ctx.k = k\nreturn x * k", backward="return g * ctx.k, None", numbers=(2.5,)
    ),
    "shape": FunctionBody(forward="ctx.shape = x.shape\nreturn x.sum()", backward="return g.expand(ctx.shape) * 2"),
    "view": FunctionBody(forward="return x.view_as(x)", backward="return g * 5"),
    "flat": FunctionBody(
        forward="ctx.shape = x.shape\nreturn x.reshape(-1).clone()", backward="return g.reshape(ctx.shape)"
    ),
    "once": FunctionBody(
        forward="ctx.save_for_backward(x)\nreturn x * x",
        backward="(x,) = ctx.saved_tensors\nreturn g * x * 2",
        before_backward="@torch.autograd.function.once_differentiable",
    ),
    "writes_gradient": FunctionBody(forward="return x * 1", backward="g = g.clone()\ng.mul_(2).add_(1)\nreturn g"),
    "straight_through": FunctionBody(forward="return x.round()", backward="return g"),
    "setup": FunctionBody(
        forward="return x.cos()",
        setup="ctx.save_for_backward(inputs[0])",
        backward="(x,) = ctx.saved_tensors\nreturn -g * x.sin()",
    ),
    "clipped": FunctionBody(forward="return x.clone()", backward="return g.clamp(-0.5, 0.5)"),
}


def definition_text(name: str, body: FunctionBody) -> str:
    """The class."""
    context = "" if body.setup else "ctx, "
    lines = [
        f"class {name}(torch.autograd.Function):",
        "    @staticmethod",
        f"    def forward({context}{body.inputs}):",
    ]
    lines += [f"        {line}" for line in body.forward.splitlines()]
    if body.setup:
        lines += ["", "    @staticmethod", "    def setup_context(ctx, inputs, output):", f"        {body.setup}"]
    lines += ["", "    @staticmethod"]
    lines += [f"    {body.before_backward}"] if body.before_backward else []
    lines += [f"    def backward(ctx, {body.gradients}):", *(f"        {line}" for line in body.backward.splitlines())]
    return "\n".join(lines)


def _fits(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > 1


def _wants_grad(tensor: torch.Tensor) -> bool:
    return _fits(tensor) and tensor.requires_grad


def custom_function(draw: Draw, scene: Scene) -> list[Statement] | None:
    """`v0 = Scaled0.apply(x)`, now and then twice on the same tensor."""
    kind = draw.choice([*BODIES])
    body = BODIES[kind]

    x = scene.target(_wants_grad) if body.writes else scene.pick(_wants_grad) or scene.pick(_fits)
    if x is None or (body.writes and scene.values[x].is_leaf):
        return None
    args: list[Operand] = [Ref(x)]
    if "y" in body.inputs:
        args.append(Ref(scene.tensor(_fits, shape=tuple(scene.values[x].shape), dtype=dtype_name(scene.values[x]))))
    name = f"{''.join(part.capitalize() for part in kind.split('_'))}{len(scene.definitions)}"
    scene.define(Definition(name=name, text=definition_text(name, body)))
    calls: list[Statement] = []
    for _ in range(2 if draw.chance(0.15) else 1):
        results = tuple(scene.fresh() for _ in range(body.outputs))
        calls.append(OpCall(target=f"{name}.apply", args=(*args, *body.numbers), results=results))
    return calls
