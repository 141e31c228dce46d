"""Metamorphic relations: programs, and ways to run them, that must do the same as another program.

A relation changes a program in a way that changes no value, or has the subject do the same once more by another road. How the
two are compared stands in `fuzz.relation_judging`; which relation a campaign asks of which program, in `drawn_relations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from fuzz.opspec import OPERATORS
from fuzz.reduce.editing import fresh_name, used_names
from fuzz.reduce.lines import inlined
from fuzz.render import render_operand, render_statement
from fuzz.structure import Definition, Expr, FuzzProgram, Items, OpCall, Operand, Ref, Statement
from oracle.errors import UsageError
from oracle.subjects.spec import SubjectSpec


class Road(Enum):
    """How the subject comes to the related program."""

    HERE = "here"
    FRESH_PROCESS = "fresh process"  # in an interpreter of its own, with the same caches on disk
    REFIMPL = "refimpl"  # each graph that refimpl's AOT makes of it is given to the subject


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
    road: Road = Road.HERE

    def is_for(self, subject: SubjectSpec) -> bool:
        """Whether the road is one for this subject: torch.compile takes graphs; who may keep things on disk is asked for that."""
        match self.road:
            case Road.HERE:
                return True
            case Road.FRESH_PROCESS:
                is_inductor = subject.kind == "torch_compile" and subject.options.get("backend") == "inductor"
                return is_inductor or subject.kind in ("backend", "compiler")
            case Road.REFIMPL:
                return subject.kind in ("torch_compile", "backend")


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


_PERMUTED = Definition(
    name="permuted",
    text="""def permuted(x):
    if not isinstance(x, torch.Tensor) or x.dim() < 2:
        return x
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)""",
)


def _outputs_permuted(program: FuzzProgram) -> Related | None:
    """Every output through a copy with its dimensions in the opposite order."""
    operands = program.result.items if isinstance(program.result, Items) else (program.result,)
    if not any(isinstance(operand, Ref) for operand in operands) or _PERMUTED.name in used_names(program):
        return None
    statements: list[Statement] = [*program.statements]
    found: list[Operand] = []
    taken = program
    for operand in operands:
        if isinstance(operand, Ref):
            name = fresh_name(taken, "permuted_")
            statements.append(OpCall(target=_PERMUTED.name, args=(operand,), results=(name,)))
            taken, operand = replace(taken, statements=tuple(statements)), Ref(name)
        found.append(operand)
    result = replace(program.result, items=tuple(found)) if isinstance(program.result, Items) else found[0]
    definitions = (*program.definitions, _PERMUTED)
    return Related(program=replace(taken, result=result, definitions=definitions))


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
    Relation(name="outputs permuted", relate=_outputs_permuted),
    Relation(name="dead code added", relate=_dead_code_added),
    Relation(name="copies inserted", relate=_copies_inserted),
    Relation(name="function outlined", relate=_outlined),
    Relation(name="function inlined", relate=_inlined),
    Relation(name="batch split", relate=_batch_split),
    Relation(name="fresh process", relate=_same_again, road=Road.FRESH_PROCESS),
    Relation(name="through refimpl", relate=_same_again, road=Road.REFIMPL),
)


def relation_named(name: str) -> Relation:
    """Raises UsageError for a name that is none."""
    for relation in RELATIONS:
        if relation.name == name:
            return relation
    names = ", ".join(relation.name for relation in RELATIONS)
    raise UsageError(
        seen=f"relation {name!r}", expected=f"one of {names}", do="use the torch-oracle version that wrote it"
    )


def drawn_relations(turn: int, subject: SubjectSpec) -> tuple[Relation, ...]:
    """The relations in the order in which a program is asked them, until one applies: another first one each turn."""
    possible = [relation for relation in RELATIONS if relation.is_for(subject)]
    first = turn % len(possible)
    return (*possible[first:], *possible[:first])


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
