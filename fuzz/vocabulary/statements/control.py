"""Control flow: branches and loops on sizes, numbers and values, exceptions, contexts, and torch's own control flow operators.

These break graphs, or cause recompiles in later calls. Statements in branches are separate operator calls, so that the reducer
can simplify a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import Block, Expr, Lines, OpCall, Ref, Statement
from fuzz.vocabulary.statements.ops import draw_op
from fuzz.vocabulary.statements.python_template import Template, Varies, kind_of, rules_of
from fuzz.vocabulary.statements.rule import Rule

_FLOAT_STEPS = (".sin", "torch.relu", ".abs", "torch.tanh", ".neg", ".cos", "torch.sigmoid", ".square")
_OTHER_STEPS = ("operator.mul", "operator.add", "operator.sub")
Fits = Callable[[torch.Tensor], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition on a tensor, `{x}`, which may contain a drawn integer, `{k}`."""

    text: str
    fits: Fits = lambda tensor: True
    reads_values: bool = False
    weight: float = 1.0


CONDITIONS: tuple[Condition, ...] = (
    Condition(text="{x}.shape[0] > {k}", fits=lambda t: t.dim() > 0, weight=2),
    Condition(text="{x}.shape[-1] == {k}", fits=lambda t: t.dim() > 0),
    Condition(text="{x}.shape[0] % 2 == 0", fits=lambda t: t.dim() > 0),
    Condition(text="{x}.size(0) <= {x}.size(-1)", fits=lambda t: t.dim() > 1),
    Condition(text="{x}.numel() >= {k} * 3"),
    Condition(text="{x}.dim() == {k}"),
    Condition(text="1 in {x}.shape or 0 in {x}.shape"),
    Condition(text="{x}.is_contiguous()"),
    Condition(text="{x}.dtype == torch.float32"),
    Condition(text="{x}.requires_grad"),
    Condition(text="torch.is_grad_enabled()", weight=0.5),
    Condition(text="({x} > 0).any()", fits=lambda t: not t.is_complex(), reads_values=True),
    Condition(text="({x} > 0).sum() > {k}", fits=lambda t: not t.is_complex(), reads_values=True, weight=2),
    Condition(text="({x} == {x}).all() and {x}.numel()", reads_values=True),
    Condition(text="{x}.flatten()[0] < {k}", fits=lambda t: t.numel() > 0 and not t.is_complex(), reads_values=True),
    Condition(text="bool(({x} != 0).sum().item() % 2)", reads_values=True),
    Condition(text="{x}.argmax() > {k}", fits=lambda t: t.numel() > 0 and kind_of(t) != "complex", reads_values=True),
)


def draw_if(draw: Draw, scene: Scene) -> Statement | None:
    """if and else: one branch is any operator call, the other a computation on the same tensor."""
    drawn = _condition(draw, scene)
    if drawn is None:
        return None
    x, header = drawn
    result = scene.fresh()
    first, second = [_branch(draw, scene, x, result) for _ in range(2)]
    return Block(header=f"if {header}:", body=first, orelse=second, uses=(x,))


def draw_if_without_else(draw: Draw, scene: Scene) -> Sequence[Statement] | None:
    """A value that is rebound if the condition holds."""
    drawn = _condition(draw, scene)
    if drawn is None:
        return None
    x, header = drawn
    result = scene.fresh()
    begin = _step(draw, scene, x, result)
    return begin, Block(header=f"if {header}:", body=(_step(draw, scene, result, result, like=x),), uses=(x,))


def draw_elif(draw: Draw, scene: Scene) -> Statement | None:
    """Three ways, nested."""
    drawn, other = _condition(draw, scene), _condition(draw, scene)
    if drawn is None or other is None:
        return None
    (x, header), (y, inner) = drawn, other
    result = scene.fresh()
    second = Block(
        header=f"if {inner}:",
        body=_branch(draw, scene, x, result),
        orelse=_branch(draw, scene, x, result),
        uses=(y,),
    )
    return Block(header=f"if {header}:", body=_branch(draw, scene, x, result), orelse=(second,), uses=(x,))


def draw_conditional_write(draw: Draw, scene: Scene) -> Statement | None:
    """A write to a live tensor in one branch only."""
    drawn = _condition(draw, scene)
    target = scene.target(lambda t: kind_of(t) in ("float", "integer") and not (t.is_leaf and t.requires_grad))
    if drawn is None or target is None:
        return None
    x, header = drawn
    write = OpCall(target=draw.choice((".add_", ".mul_")), args=(Ref(target), draw.choice((2, 1, 3))))
    return Block(header=f"if {header}:", body=(write,), uses=(x,))


def draw_for(draw: Draw, scene: Scene) -> Sequence[Statement] | None:
    """A loop that carries a value; sometimes over a size."""
    x = scene.pick(lambda t: kind_of(t) == "float" and t.numel() <= 512)
    if x is None:
        return None
    result = scene.fresh()
    sizes = [f"min({{{x}}}.shape[{at}], 5)" for at in range(min(2, scene.values[x].dim()))]
    count = draw.choice(["3", "2", *sizes])
    body: list[Statement] = [_step(draw, scene, result, result, like=x)]
    if draw.chance(0.5):
        body.append(OpCall(target="operator.mul", args=(Ref(result), Expr("i")), results=(result,)))
    if draw.chance(0.3):
        after = draw.choice(("break", "continue"))
        stop = Lines(text=f"if i == {draw.integer(0, 2)}:\n    {after}")
        body.insert(draw.integer(0, len(body)), stop)
    header = f"for i in range({count}):"
    uses = (x,) if x in count else ()
    return _step(draw, scene, x, result), Block(header=header, body=tuple(body), uses=uses)


def draw_for_else(draw: Draw, scene: Scene) -> Sequence[Statement] | None:
    """for with else, left early by a condition."""
    x = scene.pick(lambda t: kind_of(t) == "float" and t.dim() > 0)
    if x is None:
        return None
    result = scene.fresh()
    leave = Lines(text=f"if size == {draw.integer(1, 5)}:\n    break")
    loop = Block(
        header=f"for size in {{{x}}}.shape:",
        body=(OpCall(target="operator.mul", args=(Ref(result), Expr("size")), results=(result,)), leave),
        orelse=(_step(draw, scene, result, result, like=x),),
        uses=(x,),
    )
    return _step(draw, scene, x, result), loop


def draw_while(draw: Draw, scene: Scene) -> Sequence[Statement] | None:
    """A loop with a counter, or one that ends by the values of a tensor; it ends after five rounds in any case."""
    x = scene.pick(lambda t: kind_of(t) == "float" and t.numel() <= 512)
    if x is None:
        return None
    result, rounds = scene.fresh(), scene.fresh()
    header = f"while {{{rounds}}} < {draw.integer(1, 4)}:"
    if draw.chance(0.4) and scene.settings.focus != "export":
        header = f"while {{{rounds}}} < 5 and ({{{result}}} > {draw.choice((0, 0.25, 1))}).any():"
    body = (
        _step(draw, scene, result, result, like=x),
        Lines(text=f"{{{rounds}}} += 1", uses=(rounds,), results=(rounds,)),
    )
    begin = Lines(text=f"{{{rounds}}} = {draw.integer(0, 1)}", results=(rounds,))
    return begin, _step(draw, scene, x, result), Block(header=header, body=body, uses=(rounds, result))


def draw_try(draw: Draw, scene: Scene) -> Statement | None:
    """A body that raises, or may raise, a Python exception, and a handler."""
    return _try(
        draw,
        scene,
        (
            "raise ValueError('left')\n{r} = None",
            "assert {x}.dim() > {k}\n{r} = {x} * 4",
            "{r} = {x} * {1: 2, 2: 3}.get({x}.dim()).bit_length()",
            "{r} = {x} * {1: 2, 2: 3}[{x}.dim()]",
            "{r} = {x} / (1 // ({x}.dim() - {k}))",
            "{r} = {x} * [2, 3][{x}.dim()]",
            "{r} = {x} + int('{k}' * {x}.dim())",
        ),
    )


def draw_try_torch(draw: Draw, scene: Scene) -> Statement | None:
    """A body in which torch may raise. It is rare, since capture does not pass such errors to the handler."""
    return _try(draw, scene, ("{r} = {x}.view(-1, 7)", "{r} = {x}[{k}]", "{r} = torch.mm({x}, {x})"))


def _try(draw: Draw, scene: Scene, bodies: Sequence[str]) -> Statement | None:
    x = scene.pick(lambda t: kind_of(t) == "float")
    if x is None:
        return None
    result = scene.fresh()
    refused = draw.choice(bodies).replace("{x}", f"{{{x}}}").replace("{r}", f"{{{result}}}")
    refused = refused.replace("{k}", str(draw.integer(0, 3)))
    caught = draw.choice(
        ("Exception", "(RuntimeError, ValueError, LookupError, AssertionError, AttributeError, ArithmeticError)")
    )
    body = (Lines(text=refused, uses=(x,), results=(result,)),)
    return Block(header="try:", body=body, orelse=(_step(draw, scene, x, result),), orelse_header=f"except {caught}:")


def draw_try_finally(draw: Draw, scene: Scene) -> Sequence[Statement] | None:
    """try with finally."""
    x = scene.pick(lambda t: kind_of(t) in ("float", "integer"))
    if x is None:
        return None
    result = scene.fresh()
    finished = OpCall(target="operator.mul", args=(Ref(result), 2), results=(result,))
    return _step(draw, scene, x, result), Block(
        header="try:",
        body=(_step(draw, scene, result, result, like=x),),
        orelse=(finished,),
        orelse_header="finally:",
    )


def draw_with(draw: Draw, scene: Scene) -> Statement | None:
    """A `with` statement that changes the grad mode or the computation."""
    header = draw.choice(
        (
            "with torch.no_grad():",
            "with torch.enable_grad():",
            "with torch.set_grad_enabled(torch.is_grad_enabled()):",
            "with torch.autograd.set_grad_enabled(False):",
            "with torch.inference_mode(False):",
            "with torch.random.fork_rng(devices=[]):",
        )
    )
    statement = draw_op(draw, scene)
    return None if statement is None else Block(header=header, body=(statement,))


def draw_raise(draw: Draw, scene: Scene) -> Statement | None:
    """A raise that does not happen in the first call, but may in a later one."""
    drawn = _condition(draw, scene, lambda condition: not condition.reads_values)
    if drawn is None:
        return None
    x, header = drawn
    error = draw.choice(("ValueError", "RuntimeError", "TypeError"))
    return Block(header=f"if {header}:", body=(Lines(text=f"raise {error}('refused by the program')"),), uses=(x,))


def _condition(
    draw: Draw, scene: Scene, allows: Callable[[Condition], bool] = lambda condition: True
) -> tuple[str, str] | None:
    """A tensor and a condition on it, with the tensor's name in braces."""
    is_export = scene.settings.focus == "export"
    able = {
        condition: condition.weight
        for condition in CONDITIONS
        if allows(condition) and not (is_export and condition.reads_values)
    }
    condition = draw.weighted(able)
    x = scene.pick(lambda t: kind_of(t) != "other" and condition.fits(t))
    if x is None:
        return None
    return x, condition.text.replace("{x}", f"{{{x}}}").replace("{k}", str(draw.integer(1, 4)))


def _branch(draw: Draw, scene: Scene, x: str, result: str) -> tuple[Statement, ...]:
    """Statements that bind the result: an operator drawn as any other, or a computation of x."""
    if draw.chance(0.4):
        drawn = draw_op(draw, scene)
        if isinstance(drawn, OpCall) and len(drawn.results) == 1:
            return (replace(drawn, results=(result,)),)
    return (_step(draw, scene, x, result),)


def _step(draw: Draw, scene: Scene, x: str, result: str, *, like: str = "") -> OpCall:
    """A computation of x, which is a tensor such as `like` where it is not live yet."""
    tensor: Any = scene.values[like or x]
    if kind_of(tensor) == "float" and draw.chance(0.6):
        return OpCall(target=draw.choice(_FLOAT_STEPS), args=(Ref(x),), results=(result,))
    return OpCall(target=draw.choice(_OTHER_STEPS), args=(Ref(x), draw.choice((2, 3, 1))), results=(result,))


# Control flow operators of torch are rare, since eager compiles them at every call.
_HIGHER_ORDER: tuple[Template, ...] = (
    Template(
        name="cond",
        family="control",
        focuses=("python", "export"),
        definitions=("def $D(x):\n    return $f(x) * 2", "def $E(x):\n    return $g(x) * 2"),
        text="{r} = torch.cond(({x} > 0).sum() > $k, $D, $E, ({x},))",
        weight=0.01,
    ),
    Template(
        name="cond_on_size",
        family="control",
        focuses=("python", "export"),
        definitions=("def $D(x):\n    return $f(x) * 2", "def $E(x):\n    return $g(x) * 2"),
        text="{r} = torch.cond({x}.shape[0] > $k, $D, $E, ({x},))",
        weight=0.01,
        condition=lambda tensor: tensor.dim() > 0,
    ),
    Template(
        name="while_loop",
        family="control",
        focuses=("python", "export"),
        definitions=(
            "def $D(i, x):\n    return i < $k",
            "def $E(i, x):\n    return i + 1, $f(x) * 1",
            "from torch._higher_order_ops.while_loop import while_loop\n\n$F = while_loop",
        ),
        text="_, {r} = $F($D, $E, (torch.zeros((), dtype=torch.int64), {x}.detach().clone()))",
        weight=0.01,
    ),
    Template(
        name="scan",
        family="control",
        focuses=("python", "export"),
        definitions=(
            "def $D(carry, x):\n    new = carry + x * $n\n    return new, new * 2",
            "from torch._higher_order_ops.scan import scan\n\n$E = scan",
        ),
        text="{r}, {s} = $E($D, torch.zeros_like({x}.detach()[0]), {x}.detach().contiguous(), dim=0)",
        weight=0.01,
        condition=lambda tensor: tensor.dim() > 0 and tensor.shape[0] > 0 and tensor.is_contiguous(),
    ),
    Template(
        name="map",
        family="control",
        focuses=("python", "export"),
        definitions=(
            "def $D(x, y):\n    return $f(x) * y",
            "from torch._higher_order_ops.map import map as mapped\n\n$E = mapped",
        ),
        text="{r} = $E($D, {x}.detach().contiguous(), torch.tensor($n))",
        weight=0.01,
        condition=lambda tensor: tensor.dim() > 1 and tensor.shape[0] > 0,
    ),
)
_STATEMENTS: tuple[Template, ...] = (
    Template(
        name="loop_over_tensors",
        family="control",
        text="""
            {r} = {x}
            for part in ({x}, {y}, $f({x})):
                if part.shape != {x}.shape:
                    continue
                {r} = $b({r}, part)
        """,
        kinds=("float", "integer", "complex"),
    ),
    Template(
        name="nested_loops",
        family="control",
        text="""
            {r} = {x}
            for i in range($k):
                for j in range(i, 3):
                    if j == 2 and i == 1:
                        break
                    {r} = $f({r}) * (i + 1)
                else:
                    {r} = {r} - j
        """,
    ),
    Template(
        name="global_loop_count",
        family="control",
        definitions=("$D = 2",),
        text="""
            {r} = {x}
            for _ in range($D):
                {r} = $f({r}) + 1
        """,
        varies=(Varies(kind="global", name="$D", texts=("$D = 3", "$D = 0", "$D = 1"), restore="$D = 2"),),
    ),
    Template(
        name="conditional_expressions",
        family="control",
        text="""
            {r} = ($f({x}) if {x}.dim() else $g({x}) * 2) + (1 if {x}.numel() > $k else {x}.numel())
            {s} = {x} * (0 < {x}.dim() < 3) + (not {x}.shape)
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="exception_from_helper",
        family="control",
        definitions=(
            """
            def $D(x):
                if x.dim() > 1:
                    raise ValueError(x.dim())
                return $f(x)
            """,
        ),
        text="""
            try:
                {r} = $D({x}) * 2
            except ValueError as error:
                {r} = $g({x}) * error.args[0] + 1
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="own_exception",  # with an `__init__` of its own: capture leaves the whole function to Python
        family="control",
        weight=0.1,
        definitions=(
            """
            class $D(ValueError):
                def __init__(self, amount):
                    super().__init__(f'amount {amount}')
                    self.amount = amount
            """,
            """
            def $E(x):
                if x.dim() > 1:
                    raise $D(x.dim())
                return $f(x)
            """,
        ),
        text="""
            try:
                {r} = $E({x}) * 2
            except $D as error:
                {r} = $g({x}) * error.amount + len(str(error))
        """,
        kinds=("float", "integer"),
    ),
    Template(
        name="exception_chain",
        family="control",
        text="""
            {r} = {x}
            try:
                try:
                    {r} = $f({r})
                    raise KeyError($k)
                except KeyError as error:
                    {r} = {r} * error.args[0]
                    raise ValueError('again') from error
                finally:
                    {r} = {r} + 1
            except ValueError as error:
                {r} = {r} * (3 if isinstance(error.__cause__, KeyError) else 5)
        """,
    ),
    Template(
        name="graph_break",
        family="control",
        text="""
            {r} = $f({x})
            torch._dynamo.graph_break()
            {s} = {r} * 2 + {x}
        """,
        weight=1.5,
    ),
)

_BLOCKS = {
    "if": (draw_if, 3),
    "if_without_else": (draw_if_without_else, 1.5),
    "elif": (draw_elif, 1),
    "conditional_write": (draw_conditional_write, 1),
    "for": (draw_for, 2),
    "for_else": (draw_for_else, 0.7),
    "while": (draw_while, 1),
    "try": (draw_try, 1),
    "try_torch": (draw_try_torch, 0.05),
    "try_finally": (draw_try_finally, 0.7),
    "with": (draw_with, 1),
    "raise": (draw_raise, 0.5),
}
RULES: tuple[Rule, ...] = (
    *(Rule(name=n, family="control", draw_statements=rule, weight=weight) for n, (rule, weight) in _BLOCKS.items()),
    *rules_of(_STATEMENTS, is_exportable=False),
    *rules_of(_HIGHER_ORDER),
)
