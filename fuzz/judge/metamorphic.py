"""Metamorphic relations: pairs of programs, or two ways to run one, that must give the same results.

A relation changes a program without changing its values, or runs the same program on the subject in another way.
`fuzz.judge.relation` compares the two; `drawn_relations` chooses the relations that a campaign tries on a program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from fuzz.program.editing import fresh_name, used_names
from fuzz.program.inlining import inlined
from fuzz.program.render import render_operand, render_statement
from fuzz.program.structure import Definition, Expr, FuzzProgram, Items, Lines, OpCall, Operand, Ref, Statement
from fuzz.vocabulary.operators import OPERATORS
from oracle.errors import UsageError
from oracle.subjects.spec import SubjectSpec


class Road(Enum):
    """How the subject runs the related program."""

    HERE = "here"
    FRESH_PROCESS = "fresh process"  # in a new interpreter, with the same caches on disk
    REFIMPL = "refimpl"  # the subject compiles each graph that refimpl's AOT autograd makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """A related program, and the paths of its outputs in the original, if they differ."""

    program: FuzzProgram
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One relation. `relate` returns None for programs to which it does not apply."""

    name: str
    relate: Callable[[FuzzProgram], Related | None]
    road: Road = Road.HERE
    is_rare: bool = False  # it applies to few programs, so every second turn tries it first

    def is_for(self, subject: SubjectSpec) -> bool:
        """Whether the relation applies to this subject: it must take graphs, or may have caches on disk."""
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
    """Copy every output with its dimensions in the opposite order."""
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
    """Add a statement with an unused result after every statement."""
    statements: list[Statement] = []
    for number, statement in enumerate(program.statements):
        statements.append(statement)
        if isinstance(statement, OpCall) and len(statement.results) == 1:
            dead = OpCall(target=".isnan", args=(Ref(statement.results[0]),), results=(f"dead{number}",))
            statements.append(dead)
    return _unless_same(program, statements)


def _copies_inserted(program: FuzzProgram) -> Related | None:
    """Copy the result of every operator that allocates its result."""
    statements: list[Statement] = []
    for statement in program.statements:
        statements.append(statement)
        if isinstance(statement, OpCall) and len(statement.results) == 1 and _is_of(statement, _POINTWISE):
            name = statement.results[0]
            statements.append(OpCall(target=".clone", args=(Ref(name),), results=(name,)))
    return _unless_same(program, statements)


def _outlined(program: FuzzProgram) -> Related | None:
    """Move the body into a helper function."""
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
    """Run the program on two halves of the rows, if its operators may work row by row; eager decides whether they do."""
    statements = program.statements
    if program.is_module or program.derive or not all(_is_of(statement, _ROW_BY_ROW) for statement in statements):
        return None
    split = _arguments_with_rows(program)
    operands = program.result.items if isinstance(program.result, Items) else (program.result,)
    if not split or not statements or not all(isinstance(operand, Ref) for operand in operands):
        return None
    helper = _helper(program)
    parts: list[Statement] = []
    for half, rows in enumerate((":{0}.shape[0] // 2", "{0}.shape[0] // 2:")):
        names = {name: f"half{half}_{name}" if name in split else name for name in program.arguments}
        parts += [
            OpCall(target="getitem", args=(Ref(argument), Expr(rows.format(argument))), results=(names[argument],))
            for argument in split
        ]
        parts.append(OpCall(target=helper.name, args=tuple(map(Ref, names.values())), results=(f"half{half}",)))
    if not isinstance(program.result, Items):
        whole = OpCall(target="torch.cat", args=(Items((Ref("half0"), Ref("half1"))),), results=("whole",))
        statements, result = (*parts, whole), Ref("whole")
    else:
        joined = ", ".join(f"torch.cat([half0[{i}], half1[{i}]])" for i in range(len(operands)))
        text = f"whole = {program.result.kind}([{joined}])"
        statements = (*parts, Lines(text=text, uses=("half0", "half1"), results=("whole",)))
        result = Ref("whole")
    definitions = (*program.definitions, helper)
    return Related(program=replace(program, definitions=definitions, statements=statements, result=result))


def _arguments_with_rows(program: FuzzProgram) -> tuple[str, ...]:
    """Arguments whose first dimension is the batch in every call: tensors of the highest rank, with one common size above 1."""
    found: set[str] | None = None
    for call in program.calls:
        specs = dict(zip(program.arguments, call.args or [], strict=False))
        shapes = {name: spec["shape"] for name, spec in specs.items() if isinstance(spec, dict) and "shape" in spec}
        rank = max(map(len, shapes.values()), default=0)
        sizes = {shape[0] for shape in shapes.values() if len(shape) == rank and rank and shape[0] != 1}
        if len(sizes) != 1 or sizes == {0}:
            return ()
        own = {name for name, shape in shapes.items() if len(shape) == rank and shape[0] != 1}
        found = own if found is None or found == own else set()
    return tuple(name for name in program.arguments if name in (found or ()))


RELATIONS: tuple[Relation, ...] = (
    Relation(name="compile twice", relate=_same_again),
    Relation(name="outputs reversed", relate=_outputs_reversed),
    Relation(name="outputs permuted", relate=_outputs_permuted),
    Relation(name="dead code added", relate=_dead_code_added),
    Relation(name="copies inserted", relate=_copies_inserted),
    Relation(name="function outlined", relate=_outlined),
    Relation(name="function inlined", relate=_inlined, is_rare=True),
    Relation(name="batch split", relate=_batch_split, is_rare=True),
    Relation(name="fresh process", relate=_same_again, road=Road.FRESH_PROCESS),
    Relation(name="through refimpl", relate=_same_again, road=Road.REFIMPL),
)


def relation_named(name: str) -> Relation:
    """Raises UsageError for an unknown name."""
    for relation in RELATIONS:
        if relation.name == name:
            return relation
    names = ", ".join(relation.name for relation in RELATIONS)
    raise UsageError(
        seen=f"relation {name!r}", expected=f"one of {names}", do="use the torch-oracle version that wrote it"
    )


def drawn_relations(turn: int, subject: SubjectSpec) -> tuple[Relation, ...]:
    """The relations in the order in which they are tried until one applies. Each turn begins with another one."""
    possible = [relation for relation in RELATIONS if relation.is_for(subject)]
    first = turn // 2 % len(possible)
    ordered = (*possible[first:], *possible[:first])
    return tuple(sorted(ordered, key=lambda relation: not relation.is_rare)) if turn % 2 else ordered


def _unless_same(program: FuzzProgram, statements: list[Statement]) -> Related | None:
    if len(statements) == len(program.statements):
        return None
    return Related(program=replace(program, statements=tuple(statements)))


def _helper(program: FuzzProgram) -> Definition:
    lines = [line for statement in program.statements for line in render_statement(statement)]
    body = "\n".join(f"    {line}" for line in [*lines, f"return {render_operand(program.result)}"])
    needs = tuple(d.name for d in program.definitions if d.name in body or d.name in used_names(program))
    return Definition(name="outlined", text=f"def outlined({', '.join(program.arguments)}):\n{body}", needs=needs)


def _targets(*categories: str) -> frozenset[str]:
    """The targets that calls of these operators can have."""
    specs = {name: spec for name, spec in OPERATORS.items() if spec.category in categories}
    return frozenset(name.partition("(")[0] for name, s in specs.items() if not s.writes and not s.is_random)


_POINTWISE = _targets("pointwise")
_ROW_BY_ROW = _targets("pointwise", "special", "comparison", "activation", "cast", "operator", "complex")


def _is_of(statement: Statement, targets: frozenset[str]) -> bool:
    """Whether a statement is a call of one of these operators without a write."""
    if not isinstance(statement, OpCall) or statement.target not in targets:
        return False
    return all(name not in ("out", "inplace") for name, _ in statement.kwargs)
