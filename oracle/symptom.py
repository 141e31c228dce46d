"""Symptom: the kind of a verdict's difference, which stays the same while the program is reduced. Does not import torch.

A verdict's text has a path and numbers ("call 1: output[1][2, 3] is 3.5, but should be 3.0 (fp64 3.0): error ..."). These change
with every step of a reduction and do not tell which bug it is. The symptom keeps the section (output, argument, gradient, state)
and the kind of difference (numbers, NaN on one side, sign of a zero, an attribute, an exception with its message).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oracle.verdict import Status, Verdict

_RELATION = re.compile(r'^relation "(?P<name>[^"]*)": ')
_LENGTH = 80  # messages are cut here: the judge shortens long ones, and wrapping exceptions prepend text
_CALL = re.compile(r"^call \d+: ")
_IS_NOT = re.compile(r" is (?P<seen>.*), but should (?:be (?P<expected>.*)|(?P<absent>not be there))$", re.DOTALL)
_WRAPPED_SEEN = re.compile(r"^(?:outcome|exception) is (?P<seen>.*)$", re.DOTALL)
_EXCEPTION = re.compile(r"^(?P<type>[\w.]+) in (?P<phase>\w+) \((?P<message>.*)\)$", re.DOTALL)
_WRAPPERS = frozenset(["BackendCompilerFailed", "InductorError", "LoweringException", "InternalTorchDynamoError"])
_WRAPPED = re.compile(r"^(?:backend=\S+ raised: )?(?P<type>[\w.]+): (?P<message>.*)$", re.DOTALL)
_HOW = re.compile(r"signal \d+|exit code -?\d+")
# Parts of a message that vary between programs: addresses, generated names, sizes, numbers, quoted values.
_VARYING = (
    (re.compile(r"0x[0-9a-fA-F]+"), "#"),
    (re.compile(r"(?:/[\w.+-]+)+/([\w.+-]+)"), r"\1"),
    (re.compile(r"torch_oracle_program_\d+"), "program"),
    (re.compile(r"\b(?:torch\.)?(?:bool|u?int\d+|b?float\d+\w*|complex\d+|Float|Double|Half|BFloat16|Long|Int|Bool)\b"), "dtype"),
    (re.compile(r"[\[(][-\d,.\s#x]*[\])]"), "#"),
    (re.compile(r"\b(?:arg|buf|primals?|tangents?|tmp|add|mul|clone|view|a|v|w|s|u|zuf|L_\w*?|_?op)_?\d+(?:_\w+)*\b"), "#"),
    (re.compile(r"[-+]?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b|\b(?:nan|inf)\b"), "#"),
    (re.compile(r"#(?:\s*[,x]?\s*#)+"), "#"),
)  # fmt: skip
_ATTRIBUTES = frozenset(
    ["structure", "shape", "dtype", "device", "layout", "stride()", "storage_offset", "type_name", "is_coalesced", "quantizer"]
)  # fmt: skip
_FLAGS = frozenset(["requires_grad", "is_leaf", "is_conj", "is_neg", "is_inference"])
# Sections of an observation, by the first word of a path. Arguments and a module's state are one section, since a reduction
# turns one into the other.
_SECTIONS = (
    (re.compile(r"^grad of "), "grad"),
    (re.compile(r"^output\b"), "output"),
    (re.compile(r"^(?:args|kwargs|inputs|input kwargs|module)\b"), "argument"),
    (re.compile(r"^(?:globals|closure)\b"), "surroundings"),
)
# Systematic errors (oracle.judge.systematic).
_SYSTEMATIC = (
    (re.compile(r" has errors of one sign: "), "bias"),
    (
        re.compile(r" has (?:a quarter of its errors above|a root mean square error of) .* ulp, eager "),
        "spread of errors",
    ),
    (re.compile(r" has the last (?:bit|\d bits) of its significands cleared "), "cleared bits"),
    (re.compile(r" is not exact in .* elements, where eager gives exactly"), "not exact"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """The status and kind that a reduction of a finding must preserve."""

    status: str  # Verdict.status.value
    kind: str  # "output: number", "grad: nan", "argument.stride()", "InductorError in call: LoweringException: ..."

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "kind": self.kind}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Symptom:
        return cls(status=str(data["status"]), kind=str(data["kind"]))


def symptom_of(verdict: Verdict) -> Symptom:
    """The symptom of a verdict. If that is no finding, it has a status only."""
    if not verdict.status.is_finding:
        return Symptom(status=verdict.status.value, kind="")
    found = _RELATION.match(verdict.symptom)
    if found is None:
        return Symptom(status=verdict.status.value, kind=_kind(verdict))
    plain = _kind(replace(verdict, symptom=verdict.symptom[found.end() :]))
    return Symptom(status=verdict.status.value, kind=with_relation(found["name"], plain))


def with_relation(name: str, text: str) -> str:
    """The text or kind of a symptom, with the relation of two programs that it violates (`fuzz.judge.metamorphic`)."""
    return f'relation "{name}": {text}'


def without_relation(kind: str) -> str:
    """The kind without the relation."""
    return _RELATION.sub("", kind)


def matches(kept: Symptom, seen: Symptom) -> bool:
    """Whether a smaller program still shows the symptom.

    Wrong module state and wrong arguments count as the same, since a reduction turns state into arguments.
    """
    return _merged(kept) == _merged(seen)


def _merged(symptom: Symptom) -> Symptom:
    if symptom.status == Status.FAIL_STATE.value and symptom.kind.startswith("argument"):
        return replace(symptom, status=Status.FAIL_MUTATION.value)
    return symptom


def normalised(text: str) -> str:
    """A message without the parts that vary between programs: numbers, sizes, dtypes, generated names, paths, addresses."""
    text = " ".join(text.split())
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text.removesuffix("...")[:_LENGTH]


def _kind(verdict: Verdict) -> str:
    text = _CALL.sub("", verdict.symptom)
    if text.startswith("leak: "):
        return "leak"
    match verdict.status:
        case Status.CRASH:
            found = _HOW.search(text)
            return found[0] if found else ""
        case Status.TIMEOUT | Status.OOM:
            return ""
        case Status.FAIL_TO_RUN | Status.FAIL_EXCEPTION:
            return _ending_kind(text)
        case Status.FAIL_RNG:
            return "generator state"
        case _:
            return _difference_kind(text)


def _ending_kind(text: str) -> str:
    """The ending seen instead of the expected one: "RuntimeError in call: message", "a return for ValueError"."""
    body, _, expected = text.rpartition(", but should be ")
    found = _WRAPPED_SEEN.match(body)
    if found is None:
        return normalised(text)
    seen = _exception_kind(re.sub(r" in call \d+$", "", found["seen"]), with_message=expected == "a return")
    return seen if expected == "a return" else f"{seen} for {_exception_kind(expected, with_message=False)}"


def _exception_kind(text: str, *, with_message: bool) -> str:
    found = _EXCEPTION.match(text)
    if found is None:
        return normalised(text)
    name, message = found["type"].rpartition(".")[2], found["message"].strip("\"'")
    while name in _WRAPPERS and (inner := _WRAPPED.match(message)):  # "backend='inductor' raised: RuntimeError: ..."
        name, message = inner["type"].rpartition(".")[2], inner["message"]
    return f"{name}: {normalised(message)}" if with_message else name


def _difference_kind(text: str) -> str:
    section = next((name for pattern, name in _SECTIONS if pattern.search(text)), "")
    if not section:
        return normalised(text)  # "process state: default dtype is ..."
    for what in (" its object with", " the storage of"):
        before, middle, _ = text.partition(what)
        if middle:
            return f"{section} {'shares' if before.endswith(' shares') else 'does not share'}{what}"
    if ".rmse against fp64" in text:
        return f"{section}: number"
    systematic = next((kind for pattern, kind in _SYSTEMATIC if pattern.search(text)), "")
    if systematic:
        return f"{section}: {systematic}"
    if "the mask of the gradient is not" in text:
        return f"{section}: mask"
    if "is of another distribution" in text or "elements that are not finite" in text:
        return f"{section}: distribution"
    if text.endswith(" is missing") or " is missing, but should be " in text:
        return f"{section}: missing"
    found = _IS_NOT.search(_first_statement(text))
    if found is None:
        return f"{section}: {normalised(text)}"
    if found["absent"]:
        return f"{section}: not to be there"
    where, seen, expected = text[: found.start()], found["seen"], found["expected"]
    attribute = where.rpartition(".")[2].removesuffix(" in the storage it shares")
    if attribute in _FLAGS:
        return f"{section}.{attribute} is {seen}"
    if attribute in _ATTRIBUTES or where.endswith(".quantizer"):
        return f"{section}.{attribute}"
    return f"{section}: {_value_kind(seen, expected, text)}"


def _first_statement(text: str) -> str:
    """The text up to the expected value, without the numbers and reasons behind it."""
    head, middle, tail = text.partition(", but should be ")
    if not middle:
        return text
    end = re.search(r" \((?:fp64 |\d+ of \d+ elements|the sign of zero)|: error |; \d+ of \d+ elements", tail)
    return head + middle + (tail[: end.start()] if end else tail)


def _value_kind(seen: str, expected: str, text: str) -> str:
    """The kind of a difference of values: "number", "nan for number", "sign of zero", "None for tensor"."""
    if "the sign of zero" in text:
        return "sign of zero"
    kinds = (_word_kind(seen), _word_kind(expected))
    if kinds[0] == kinds[1]:
        return kinds[0]
    return f"{kinds[0]} for {kinds[1]}"


def _word_kind(text: str) -> str:
    if "of shape" in text:
        return "tensor"
    if text == "None":
        return "None"
    if "nan" in text.lower():
        return "nan"
    return (
        "number" if re.match(r"^(?:(?:int|float|complex|bool) )?[-+(\d.]|^[-+]?inf|^(?:True|False)", text) else "object"
    )
