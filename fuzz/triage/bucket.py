"""Buckets: findings that are counted as one bug, by their reduced programs. Does not import torch.

A bucket is identified by the first wrong rung, the symptom, the operators of the reduced program, and the culprit if it is known
(`oracle.localisation.culprit`). Names, sizes, values, the order of arguments and the spelling of an operator (`a // b`,
`torch.floor_divide(a, b)`, `a.floor_divide_(b)`) make no difference.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fuzz.program.structure import Block, FuzzProgram, Lines, OpCall, Ref, Statement, walk
from oracle.symptom import Symptom
from oracle.verdict import Status

# Spellings of one operator. Other operators keep their name, without module and without the underscore of in-place variants.
_ALIASES: Mapping[str, str] = {
    "truediv": "div", "true_divide": "div", "divide": "div", "floordiv": "floor_divide", "mod": "remainder",
    "multiply": "mul", "subtract": "sub", "negative": "neg", "absolute": "abs", "clip": "clamp", "invert": "bitwise_not",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "not_equal": "ne", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose", "swapdims": "transpose",
    "t": "transpose", "moveaxis": "movedim", "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arctan2": "atan2",
    "arccosh": "acosh", "arcsinh": "asinh", "arctanh": "atanh", "fix": "trunc", "ger": "outer", "row_stack": "vstack",
    "inverse": "inv", "special_expit": "sigmoid", "expit": "sigmoid",
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ifloordiv": "floor_divide", "imod": "remainder",
    "ipow": "pow", "iand": "bitwise_and", "ior": "bitwise_or", "ixor": "bitwise_xor", "imatmul": "matmul",
    "__getitem__": "getitem", "__setitem__": "setitem", "contiguous": "clone",
}  # fmt: skip
_CALLED = re.compile(r"(?:\btorch(?:\.\w+)+|\.\w+)(?=\()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Findings that count as one bug."""

    key: str
    subject: str  # the subject on which it was found
    rung: str  # the first wrong rung
    status: str
    kind: str
    operators: tuple[str, ...]
    culprit: str = ""  # "pass: ...", "lowering: ...", "decomposition: ...": the symptom goes away without it
    program: Mapping[str, Any]  # reduced, as JSON
    source: str
    count: int = 1
    first_seed: str = ""  # of the first program in it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bucket:
        return cls(**{**data, "operators": tuple(data["operators"])})

    def merged(self, other: Bucket) -> Bucket:
        """Merge two buckets; keeps the shorter program."""
        best = min(self, other, key=lambda bucket: (len(bucket.source), bucket.source))
        return replace(best, count=self.count + other.count, first_seed=self.first_seed or other.first_seed)


def bucket_of(reduced: Mapping[str, Any], *, subject: str, seed: str = "") -> Bucket:
    """The bucket of one finding, from what `fuzz.reduce.task:reduce_finding` returns."""
    program, symptom = FuzzProgram.from_json(reduced["program"]), Symptom.from_json(reduced["symptom"])
    culprit = str(reduced.get("culprit", ""))
    return Bucket(
        key=bucket_key(program, symptom, reduced["rung"], subject, culprit),
        subject=subject,
        rung=reduced["rung"],
        status=symptom.status,
        kind=symptom.kind,
        operators=operators_of(program),
        culprit=culprit,
        program=reduced["program"],
        source=reduced["source"],
        first_seed=seed,
    )


def bucket_key(reduced: FuzzProgram, symptom: Symptom, rung: str, subject: str, culprit: str = "") -> str:
    """A short name, the same in every campaign. It has the rung and not the subject, since subjects share rungs."""
    # a lowering or decomposition names its operator; other operators in the program only compute its inputs
    operators = [] if culprit.startswith(("lowering: ", "decomposition: ")) else list(operators_of(reduced))
    status, kind = symptom.status, symptom.kind
    if (
        status == Status.FAIL_ACCURACY.value
        and isinstance(reduced.result, Ref)
        and reduced.result.name in reduced.arguments
    ):
        # a wrong argument counts the same, whether it was also returned or not
        status, kind = Status.FAIL_MUTATION.value, kind.replace("output", "argument", 1)
    text = json.dumps([rung or subject, status, kind, culprit, operators])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def operators_of(program: FuzzProgram) -> tuple[str, ...]:
    """The operators of a program, sorted, each once in a common spelling, including those in text and helpers."""
    found: set[str] = set()
    for statement in walk((*program.derive, *program.statements)):
        found.update(_operators_in(statement, program))
    return tuple(sorted(found))


def _operators_in(statement: Statement, program: FuzzProgram) -> set[str]:
    helpers = {definition.name: definition.text for definition in program.definitions}
    match statement:
        case OpCall(target=target) if target in helpers:
            return operators_in_text(helpers[target])
        case OpCall(target=target):
            return {spelled(target)}
        case Lines():
            return operators_in_text(statement.text).union(
                *(operators_in_text(helpers.get(name, "")) for name in statement.definitions)
            )
        case Block():
            return {_header_word(statement.header), *operators_in_text(statement.header)} - {""}


def operators_in_text(text: str) -> set[str]:
    """The operators that a text calls by name, as in "torch.sin(a.add_(b))". Those written as symbols are not found."""
    return {spelled(word) for word in _CALLED.findall(text)}


def spelled(target: str) -> str:
    """The common spelling of an operator: "floor_divide" for "operator.floordiv" and "Tensor.floor_divide_"."""
    parts = target.split(".")
    last = parts[3] if target.startswith("torch.ops.") and len(parts) > 3 else parts[-1]  # without the overload's name
    plain = last if last.startswith("__") else last.rstrip("_") or last
    return _ALIASES.get(plain, plain)


def _header_word(header: str) -> str:
    word = header.split("(")[0].split(" ")[0].rstrip(":")
    return word if word in ("for", "while", "try", "if") else ""
