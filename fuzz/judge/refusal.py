"""Refusals: documented errors by which a subject says that it does not support a program. Does not import torch.

Note [What is a refusal] Only subjects that must produce one whole graph (`export`, `refimpl.export`, `make_fx`, torch.compile
with fullgraph) may refuse, and only with an exception of the table below: a class and message that torch, or refimpl, documents
for unsupported programs. An `Unsupported` must link to its page among the reasons of graph breaks and not call itself a bug
(refimpl's must name its id). A guard of an exported program may refuse inputs other than its example inputs, never those.
Everything else (a KeyError in the exporter, an assertion, a refusal of torch.compile if it could break the graph instead) stays a
finding: it may be an internal error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from oracle.subjects.spec import SubjectSpec
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict

REFUSED = "refused"  # a word in counts of programs, beside the values of Status
_SAID = re.compile(r"^(?:call \d+: )?(?:outcome|exception) is (?P<type>[\w.]+) in \w+ \((?P<message>.*)\)", re.DOTALL)
_WHOLE_PAGE = (
    "Explanation: ",
    "compile-graph-break-site",
)  # first and last lines; hints may be between them
_ON_DATA = "Could not guard on data-dependent expression"  # with any expression, and any advice before it
_CALLS_ITSELF_A_BUG = "likely to be a Dynamo bug"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """A kind of exception that is a refusal."""

    type_name: str
    message: str = ""  # the beginning of the message
    has_page: bool = False  # the message must link to its page of the documentation
    is_later: bool = False  # only after the first call
    reason: str = ""  # the name in counts; "" for type and message


_DATA_DEPENDENT = tuple(
    _Refusal(type_name=f"torch.{name}", reason=reason)
    for name, reason in (
        ("fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode", "GuardOnDataDependentSymNode"),
        ("_subclasses.fake_tensor.DataDependentOutputException", "DataDependentOutputException"),
        ("_subclasses.fake_tensor.DynamicOutputShapeException", "DynamicOutputShapeException"),
    )
)
_WHOLE_GRAPH = (
    *_DATA_DEPENDENT,
    _Refusal(type_name="torch._dynamo.exc.UserError"),
    _Refusal(type_name="torch._dynamo.exc.Unsupported", has_page=True),
    _Refusal(type_name="torch._dynamo.exc.FailOnRecompileLimitHit", is_later=True, reason="FailOnRecompileLimitHit"),
)
_NO_FAKE_KERNEL = _Refusal(
    type_name="torch._subclasses.fake_tensor.UnsupportedOperatorException", reason="no fake kernel"
)
_EXPORTED = (
    *_WHOLE_GRAPH,
    _NO_FAKE_KERNEL,
    _Refusal(
        type_name="AssertionError", message="Guard failed: ", is_later=True, reason="guard of an exported program"
    ),
    _Refusal(
        type_name="RuntimeError", message="Expected input at ", is_later=True, reason="guard of an exported program"
    ),
)


# The reference implementation's own: data-dependent reads, graph breaks with their ids, unsupported programs, guards.
_GUARD = "guard of an exported program"
_EXPORTED_BY_REFIMPL = (
    _Refusal(type_name="refimpl.export.errors.UserError"),
    _Refusal(type_name="refimpl.capture.public.errors.UserError"),
    _Refusal(type_name="refimpl.capture.public.errors.Unsupported", message="graph break RC"),
    _Refusal(type_name="refimpl.errors.DataDependentRead", reason="DataDependentRead"),
    _Refusal(type_name="refimpl.errors.DataDependentFakeRead", reason="DataDependentRead"),
    _Refusal(type_name="refimpl.errors.DynamicShapeInTrace", reason="DynamicShapeInTrace"),
    _NO_FAKE_KERNEL,
    _Refusal(type_name="refimpl.errors.UnsupportedByRefimpl", message="refimpl does not support "),
    _Refusal(type_name="refimpl.export.errors.InputMismatch", is_later=True, reason=_GUARD),
    _Refusal(type_name="refimpl.export.errors.StructureMismatch", is_later=True, reason=_GUARD),
    # Converted to torch's.
    _Refusal(type_name="AssertionError", message="Guard failed: ", is_later=True, reason=_GUARD),
)


def refusal_of(verdict: Verdict, subject: SubjectSpec, *, traceback: str = "") -> str:
    """Why the subject refuses the program, in a few words; "" if it does not.

    `traceback` is the end of the exception's text, which has the whole message.
    """
    if verdict.status not in (Status.FAIL_TO_RUN, Status.FAIL_EXCEPTION):
        return ""
    found = _SAID.match(verdict.symptom)
    if found is None:
        return ""
    message = found["message"].strip("\"'")
    for rule in _rules_of(subject):
        if (
            rule.type_name == found["type"]
            and message.startswith(rule.message)
            and (not rule.is_later or bool(verdict.call))
            and (not rule.has_page or all(text in traceback for text in _WHOLE_PAGE))
            and _CALLS_ITSELF_A_BUG not in traceback
        ):
            if _ON_DATA in message:
                return f"{rule.type_name.rpartition('.')[2]}: {_ON_DATA}"
            return rule.reason or symptom_of(verdict).kind.partition(" for ")[0]
    return ""


def _rules_of(subject: SubjectSpec) -> tuple[_Refusal, ...]:
    if subject.kind == "export":
        return _EXPORTED
    if subject.kind == "refimpl.export":
        return _EXPORTED_BY_REFIMPL
    if subject.kind == "make_fx":
        return _DATA_DEPENDENT
    return _WHOLE_GRAPH if subject.options.get("fullgraph") is True else ()
