"""Batches: several drawn programs joined into one, so that they share one compile. Does not import torch.

Each member stays a function (or module) of its own that the batch calls; names of arguments, storages and results are made
distinct. The verdict on `output[3]` of the batch belongs to the member that returned it. A batch is a `FuzzProgram` like any
other, so that a difference that only the batch shows can be kept, judged again and reduced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuzz.program.editing import renamed_statement
from fuzz.program.render import needed_definitions, render_function, render_statement
from fuzz.program.structure import (
    Definition,
    FuzzProgram,
    Items,
    Lines,
    OpCall,
    Ref,
    StateEntry,
    Statement,
    renamed,
    walk,
)
from oracle.program import Call
from oracle.verdict import Verdict

# Operators that use a random generator: with such a member, the whole batch could only be judged by distributions.
_RANDOM = re.compile(
    r"rand(?:n|int|perm|_like|int_like|n_like|om)?\b|dropout|rrelu|bernoulli|multinomial|fractional_max_pool|manual_seed|Generator\("
    r"|\b(?:log_)?normal_?\(|\b(?:uniform|exponential|cauchy|geometric|random)_\(|\bpoisson\("
)
_PLACE = re.compile(r"\b(?:(output|args|inputs)\[(\d+)\]|module\.member(\d+)\b)")
_MOST_SYMPTOMS = 20  # the judge's limit of symptoms: at this number, others may be missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Members, and the program that calls them all."""

    members: tuple[FuzzProgram, ...]
    program: FuzzProgram


def batch_key(program: FuzzProgram) -> str | None:
    """Programs with equal keys may share a batch. None for a program that must be judged alone.

    These are programs that draw random numbers, that are meant to raise, or whose surroundings change between two calls.
    """
    if program.expects_raise or "random" in program.families or _RANDOM.search(_text(program)):
        return None
    if any(call.before or call.kwargs or call.args is None for call in program.calls):
        return None
    # A program whose inputs need no gradients may share a batch with programs that are differentiated.
    is_differentiable = program.is_module or "requires_grad" in json.dumps([call.args for call in program.calls])
    is_differentiable = is_differentiable or "requires_grad" in _text(program)
    calls = [
        (call.grad_mode == "grad" and (call.backward or not is_differentiable), call.grad_mode, call.training)
        for call in program.calls
    ]
    return json.dumps([calls, program.is_module, program.dynamic, dict(program.config)], sort_keys=True)


def _text(program: FuzzProgram) -> str:
    """The text that runs when the program is called."""
    lines = [line for statement in (*program.derive, *program.statements) for line in render_statement(statement)]
    return "\n".join([*lines, *(definition.text for definition in needed_definitions(program))])


def grouped(programs: Sequence[FuzzProgram], keys: Sequence[str | None], size: int) -> list[list[int]]:
    """Positions of programs in groups of at most `size`; a program without a key is alone. Each position occurs once."""
    groups: list[list[int]] = []
    open_groups: dict[str, list[tuple[list[int], dict[str, str]]]] = {}
    for position, (program, key) in enumerate(zip(programs, keys, strict=True)):
        texts = {definition.name: definition.text for definition in needed_definitions(program)}
        fitting = None
        for group, taken in open_groups.get(key, []) if key is not None else []:
            if len(group) < size and all(taken.get(name, text) == text for name, text in texts.items()):
                fitting = group
                taken.update(texts)
                break
        if fitting is None:
            fitting = []
            groups.append(fitting)
            if key is not None:
                open_groups.setdefault(key, []).append((fitting, dict(texts)))
        fitting.append(position)
    return groups


def combine(members: Sequence[FuzzProgram]) -> Batch:
    """Join several programs with equal keys into one."""
    first = members[0]
    definitions: dict[str, Definition] = {}
    state: list[StateEntry] = []
    statements: list[Statement] = []
    derive: list[Statement] = []
    for number, member in enumerate(members):
        own = _member_definitions(number, member)
        definitions.update({definition.name: definition for definition in own})
        target = f"member{number}"
        if member.is_module:
            state.append(StateEntry(name=f"self.{target}", text=f"self.{target} = Member{number}()"))
            target = f"self.{target}"
        arguments = tuple(Ref(_own(number, name)) for name in member.arguments)
        statements.append(OpCall(target=target, args=arguments, results=(f"result{number}",)))
        if member.derive:
            derive.append(_derive_statement(number, member))
    has_derive = any(member.derive for member in members)
    inputs = [_own(n, name) for n, member in enumerate(members) for name in (member.inputs or member.arguments)]
    return Batch(
        members=tuple(members),
        program=FuzzProgram(
            arguments=tuple(_own(n, name) for n, member in enumerate(members) for name in member.arguments),
            inputs=tuple(inputs) if has_derive else (),
            derive=tuple(derive),
            calls=tuple(_joint_call(members, number) for number in range(len(first.calls))),
            statements=tuple(statements),
            result=Items(tuple(Ref(f"result{number}") for number in range(len(members))), "tuple"),
            definitions=tuple(definitions.values()),
            state=tuple(state) if state else None,
            config=first.config,
            dynamic=first.dynamic,
            seed=first.seed,
            families=tuple(dict.fromkeys(family for member in members for family in member.families)),
        ),
    )


def named_members(verdict: Verdict, batch: Batch) -> tuple[tuple[int, ...], bool]:
    """The members that a verdict's symptoms name, and whether the list is complete."""
    arguments = [n for n, member in enumerate(batch.members) for _ in member.arguments]
    inputs = [n for n, member in enumerate(batch.members) for _ in (member.inputs or member.arguments)]
    owners = {"output": list(range(len(batch.members))), "args": arguments, "inputs": inputs}
    found: set[int] = set()
    is_complete = len(verdict.also) < _MOST_SYMPTOMS
    for text in (verdict.symptom, *verdict.also):
        mentioned = set()
        for kind, position, module in _PLACE.findall(text):
            if module:
                mentioned.add(int(module))
            elif int(position) < len(owners[kind]):
                mentioned.add(owners[kind][int(position)])
        found |= mentioned
        is_complete = is_complete and bool(mentioned)
    return tuple(sorted(found)), is_complete


def inlined(batch: Batch) -> FuzzProgram | None:
    """The batch with its members' statements in place of calls, for the reducer; None if that would change its meaning.

    For functions only. A `return` in a member's text would skip the other members.
    """
    if any(member.is_module or member.derive for member in batch.members):
        return None
    statements: list[Statement] = []
    results = []
    for number, member in enumerate(batch.members):
        names = {name: _own(number, name) for name in (*member.arguments, *_bound(member.statements))}
        try:
            statements += [_inlinable(renamed_statement(statement, names)) for statement in member.statements]
        except _NotInlinableError:
            return None
        results.append(renamed(member.result, names))
    definitions = {d.name: d for member in batch.members for d in needed_definitions(member)}
    return replace(
        batch.program,
        statements=tuple(statements),
        result=Items(tuple(results), "tuple"),
        definitions=tuple(definitions.values()),
    )


class _NotInlinableError(Exception):
    """A statement that would mean something else outside of its function."""


def _own(number: int, name: str) -> str:
    return f"m{number}_{name}"


def _member_definitions(number: int, member: FuzzProgram) -> list[Definition]:
    found = [*needed_definitions(member)]
    needs = tuple(definition.name for definition in found)
    text = render_function(member)
    if member.is_module:
        text = text.partition("\n\n\ndef program():")[0].replace("class Model(", f"class Member{number}(", 1)
        found.append(Definition(name=f"Member{number}", text=text, needs=needs))
    else:
        text = text.replace("def program(", f"def member{number}(", 1)
        found.append(Definition(name=f"member{number}", text=text, needs=needs))
    if member.derive:
        lines = [line for statement in member.derive for line in render_statement(statement)]
        body = "\n".join(f"    {line}" for line in [*lines, f"return [{', '.join(member.arguments)}]"])
        header = f"def derive{number}({', '.join(member.inputs)}):"
        found.append(Definition(name=f"derive{number}", text=f"{header}\n{body}\n", needs=needs))
    return found


def _derive_statement(number: int, member: FuzzProgram) -> Lines:
    inputs = [_own(number, name) for name in member.inputs]
    results = [_own(number, name) for name in member.arguments]
    braced = ", ".join(f"{{{name}}}" for name in results)
    return Lines(
        text=f"[{braced}] = derive{number}({', '.join(f'{{{name}}}' for name in inputs)})",
        uses=tuple(inputs),
        results=tuple(results),
        definitions=(f"derive{number}",),
    )


def _joint_call(members: Sequence[FuzzProgram], number: int) -> Call:
    args = [
        _own_storages(spec, position) for position, member in enumerate(members) for spec in member.calls[number].args
    ]
    backward = any(member.calls[number].backward for member in members)
    return replace(members[0].calls[number], args=args, backward=backward)


def _own_storages(spec: Any, number: int) -> Any:
    """A spec with names of storages and objects that are unique to the member."""
    if isinstance(spec, Mapping):
        own = {key: _own_storages(value, number) for key, value in spec.items()}
        if "$" in own:
            own.update({key: f"m{number}.{own[key]}" for key in ("storage", "id") if key in own})
        return own
    return [_own_storages(item, number) for item in spec] if isinstance(spec, list) else spec


def _bound(statements: Sequence[Statement]) -> list[str]:
    return [name for statement in statements for name in statement.results]


def _inlinable(statement: Statement) -> Statement:
    for inner in walk((statement,)):
        if isinstance(inner, Lines) and re.search(r"\b(?:return|yield|global|nonlocal)\b", inner.text):
            raise _NotInlinableError
    return statement
