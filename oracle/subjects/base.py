"""Protocol of a subject, one way to run a program. A new subject is one small file with one class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oracle.subjects.spec import SubjectSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """The program for a subject to compile. No other run has used `target`, its parameters or its buffers.

    `args` and `kwargs` are copies of the first call's inputs, for subjects that trace or export on example inputs. The subject
    may change them.
    """

    target: Callable[..., Any]  # a function or an nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as in Program; {}: no ranges are given
    backward: bool = False  # some call of the plan has a backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counts of what the subject compiled during one case. None if the subject does not know."""

    graphs: int | None = None  # captured graphs; with 0 nothing was compiled, and agreement proves nothing
    graph_breaks: int | None = None
    recompiles: int | None = None
    kernels: int | None = None  # in all graphs; None for subjects that generate none
    lowered: int | None = None  # operator calls that became kernels
    fallbacks: int | None = None  # operator calls that use eager's kernel


class Subject(Protocol):
    """A system under test. One instance compiles many programs in one worker; `reset` is called before each."""

    spec: SubjectSpec

    def reset(self) -> None:
        """Forget all compiled code and counters of earlier cases."""
        ...

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        """Returns a callable with the calling convention of `request.target`.

        May compile now or on the first call. Exceptions of both are observations, not errors of ours.
        """
        ...

    def counters(self) -> Counters: ...
