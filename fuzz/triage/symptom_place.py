"""Which observation of a run a verdict is about, as an expression that a script can write down.

The paths in a symptom ("args[0]", "output[1]['mean']") are Python: a script whose variables are called `args`, `inputs`, `kwargs`
and `output` can use them as they are. A module's state is that of the called module, `f`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import torch

from oracle.verdict import Status, Verdict

_CALL = re.compile(r"^call (\d+): ")
_PATH = r"(?:output|args|kwargs|inputs|module\.)\S*?(?:\[[^\]]*\])*"
_SHARES = re.compile(
    rf"^(?P<one>{_PATH}) (?:shares|does not share) (?P<what>its object with|the storage of) (?P<other>{_PATH}), but should"
)
_ATTRIBUTE = re.compile(rf"^(?P<path>{_PATH})\.(?P<name>[a-z_]+)(?:\(\))?(?: in the storage it shares)? is ")
_IS = re.compile(rf"^(?P<grad>grad of )?(?P<path>{_PATH}) is (?P<seen>.*)$", re.DOTALL)
_ELEMENT = re.compile(r"\[\d+(?:, \d+)*\]$")
_NUMBER = re.compile(r"[-+(]*(?:\d|nan|inf|True|False)")
_ENDING = re.compile(r"^(?:outcome|exception) is (?P<seen>.*), but should be (?P<expected>.*)$", re.DOTALL)
_DEADLY = (Status.CRASH, Status.TIMEOUT, Status.OOM)


class Kind(Enum):
    """The kind of thing that is compared."""

    OUTPUT = "values of outputs"
    ARGUMENT = "values of arguments after the call"
    STATE = "values of a module's state after the call"
    GRADIENT = "gradients"
    FACT = "plain Python values: an attribute of a tensor, or whether two tensors share memory"
    RETURNS = "whether the call returns"
    EXCEPTION = "the type of the exception"
    GENERATOR = "the next random number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place in the observation that a verdict is about."""

    kind: Kind
    call: int  # index in the call plan
    path: str = ""  # the wrong tensor, without the index of an element
    fact: str = ""  # with FACT: the expression
    in_backward: bool = False
    exception: str = ""  # with RETURNS: the type that the compiler raises

    def names(self, word: str) -> bool:
        """Whether its expressions use this variable."""
        return re.search(rf"\b{word}\b", f"{self.path} {self.fact}") is not None


def place_of(verdict: Verdict) -> Place | None:
    """The place; None if a short script cannot show it: the process dies, or it is about globals or several calls' memory."""
    if verdict.status in _DEADLY or not verdict.status.is_finding:
        return None
    found = _CALL.match(verdict.symptom)
    call = verdict.call if verdict.call is not None else int(found[1]) if found else 0
    text = _CALL.sub("", verdict.symptom)
    if ending := _ENDING.match(text):
        return _place_of_ending(ending["seen"], ending["expected"], call)
    if text.startswith("generator state"):
        return Place(kind=Kind.GENERATOR, call=call, in_backward=" after the backward" in text)
    if shares := _SHARES.match(text):
        one, other = _expression(shares["one"]), _expression(shares["other"])
        is_object = shares["what"] == "its object with"
        data = "untyped_storage().data_ptr()"
        return Place(
            kind=Kind.FACT, call=call, fact=f"{one} is {other}" if is_object else f"{one}.{data} == {other}.{data}"
        )
    if attribute := _ATTRIBUTE.match(text):
        return _place_of_attribute(_expression(attribute["path"]), attribute["name"], call)
    if value := _IS.match(text):
        return _place_of_value(verdict, value, call)
    return None


def _place_of_ending(seen: str, expected: str, call: int) -> Place | None:
    if "double backward" in seen or "double backward (" in expected:
        return None
    in_backward = " in backward" in seen or " in backward" in expected
    if expected != "a return":
        return Place(kind=Kind.EXCEPTION, call=call, in_backward=in_backward)
    name = seen.partition(" in ")[0].rpartition(".")[2]
    return Place(kind=Kind.RETURNS, call=call, in_backward=in_backward, exception=name)


def _place_of_attribute(path: str, name: str, call: int) -> Place | None:
    known = getattr(torch.Tensor, name, None)
    if known is None:
        return None
    return Place(kind=Kind.FACT, call=call, fact=f"{path}.{name}{'()' if callable(known) else ''}")


def _place_of_value(verdict: Verdict, value: re.Match[str], call: int) -> Place:
    whole = _expression(value["path"])
    if "sign of zero" in verdict.symptom and not value["grad"]:
        return Place(kind=Kind.FACT, call=call, fact=f"{whole}.signbit().item()")
    path = whole
    if verdict.worst is not None and verdict.worst.where:
        path = _expression(_CALL.sub("", verdict.worst.where).removeprefix("grad of "))
    elif _NUMBER.match(value["seen"]) and (whole.startswith(("output", "f.")) or whole.count("[") > 1):
        path = _ELEMENT.sub("", whole)
    kinds = {"output": Kind.OUTPUT, "f": Kind.STATE}
    root = re.split(r"[.\[]", whole, maxsplit=1)[0]
    kind = Kind.GRADIENT if value["grad"] else kinds.get(root, Kind.ARGUMENT)
    return Place(kind=kind, call=call, path=path, in_backward=kind is Kind.GRADIENT)


def _expression(path: str) -> str:
    return re.sub(r"^module\.", "f.", path)
