"""Runs a symbolic graph at a second size: on the first other input that eager and the graph's guards accept."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oracle.hygiene import seed_everything
from oracle.program import Program
from oracle.program.build import Instance, LiveProgram
from oracle.program.clone import clone_tree
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status
from suites.traces.records import SECOND_DIFFERS, SECOND_EQUAL, SECOND_NONE, SECOND_REFUSED, Difference
from suites.traces.sizes import SecondInput
from suites.traces.tracing import NO_MEASURE, AlreadyTraced, Refused, Traced, judged, one_line

MAX_TRIED = 8  # inputs that are checked with the guards
BUDGET_S = 60.0
GUARDS_SHOWN = 20

Candidates = Callable[[Instance], Iterable[SecondInput]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondSize:
    """The result at the second size."""

    word: str = SECOND_NONE
    label: str = ""
    tried: int = 0
    differences: tuple[Difference, ...] = ()
    guards: tuple[str, ...] = ()  # both lists, if they differ on an input


@dataclass(slots=True, kw_only=True)
class _SearchState:
    tried: int = 0
    differences: list[Difference] | None = None
    guards: tuple[str, ...] = ()

    def result(self, word: str, label: str = "", *more: Difference) -> SecondSize:
        return SecondSize(
            word=word,
            label=label,
            tried=self.tried,
            differences=(*(self.differences or ()), *more),
            guards=self.guards,
        )


def run_second_size(
    instance: Instance, *, ours: Traced, theirs: Traced | Refused, spec: SubjectSpec, candidates: Candidates
) -> SecondSize:
    """`instance` is the traced program; `candidates` proposes inputs for it. Only the guards of `theirs` are evaluated."""
    state = _SearchState()
    if getattr(ours.module, "shape_env", None) is None:
        return state.result(SECOND_NONE)
    started = time.monotonic()
    for candidate in candidates(instance):
        if state.tried >= MAX_TRIED or time.monotonic() - started > BUDGET_S:
            break
        if not _eager_takes(instance, candidate):
            continue
        state.tried += 1
        if not _ask_guards(ours, theirs, candidate, state):
            continue
        verdict = judged(functools.partial(_live, instance, candidate), AlreadyTraced(spec, ours))
        if verdict.status in NO_MEASURE:
            continue
        if verdict.status is Status.PASS:
            return state.result(SECOND_EQUAL, candidate.label)
        detail = f"{candidate.label}: {verdict.status.value}: {verdict.symptom[:300]}"
        torch_too = isinstance(theirs, Traced) and verdict.status is _status_of(theirs, instance, candidate, spec)
        difference = Difference(aspect="second_size", detail=detail, torch_too=torch_too)
        return state.result(SECOND_DIFFERS, candidate.label, difference)
    return state.result(SECOND_REFUSED if state.tried else SECOND_NONE)


def _status_of(traced: Traced, instance: Instance, candidate: SecondInput, spec: SubjectSpec) -> Status:
    return judged(functools.partial(_live, instance, candidate), AlreadyTraced(spec, traced)).status


def _eager_takes(instance: Instance, candidate: SecondInput) -> bool:
    args, kwargs = clone_tree((candidate.args, candidate.kwargs))
    seed_everything(instance.program.seed)
    try:
        instance.target(*args, **kwargs)
    except Exception:  # these inputs cannot be enlarged in this way
        return False
    return True


def _ask_guards(ours: Traced, theirs: Traced | Refused, candidate: SecondInput, state: _SearchState) -> bool:
    """Whether our guards accept the input. The first input on which torch's guards differ is noted."""
    try:
        is_accepted = ours.accepts(candidate.args, candidate.kwargs)
    except Exception as error:  # an exception while evaluating guards is a finding
        _note(state, f"{candidate.label}: evaluating our guards raised {one_line(error)}")
        return False
    if isinstance(theirs, Traced) and not state.guards:
        try:
            is_accepted_there = theirs.accepts(candidate.args, candidate.kwargs)
        except Exception:  # torch's guards cannot be evaluated here: nothing to compare with
            return is_accepted
        if is_accepted != is_accepted_there:
            verb = "accept what torch's refuse" if is_accepted else "refuse what torch's accept"
            _note(state, f"{candidate.label}: our guards {verb}")
            state.guards = (_listed("ours", ours.guards()), _listed("torch", theirs.guards()))
    return is_accepted


def _note(state: _SearchState, detail: str) -> None:
    state.differences = [*(state.differences or ()), Difference(aspect="guards", detail=detail)]


def _listed(whose: str, guards: list[str]) -> str:
    guards = sorted(guards, key=lambda guard: " | " not in guard)  # disjunctions first: see the explanations
    more = f" and {len(guards) - GUARDS_SHOWN} more" if len(guards) > GUARDS_SHOWN else ""
    return f"{whose} ({len(guards)}): {'; '.join(guards[:GUARDS_SHOWN])}{more}"


def _live(instance: Instance, candidate: SecondInput) -> Instance:
    """A new instance of the same target on the other inputs, with the same policy."""
    program = Program(
        name=f"{instance.program.name} at {candidate.label}",
        source="",
        seed=instance.program.seed,
        policy=instance.program.policy,
    )
    live = LiveProgram(
        program=program,
        make_target=lambda: instance.target,
        args=candidate.args,
        kwargs=candidate.kwargs,
    )
    return live.instantiate()
