"""Statements about autograd: grad-mode regions, detach, hooks, gradients inside the program, checkpoint, torch.func."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import Definition, Expr, Items, OpCall, Operand, Ref, Statement
from fuzz.vocabulary.statements import ops, views, writes
from fuzz.vocabulary.statements.custom_functions import custom_function
from fuzz.vocabulary.statements.rule import Rule
from fuzz.vocabulary.statements.write_operands import write

Drawn = Statement | Sequence[Statement] | None
_INNER: tuple[Rule, ...] = (*ops.RULES, *views.RULES, *writes.RULES)
_FAMILY_WEIGHTS = {"op": 6.0, "view": 0.12, "write": 0.2}  # of a rule; views and writes have many
_REGIONS: Mapping[str, float] = {
    "torch.no_grad()": 5,
    "torch.enable_grad()": 1,
    "torch.set_grad_enabled(False)": 1,
    "torch.set_grad_enabled(True)": 0.5,
    "torch.inference_mode()": 0.1,
    "torch.autograd.set_detect_anomaly(False)": 0.1,
    "torch.autograd.graph.save_on_cpu()": 0.3,
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t)": 0.4,
}
# Bodies of small functions of one tensor that keep its shape.
BODIES: tuple[str, ...] = (
    "x.sin() * x",
    "x * x",
    "torch.tanh(x) + x",
    "x.sigmoid() * 2",
    "torch.nn.functional.gelu(x)",
    "x.relu() + x.cos()",
    "x.clone().mul_(2).cos()",
    "x.unsqueeze(0).squeeze(0) * x",
    "x * x.sum()",
    "x.reshape(-1).flip(0).reshape(x.shape) * x",
    "torch.where(x > 0, x * 2, x * x)",
    "x * x.detach()",
)
_RANDOM_BODIES = (
    "torch.nn.functional.dropout(x, 0.5)",
    "torch.nn.functional.dropout(x.sin(), 0.3) * x",
    "x * torch.rand_like(x)",
    "torch.nn.functional.dropout(torch.nn.functional.dropout(x, 0.5), 0.5)",
)


def is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() > 1 and tensor.numel() > 0


def wants_grad(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and is_float(tensor)


def has_history(tensor: torch.Tensor) -> bool:
    return wants_grad(tensor) and not tensor.is_leaf


def helper(draw: Draw, scene: Scene, body: str, *, parameters: str = "x", decorator: str = "") -> Expr:
    """A function at module level."""
    name = f"helper{len(scene.definitions)}"
    lead = f"{decorator}\n" if decorator else ""
    scene.define(Definition(name=name, text=f"{lead}def {name}({parameters}):\n    return {body}"))
    return Expr(name)


# -------------------------------------------------------------------------------------------------------- grad modes


def region(draw: Draw, scene: Scene) -> Drawn:
    """One to three statements in `with torch.no_grad():` or a similar context; sometimes with gradients enabled again inside."""
    before = len(scene.statements)
    with scene.region(draw.weighted(_REGIONS)):
        for _ in range(draw.weighted({1: 5, 2: 3, 3: 1})):
            _add_inner(draw, scene)
        if draw.chance(0.1):
            with scene.region("torch.enable_grad()"):
                _add_inner(draw, scene)
    return () if len(scene.statements) > before else None


def _add_inner(draw: Draw, scene: Scene) -> None:
    for _ in range(3):
        rules = {rule.name: rule.weight * _FAMILY_WEIGHTS[rule.family] for rule in _INNER}
        name = draw.weighted(rules)
        statements = next(rule for rule in _INNER if rule.name == name).draw_statements(draw, scene)
        if statements is not None and scene.add(statements):
            return


def decorated(draw: Draw, scene: Scene) -> Drawn:
    """A helper function under a decorator."""
    x = scene.pick(is_float)
    if x is None:
        return None
    decorator = draw.choice(("@torch.no_grad()", "@torch.enable_grad()", "@torch.set_grad_enabled(False)"))
    name = helper(draw, scene, draw.choice(BODIES), decorator=decorator).text
    return OpCall(target=name, args=(Ref(x),), results=(scene.fresh(),))


# ------------------------------------------------------------------------------------------------------ what is recorded


def detached_use(draw: Draw, scene: Scene) -> Drawn:
    """A value combined with its own detached version."""
    x = scene.pick(wants_grad)
    if x is None:
        return None
    cut = OpCall(target=".detach", args=(Ref(x),), results=(scene.fresh(),))
    how = draw.choice(("operator.mul", "operator.add", "torch.maximum"))
    args = (Ref(x), Ref(cut.results[0]))
    return [cut, OpCall(target=how, args=args if draw.chance(0.5) else args[::-1], results=(scene.fresh(),))]


def used_twice(draw: Draw, scene: Scene) -> Drawn:
    """A value that two statements read: its gradients are summed."""
    x = scene.pick(wants_grad)
    if x is None:
        return None
    how = draw.weighted({"square": 3, "branches": 3, "stack": 1})
    if how == "square":
        return OpCall(target="operator.mul", args=(Ref(x), Ref(x)), results=(scene.fresh(),))
    if how == "stack":
        return OpCall(target="torch.stack", args=(Items((Ref(x), Ref(x))),), results=(scene.fresh(),))
    one = OpCall(target=draw.choice((".sin", ".tanh", ".sigmoid", ".relu")), args=(Ref(x),), results=(scene.fresh(),))
    other = OpCall(target="operator.mul", args=(Ref(x), scene.number(scene.values[x])), results=(scene.fresh(),))
    both = (Ref(one.results[0]), Ref(other.results[0]))
    return [one, other, OpCall(target="operator.add", args=both, results=(scene.fresh(),))]


def saved_then_written(draw: Draw, scene: Scene) -> Drawn:
    """A result that backward uses, and a nearby write that does not change the saved tensor: `y = x.exp(); x.mul_(2)`."""
    x = scene.target(lambda tensor: wants_grad(tensor) and not tensor.is_leaf)
    if x is None:
        return None
    saved = OpCall(target=draw.choice((".sigmoid", ".tanh", ".exp", ".relu")), args=(Ref(x),), results=(scene.fresh(),))
    change = write(x, draw.choice(("mul_", "add_", "fill_")), scene.number(scene.values[x]))
    return [saved, change]


def requires_grad(draw: Draw, scene: Scene) -> Drawn:
    """A result that becomes a leaf, and a value computed from it."""
    x = scene.pick(lambda tensor: is_float(tensor) and not tensor.requires_grad)
    if x is None or x in scene.arguments or x.startswith("self."):
        return None
    marked = OpCall(target=".requires_grad_", args=(Ref(x),), results=(scene.fresh(),) if draw.chance(0.3) else ())
    used = OpCall(target=draw.choice((".sin", ".exp", ".clone")), args=(Ref(x),), results=(scene.fresh(),))
    return [marked, used]


def detached_in_place(draw: Draw, scene: Scene) -> Drawn:
    x = scene.pick(lambda tensor: has_history(tensor) and tensor._base is None)
    return None if x is None else OpCall(target=".detach_", args=(Ref(x),))


# ------------------------------------------------------------------------------------------------- gradients on the way


def hooked(draw: Draw, scene: Scene) -> Drawn:
    x = scene.pick(lambda tensor: wants_grad(tensor))
    if x is None or x.startswith("self."):
        return None
    body = draw.choice(("g * 2", "g.clamp(-0.5, 0.5)", "None", "g + 1", "g.clone().zero_()", "-g"))
    if draw.chance(0.5):
        hook: Operand = Expr(f"lambda g: {body}")
    else:
        hook = helper(draw, scene, body, parameters="g")
    registered = OpCall(target=".register_hook", args=(Ref(x), hook))
    if draw.chance(0.3):
        return registered
    return [registered, OpCall(target="operator.mul", args=(Ref(x), 2), results=(scene.fresh(),))]


def retained(draw: Draw, scene: Scene) -> Drawn:
    x = scene.pick(has_history)
    return None if x is None else OpCall(target=".retain_grad", args=(Ref(x),))


def differentiated(draw: Draw, scene: Scene) -> Drawn:
    """torch.autograd.grad inside the program, with respect to an argument; the differentiated values may be in another graph.

    Without `create_graph`, since compiled functions do not support double backward.
    """
    y = scene.pick(has_history)
    arguments = [name for name in scene.arguments if name in scene.values and wants_grad(scene.values[name])]
    if y is None or not arguments:
        return None
    loss = OpCall(target=".sum", args=(Ref(y),), results=(scene.fresh(),))
    kwargs: tuple[tuple[str, Operand], ...] = (("retain_graph", True), ("allow_unused", True))
    args = (Ref(loss.results[0]), Items((Ref(draw.choice(arguments)),)))
    gradients = OpCall(target="torch.autograd.grad", args=args, kwargs=kwargs, results=(scene.fresh(),))
    first = OpCall(target="getitem", args=(Ref(gradients.results[0]), 0), results=(scene.fresh(),))
    used = OpCall(target="operator.mul", args=(Ref(first.results[0]), 2), results=(scene.fresh(),))
    return [loss, gradients, first, used] if draw.chance(0.7) else [loss, gradients, first]


def checkpointed(draw: Draw, scene: Scene) -> Drawn:
    """A checkpoint, which backward recomputes, including random numbers."""
    x = scene.pick(wants_grad)
    if x is None:
        return None
    is_random = draw.chance(0.3) and not scene.is_random and scene.settings.is_random
    scene.is_random |= is_random
    body = draw.choice(_RANDOM_BODIES if is_random else BODIES)
    function = helper(draw, scene, body)
    kwargs = (("use_reentrant", draw.chance(0.4)), *((("preserve_rng_state", True),) if draw.chance(0.1) else ()))
    return OpCall(
        target="torch.utils.checkpoint.checkpoint", args=(function, Ref(x)), kwargs=kwargs, results=(scene.fresh(),)
    )


def transformed(draw: Draw, scene: Scene) -> Drawn:
    """torch.func on a small function."""
    x = scene.pick(is_float)
    if x is None:
        return None
    tensor = scene.values[x]
    how = draw.weighted(
        {"grad": 3, "vmap": 3, "vjp": 2, "jvp": 2, "grad_and_value": 1, "jacrev": 0.7, "jacfwd": 0.7, "vmap grad": 1}
    )
    body = draw.choice(BODIES)
    if how in ("jacrev", "jacfwd") and tensor.numel() > 12:
        how = "vjp"
    if how in ("vmap", "vmap grad") and not tensor.dim():
        how = "grad"
    if "grad" in how:
        body = f"({body}).sum()"
    function = helper(draw, scene, body).text
    result = scene.fresh()
    if how == "jvp":
        args = (Expr(function), Items((Ref(x),), "tuple"), Items((Ref(x),), "tuple"))
        return OpCall(target="torch.func.jvp", args=args, results=(result, scene.fresh()))
    if how == "vjp":
        pulled = OpCall(target="torch.func.vjp", args=(Expr(function), Ref(x)), results=(result, scene.fresh()))
        call = OpCall(target="call", args=(Ref(pulled.results[1]), Ref(result)), results=(scene.fresh(),))
        return [pulled, call]
    keywords: tuple[tuple[str, Operand], ...] = ()
    if how == "vmap" and draw.chance(0.3):
        dim = draw.integer(0, tensor.dim() - 1)
        keywords = (("in_dims", dim), ("out_dims", dim))
    inner = Expr(f"torch.func.grad({function})") if how == "vmap grad" else Expr(function)
    target = "torch.vmap" if how.startswith("vmap") else f"torch.func.{how}"
    made = OpCall(target=target, args=(inner,), kwargs=keywords, results=(scene.fresh(),))
    results = (result, scene.fresh()) if how == "grad_and_value" else (result,)
    return [made, OpCall(target="call", args=(Ref(made.results[0]), Ref(x)), results=results)]


_TABLE: tuple[tuple[Callable[[Draw, Scene], Drawn], float], ...] = (
    (region, 4),
    (decorated, 1),
    (detached_use, 1.5),
    (used_twice, 2),
    (saved_then_written, 1),
    (requires_grad, 1),
    (detached_in_place, 0.4),
    (custom_function, 4),
    (hooked, 1.5),
    (retained, 0.4),
    (differentiated, 1.5),
    (checkpointed, 1.5),
    (transformed, 2),
)
RULES = tuple(
    Rule(name=rule.__name__, family="autograd", draw_statements=rule, weight=weight) for rule, weight in _TABLE
)
