"""The structured program, which the grammar draws, the corpus keeps and the reducer takes apart. Torch-free; JSON round trip.

A `FuzzProgram` is rendered as the source of an `oracle.program.Program` (`fuzz.program.render`). Values have names: arguments
`a0`, results `v0`, state of a module `self.w0`. A statement says what it reads (`uses`) and what it binds (`results`), so that
statements can be left out, exchanged and sliced without parsing source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from typing_extensions import assert_never

from oracle.errors import UsageError
from oracle.program import Call, ComparePolicy

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Ref:
    """A value by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Expr:
    """Python text that reads no value: `torch.float32`, `slice(None, None, 2)`, `...`."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list or tuple of operands."""

    items: tuple[Operand, ...]
    kind: str = "list"  # "list" | "tuple"


@dataclass(frozen=True, slots=True)
class Entries:
    """A dict of operands with text keys."""

    entries: tuple[tuple[str, Operand], ...]


Operand: TypeAlias = Ref | Expr | Items | Entries | bool | int | float | complex | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One operation. `target` is a dotted function ("torch.add"), a method (".add_", of the first argument), a Python operator
    ("operator.add", rendered infix), "getitem" (x, index), "setitem" (x, index, value), "getattr" (x, name), "setattr"
    (x, name, value) or "call" (f, *args) of a value that is a function."""

    target: str
    args: tuple[Operand, ...] = ()
    kwargs: tuple[tuple[str, Operand], ...] = ()
    results: tuple[str, ...] = ()  # two and more: unpacked; none: called for its effect

    @property
    def uses(self) -> tuple[str, ...]:
        found = [name for arg in self.args for name in names_in(arg)]
        found += [name for _, arg in self.kwargs for name in names_in(arg)]
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Python statements as text that belong together. Names of values are in braces, `{v0}`."""

    text: str
    uses: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()  # names of the definitions it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A compound statement: `header` ends with a colon ("with torch.no_grad():", "if {v0}.sum() > 0:"), names in braces."""

    header: str
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()
    orelse_header: str = "else:"  # or "finally:", "except RuntimeError:"
    uses: tuple[str, ...] = ()  # of the header
    definitions: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for statement in (*self.body, *self.orelse) for name in statement.results))


Statement: TypeAlias = OpCall | Lines | Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Something at module level: a helper function, a class, a global."""

    name: str
    text: str
    needs: tuple[str, ...] = ()  # other definitions


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    """A line of the module's `__init__`: `self.w0 = torch.nn.Parameter(torch.randn(3))`."""

    name: str  # "self.w0"; what the line binds
    text: str
    needs: tuple[str, ...] = ()  # other entries (tied weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzProgram:
    """A drawn program with its call plan."""

    arguments: tuple[str, ...]  # of the function, in order
    inputs: tuple[
        str, ...
    ] = ()  # inputs in the calls' args, if `derive` makes the arguments from them; else the same as `arguments`
    derive: tuple[Statement, ...] = ()
    calls: tuple[Call, ...] = (Call(),)
    statements: tuple[Statement, ...] = ()
    result: Operand = None
    definitions: tuple[Definition, ...] = ()
    state: tuple[StateEntry, ...] | None = None  # of a module; None: a function
    config: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    expects_raise: bool = False  # eager raises on the last call, and so should the subject
    policy: ComparePolicy = ComparePolicy()
    seed: int = 0
    families: tuple[str, ...] = ()  # families of the grammar's rules that took part, for buckets and coverage

    @property
    def is_module(self) -> bool:
        return self.state is not None

    def to_json(self) -> dict[str, Any]:
        """JSON that `from_json` reads back."""
        return {
            "format": FORMAT_VERSION,
            "arguments": list(self.arguments),
            "inputs": list(self.inputs),
            "derive": [_statement_json(s) for s in self.derive],
            "calls": [asdict(call) for call in self.calls],
            "statements": [_statement_json(s) for s in self.statements],
            "result": operand_json(self.result),
            "definitions": [asdict(d) for d in self.definitions],
            "state": None if self.state is None else [asdict(entry) for entry in self.state],
            "config": dict(self.config),
            "dynamic": self.dynamic,
            "expects_raise": self.expects_raise,
            "seed": self.seed,
            "families": list(self.families),
            **({"policy": policy} if (policy := self.policy.to_json()) else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FuzzProgram:
        """Raises UsageError for another format or missing fields; nothing in it is evaluated."""
        version = data.get("format") if isinstance(data, Mapping) else None
        if version != FORMAT_VERSION:
            raise UsageError(
                seen=f"a structured program of format {version!r}",
                expected=f"format {FORMAT_VERSION}",
                do="use the torch-oracle version that wrote it, or start a new corpus",
            )
        try:
            state = data["state"]
            return cls(
                arguments=tuple(data["arguments"]),
                inputs=tuple(data["inputs"]),
                derive=tuple(_statement_of(s) for s in data["derive"]),
                calls=tuple(Call(**call) for call in data["calls"]),
                statements=tuple(_statement_of(s) for s in data["statements"]),
                result=operand_of(data["result"]),
                definitions=tuple(Definition(**{**d, "needs": tuple(d["needs"])}) for d in data["definitions"]),
                state=None if state is None else tuple(StateEntry(**{**e, "needs": tuple(e["needs"])}) for e in state),
                config=dict(data["config"]),
                dynamic=data["dynamic"],
                expects_raise=data["expects_raise"],
                seed=data["seed"],
                families=tuple(data["families"]),
                policy=ComparePolicy.from_json(data.get("policy", {})),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                seen=f"a damaged structured program: {type(error).__name__}: {error}",
                expected="the fields of fuzz.program.structure.FuzzProgram",
                do="delete the file, or restore it",
            ) from error


def names_in(operand: Operand) -> Iterator[str]:
    """The values an operand reads, in order."""
    if isinstance(operand, Ref):
        yield operand.name
    elif isinstance(operand, Items):
        for item in operand.items:
            yield from names_in(item)
    elif isinstance(operand, Entries):
        for _, item in operand.entries:
            yield from names_in(item)


def renamed(operand: Operand, names: Mapping[str, str]) -> Operand:
    """The operand with renamed values."""
    match operand:
        case Ref(name=name):
            return Ref(names.get(name, name))
        case Items():
            return replace(operand, items=tuple(renamed(item, names) for item in operand.items))
        case Entries():
            return Entries(tuple((key, renamed(item, names)) for key, item in operand.entries))
        case _:
            return operand


def walk(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement, a block before its body."""
    for statement in statements:
        yield statement
        if isinstance(statement, Block):
            yield from walk(statement.body)
            yield from walk(statement.orelse)


def operand_json(operand: Operand) -> Any:
    """JSON of an operand; floats that JSON lacks (NaN, infinities) as text."""
    match operand:
        case Ref(name=name):
            return {"ref": name}
        case Expr(text=text):
            return {"expr": text}
        case Items(items=items, kind=kind):
            return {kind: [operand_json(item) for item in items]}
        case Entries(entries=entries):
            return {"dict": [[key, operand_json(item)] for key, item in entries]}
        case complex():
            return {"complex": [operand_json(operand.real), operand_json(operand.imag)]}
        case float() if not math.isfinite(operand):
            return {"float": str(operand)}
        case _:
            return operand


def operand_of(data: Any) -> Operand:
    """The operand from its JSON. Raises ValueError if it is none."""
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError(f"operand {data!r}")
    ((kind, value),) = data.items()
    match kind:
        case "ref":
            return Ref(str(value))
        case "expr":
            return Expr(str(value))
        case "list" | "tuple":
            return Items(tuple(operand_of(item) for item in value), kind)
        case "dict":
            return Entries(tuple((str(key), operand_of(item)) for key, item in value))
        case "complex":
            return complex(*(float(operand_of(part)) for part in value))  # type: ignore[arg-type]
        case "float":
            return float(value)
        case _:
            raise ValueError(f"operand of kind {kind!r}")


def _statement_json(statement: Statement) -> dict[str, Any]:
    match statement:
        case OpCall():
            data: dict[str, Any] = {"op": statement.target, "args": [operand_json(arg) for arg in statement.args]}
            data["kwargs"] = [[name, operand_json(arg)] for name, arg in statement.kwargs]
            return {**data, "results": list(statement.results)}
        case Lines():
            return {
                "lines": statement.text,
                "uses": list(statement.uses),
                "results": list(statement.results),
                "definitions": list(statement.definitions),
            }
        case Block():
            return {
                "block": statement.header,
                "body": [_statement_json(s) for s in statement.body],
                "orelse": [_statement_json(s) for s in statement.orelse],
                "orelse_header": statement.orelse_header,
                "uses": list(statement.uses),
                "definitions": list(statement.definitions),
            }
    assert_never(statement)


def _statement_of(data: Mapping[str, Any]) -> Statement:
    if "op" in data:
        return OpCall(
            target=data["op"],
            args=tuple(operand_of(arg) for arg in data["args"]),
            kwargs=tuple((name, operand_of(arg)) for name, arg in data["kwargs"]),
            results=tuple(data["results"]),
        )
    if "lines" in data:
        return Lines(
            text=data["lines"],
            uses=tuple(data["uses"]),
            results=tuple(data["results"]),
            definitions=tuple(data["definitions"]),
        )
    return Block(
        header=data["block"],
        body=tuple(_statement_of(s) for s in data["body"]),
        orelse=tuple(_statement_of(s) for s in data["orelse"]),
        orelse_header=data["orelse_header"],
        uses=tuple(data["uses"]),
        definitions=tuple(data["definitions"]),
    )
