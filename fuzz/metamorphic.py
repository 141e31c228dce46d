"""Metamorphic relations: programs that must do the same as another one, whatever that is.

A relation changes a program in a way that changes no value. Eager is asked first whether that is so; then the subject has to
agree with itself on both. What it gets wrong in both alike shows against eager only, what eager cannot judge (a random number,
a result that rounding moves) may show here: an optional second question, beside the judge's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fuzz.opspec import OPERATORS
from fuzz.reduce.editing import fresh_name, used_names
from fuzz.reduce.lines import inlined
from fuzz.render import render_operand, render_statement, to_program
from fuzz.structure import Definition, Expr, FuzzProgram, Items, OpCall, Ref, Statement
from oracle.build import instantiate
from oracle.case import EagerState
from oracle.hygiene import restore, snapshot
from oracle.inputs import clone_tree
from oracle.judge import judge
from oracle.observe import observe
from oracle.outcome import Outcome, Returned
from oracle.program import ComparePolicy
from oracle.subjects.base import CompileRequest, Subject
from oracle.verdict import Status, Verdict

# Two programs of one meaning owe each other values; a copy more or less moves strides and aliases.
_POLICY = ComparePolicy(strides="ignore", aliases=False, reason="another program of the same meaning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """A program, and where its outputs stand in the original: by path, those of the original where nothing is said."""

    program: FuzzProgram
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """`relate` returns None for programs it has nothing to do in."""

    name: str
    relate: Callable[[FuzzProgram], Related | None]


# -------------------------------------------------------------------------------------------------------------- relations


def _same_again(program: FuzzProgram) -> Related:
    return Related(program=program)


def _outputs_reversed(program: FuzzProgram) -> Related | None:
    if not isinstance(program.result, Items) or len(program.result.items) < 2:
        return None
    count = len(program.result.items)
    reversed_ = replace(program.result, items=tuple(reversed(program.result.items)))
    outputs = {f"output[{i}]": f"output[{count - 1 - i}]" for i in range(count)}
    return Related(program=replace(program, result=reversed_), outputs=outputs)


def _dead_code_added(program: FuzzProgram) -> Related | None:
    """A statement that nobody reads, after every other one."""
    statements: list[Statement] = []
    for number, statement in enumerate(program.statements):
        statements.append(statement)
        if isinstance(statement, OpCall) and len(statement.results) == 1:
            dead = OpCall(target=".isnan", args=(Ref(statement.results[0]),), results=(f"dead{number}",))
            statements.append(dead)
    return _unless_same(program, statements)


def _copies_inserted(program: FuzzProgram) -> Related | None:
    """Every result of an operator that makes new memory goes through a copy."""
    statements: list[Statement] = []
    for statement in program.statements:
        statements.append(statement)
        if isinstance(statement, OpCall) and len(statement.results) == 1 and _is_pointwise(statement):
            name = statement.results[0]
            statements.append(OpCall(target=".clone", args=(Ref(name),), results=(name,)))
    return _unless_same(program, statements)


def _outlined(program: FuzzProgram) -> Related | None:
    """The body in a helper function."""
    if program.is_module or not program.statements:
        return None
    helper = _helper(program)
    name = fresh_name(program, "r")
    call = OpCall(target=helper.name, args=tuple(Ref(a) for a in program.arguments), results=(name,))
    changed = replace(program, definitions=(*program.definitions, helper), statements=(call,), result=Ref(name))
    return Related(program=changed)


def _inlined(program: FuzzProgram) -> Related | None:
    changed = inlined(program)
    return None if changed is None else Related(program=changed)


def _batch_split(program: FuzzProgram) -> Related | None:
    """Two halves, one after the other, of a program of pointwise operators on tensors of one shape."""
    if program.is_module or program.derive or len(program.calls) != 1 or not isinstance(program.result, Ref):
        return None
    specs = [spec for spec in program.calls[0].args or [] if isinstance(spec, dict)]
    shapes = {tuple(spec.get("shape", ())) for spec in specs}
    if len(specs) != len(program.arguments) or len(shapes) != 1 or program.calls[0].backward:
        return None
    (shape,) = shapes
    if not shape or shape[0] < 2 or not all(_is_pointwise(statement) for statement in program.statements):
        return None
    helper = _helper(program)
    parts: list[Statement] = []
    for half, text in enumerate((f":{shape[0] // 2}", f"{shape[0] // 2}:")):
        names = [f"half{half}_{argument}" for argument in program.arguments]
        parts += [
            OpCall(target="getitem", args=(Ref(argument), Expr(text)), results=(name,))
            for argument, name in zip(program.arguments, names, strict=True)
        ]
        parts.append(OpCall(target=helper.name, args=tuple(map(Ref, names)), results=(f"half{half}",)))
    whole = OpCall(target="torch.cat", args=(Items((Ref("half0"), Ref("half1"))),), results=("whole",))
    changed = replace(
        program, definitions=(*program.definitions, helper), statements=(*parts, whole), result=Ref("whole")
    )
    return Related(program=changed)


RELATIONS: tuple[Relation, ...] = (
    Relation(name="compile twice", relate=_same_again),
    Relation(name="outputs reversed", relate=_outputs_reversed),
    Relation(name="dead code added", relate=_dead_code_added),
    Relation(name="copies inserted", relate=_copies_inserted),
    Relation(name="function outlined", relate=_outlined),
    Relation(name="function inlined", relate=_inlined),
    Relation(name="batch split", relate=_batch_split),
)


def _unless_same(program: FuzzProgram, statements: list[Statement]) -> Related | None:
    if len(statements) == len(program.statements):
        return None
    return Related(program=replace(program, statements=tuple(statements)))


def _helper(program: FuzzProgram) -> Definition:
    lines = [line for statement in program.statements for line in render_statement(statement)]
    body = "\n".join(f"    {line}" for line in [*lines, f"return {render_operand(program.result)}"])
    needs = tuple(d.name for d in program.definitions if d.name in body or d.name in used_names(program))
    return Definition(name="outlined", text=f"def outlined({', '.join(program.arguments)}):\n{body}", needs=needs)


def _is_pointwise(statement: Statement) -> bool:
    if not isinstance(statement, OpCall):
        return False
    spec = OPERATORS.get(statement.target)
    return spec is not None and spec.category == "pointwise" and not spec.writes and not spec.is_random


# -------------------------------------------------------------------------------------------------------------- judging


def judge_relations(
    program: FuzzProgram, subject: Subject, *, relations: tuple[Relation, ...] = RELATIONS
) -> dict[str, Verdict]:
    """The verdict on every relation that applies: the subject on the related program beside the subject on the original.

    A relation does not apply where eager itself is not the same on both, and none does where the subject refuses the original.
    """
    before = snapshot()
    original = to_program(program, name="original")
    eager = EagerState(make=lambda: instantiate(original))
    eager.run(lambda stage: None, before)
    expected = _observed(program, subject)
    if not isinstance(eager.first, Returned) or not isinstance(expected, Returned) or eager.is_random:
        return {}
    found = {}
    for relation in relations:
        related = relation.relate(program)
        if related is None:
            continue

        def compared(mine: Outcome, theirs: Outcome) -> Verdict:
            return judge(
                eager=mine,
                eager_again=mine,
                subject=theirs,
                truth=lambda: eager.ground_truth(lambda stage: None, before),
                noise=lambda: eager.noise_runs(lambda stage: None, before),
                loud_noise=lambda: eager.loud_noise_runs(lambda stage: None, before),
                policy=_POLICY,
            )

        in_eager = compared(eager.first, _restored(_observed(related.program, None), related, eager.first))
        if in_eager.status is not Status.PASS:
            continue
        seen = _restored(_observed(related.program, subject), related, expected)
        verdict = compared(expected, seen)
        if verdict.status is Status.PASS and isinstance(seen, Returned):
            verdict = compared(
                seen, expected
            )  # the judge forgives what is nearer to fp64: here either may be the worse one
        found[relation.name] = verdict
        restore(before)
    return found


def _observed(program: FuzzProgram, subject: Subject | None) -> Outcome:
    """What a subject does; eager for None."""
    instance = instantiate(to_program(program, name="related"))
    if subject is None:
        return observe(instance)
    subject.reset()

    def compile_target(target: Callable[..., Any]) -> Callable[..., Any]:
        args, kwargs, _ = instance.arguments(*clone_tree(instance.inputs(0)))
        backward = any(call.backward for call in program.calls)
        request = CompileRequest(target=target, args=args, kwargs=kwargs, dynamic=program.dynamic, backward=backward)
        return subject.compile(request)

    return observe(instance, compile_target=compile_target)


def _restored(outcome: Outcome, related: Related, like: Returned) -> Outcome:
    """The outcome with the outputs where the original has them."""
    if not isinstance(outcome, Returned) or not related.outputs or len(outcome.calls) != len(like.calls):
        return outcome
    calls = []
    for call, original in zip(outcome.calls, like.calls, strict=True):
        outputs = tuple(replace(leaf, path=_moved(leaf.path, related.outputs)) for leaf in call.outputs)
        calls.append(replace(call, outputs=outputs, structure=original.structure))
    return Returned(calls=tuple(calls))


def _moved(path: str, outputs: Mapping[str, str]) -> str:
    for old, new in outputs.items():
        if path == old or path.startswith((f"{old}[", f"{old}.")):
            return new + path[len(old) :]
    return path
