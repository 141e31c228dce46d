"""Subject: one way to run a program. Adding one means one small file with one class of this protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oracle.subjects.spec import SubjectSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """What a subject gets. `target` is fresh: no other run has touched it, its parameters or its buffers.

    `args` and `kwargs` are copies of the first call's inputs, for subjects that trace or export on example inputs.
    They are the subject's to spend.
    """

    target: Callable[..., Any]  # a function or an nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as in Program; {}: nothing is said of sizes
    backward: bool = False  # some call of the plan differentiates


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the subject did during one case. None where the subject cannot know."""

    graphs: int | None = None  # graphs captured; 0 says that nothing was compiled, and agreement means nothing
    graph_breaks: int | None = None
    recompiles: int | None = None
    kernels: int | None = None  # of all graphs; None of subjects that make none
    lowered: int | None = None  # calls of operators that became kernels
    fallbacks: int | None = None  # calls that did not, and are of the operator's own kernel


class Subject(Protocol):
    """A system under test. One instance serves many cases in one worker; `reset` comes before each."""

    spec: SubjectSpec

    def reset(self) -> None:
        """Forget all compiled code and counters of earlier cases."""
        ...

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        """Returns a callable with the calling convention of `request.target`.

        May compile now or on the first call. An exception raised here or there is an observation, not an error of ours.
        """
        ...

    def counters(self) -> Counters: ...
