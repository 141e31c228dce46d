"""Compares what two versions of torch told about a program: values, errors, graphs, recompiles, compile time, speed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from oracle.observe.outcome import Crashed, Outcome, OutOfMemory, Raised, Returned, TimedOut
from results.render import seconds
from triage.advise.answers import Answer
from triage.advise.asking import Side
from triage.advise.judged import Judged

_LEAST_CHANGE = 0.05  # a smaller change of a median is not called faster or slower
_LEAST_ROUNDS = 2  # one round has no spread
TIMES = {"compile_s": "compile time", "compiled_s": "compiled call", "eager_s": "eager call"}
_COMPARED = ("compile_s", "compiled_s")  # eager's time is shown and not compared


class Change(str, Enum):
    """The change of an aspect. The value is the word that users see."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    OTHER = "differs"  # and is neither better nor worse
    UNKNOWN = "not told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aspect:
    """One line of the answer, and what stands below the tables."""

    name: str
    change: Change
    text: str
    details: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"aspect": self.name, "change": self.change.value, "text": self.text, "details": list(self.details)}


def aspects_of(old: Side, new: Side, judged: Judged) -> tuple[Aspect, ...]:
    """All aspects, in the order of their weight."""
    return (
        values_aspect(judged),
        errors_aspect(old.first, new.first),
        graphs_aspect(old.first, new.first),
        recompiles_aspect(old.first, new.first),
        *(time_aspect(name, old, new) for name in _COMPARED),
    )


# -------------------------------------------------------------------------------------------------------------- values


def values_aspect(judged: Judged) -> Aspect:
    """Worse if eager or compiled gives other values, or if only the new compiler is wrong."""
    details = tuple(f"{name}: {one.text}" for name, one in judged.rows if one.is_other)
    lost = judged.compiled_new.is_other and not judged.compiled_old.is_other
    won = judged.compiled_old.is_other and not judged.compiled_new.is_other
    if judged.eager.is_other:
        change, text = Change.WORSE, "eager gives other values"
    elif lost:
        change, text = Change.WORSE, "the new torch compiles it wrong, the old one right"
    elif won:
        change, text = Change.BETTER, "the old torch compiles it wrong, the new one right"
    elif judged.compiled_new.is_other:
        change, text = Change.SAME, "both versions compile it wrong"
    elif judged.compiled.is_other:
        change, text = Change.WORSE, "the compiled program gives other values"
    elif not judged.eager.is_told or not judged.compiled.is_told:
        change, text = Change.UNKNOWN, f"eager: {judged.eager.text}; compiled: {judged.compiled.text}"
    else:
        change, text = Change.SAME, f"eager: {judged.eager.text}; compiled: {judged.compiled.text}"
    return Aspect(name="values", change=change, text=text, details=details)


# -------------------------------------------------------------------------------------------------------------- errors


def ending_of(outcome: Outcome, death: str = "") -> str:
    """How a run ended in words; "" if all calls returned."""
    match outcome:
        case Returned():
            return ""
        case Raised(exception=error):
            first = error.message.strip().partition("\n")[0]
            where = f"call {error.call}" + ("" if error.phase == "call" else f", {error.phase}")
            return f"{error.type_name.rpartition('.')[2]} in {where}: {first}"
        case Crashed() | TimedOut() | OutOfMemory():
            return death or "no answer"


def errors_aspect(old: Answer, new: Answer) -> Aspect:
    """Worse if the new version ends in an error where the old one ended otherwise."""
    changes: list[Change] = []
    texts, details = [], []
    for name in ("eager", "compiled"):
        was, now = _ending(old, name), _ending(new, name)
        details += [f"{name}, {side}: {text}" for side, text in (("old", was), ("new", now)) if text]
        if _kind(was) == _kind(now):
            texts += [f"{name}: the same as before"] if now else []
            continue
        changes.append(Change.BETTER if not now else Change.WORSE)
        words = "no error any more" if not now else "a new error" if not was else "another error"
        texts.append(f"{name}: {words}")
    change = Change.WORSE if Change.WORSE in changes else Change.BETTER if changes else Change.SAME
    return Aspect(name="errors", change=change, text="; ".join(texts) or "none", details=tuple(details))


def _ending(answer: Answer, name: str) -> str:
    ending = ending_of(getattr(answer, name), answer.death)
    # The process may also end while the speed is measured, after both runs.
    return ending or (answer.death if name == "compiled" else "")


def _kind(ending: str) -> str:
    """The type of an error and its call. Messages are worded anew now and then."""
    return ending.partition(": ")[0]


# -------------------------------------------------------------------------------------------------------------- graphs


def graphs_aspect(old: Answer, new: Answer) -> Aspect:
    """Worse if there are more graph breaks."""
    was, now = old.capture.breaks, new.capture.breaks
    if was is None or now is None:
        return Aspect(name="graphs", change=Change.UNKNOWN, text="a version does not tell its graph breaks")
    places = [Counter(each.where or each.reason for each in breaks) for breaks in (was, now)]
    more, fewer = [*(places[1] - places[0])], [*(places[0] - places[1])]
    details = [f"new graph break: {_break(now, place)}" for place in more]
    details += [f"no graph break any more: {_break(was, place)}" for place in fewer]
    graphs = old.capture.graphs, new.capture.graphs
    text = f"{_count(len(now), 'graph break')}, {_was(len(was), len(now))}"
    if None not in graphs:
        text = f"{_count(graphs[1], 'graph')}, {_was(*graphs)}; {text}"
    change = _of_counts(len(was), len(now))
    if change is Change.SAME and (more or graphs[0] != graphs[1]):
        change = Change.OTHER
    return Aspect(name="graphs", change=change, text=text, details=tuple(details))


def recompiles_aspect(old: Answer, new: Answer) -> Aspect:
    """Worse if there are more."""
    was, now = old.capture.recompiles, new.capture.recompiles
    if was is None or now is None:
        return Aspect(name="recompiles", change=Change.UNKNOWN, text="a version does not tell its recompiles")
    details = () if len(was) == len(now) else tuple(f"recompile of the new torch: {reason}" for reason in now)
    change = _of_counts(len(was), len(now))
    return Aspect(name="recompiles", change=change, text=f"{len(now)}, {_was(len(was), len(now))}", details=details)


def _of_counts(was: int, now: int) -> Change:
    return Change.SAME if was == now else Change.WORSE if now > was else Change.BETTER


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number or 'no'} {noun}s"


def _was(was: int | None, now: int | None) -> str:
    return "as before" if was == now else f"was {was}"


def _break(breaks: Iterable[Any], place: str) -> str:
    found = next(each for each in breaks if place in (each.where, each.reason))
    return f"{found.where} ({found.reason})" if found.where else found.reason


# --------------------------------------------------------------------------------------------------------------- times


def time_aspect(name: str, old: Side, new: Side) -> Aspect:
    """Better or worse if all rounds of one version are faster than all rounds of the other, and the medians 5 % apart."""
    was, now = old.times(name), new.times(name)
    what = "compile time" if name == "compile_s" else "speed"
    if not was or not now:
        return Aspect(name=what, change=Change.UNKNOWN, text="not measured, for not all runs returned")
    change = time_change(was, now)
    text = f"{seconds(statistics.median(now))}, was {seconds(statistics.median(was))}"
    if change is Change.UNKNOWN:
        return Aspect(name=what, change=change, text=f"{text}; one round has no spread: use --rounds 3")
    words = {Change.SAME: "about the same", Change.BETTER: "faster", Change.WORSE: "slower"}
    return Aspect(name=what, change=change, text=f"{words[change]}: {text}")


def time_change(was: Sequence[float], now: Sequence[float]) -> Change:
    """Whether times in seconds, one of each round, have changed."""
    if min(len(was), len(now)) < _LEAST_ROUNDS:
        return Change.UNKNOWN
    if abs(statistics.median(now) / max(statistics.median(was), 1e-9) - 1) <= _LEAST_CHANGE:
        return Change.SAME
    return Change.WORSE if min(now) > max(was) else Change.BETTER if max(now) < min(was) else Change.SAME


def is_time_called(old: Side, new: Side) -> bool:
    """Whether the times so far would be called faster or slower."""
    changes = (time_change(old.times(name), new.times(name)) for name in _COMPARED)
    return any(change in (Change.BETTER, Change.WORSE) for change in changes)


def spread(times: Sequence[float]) -> str:
    """A median with the least and the largest time: "1.5 ms (1.4 ms to 1.7 ms)"."""
    if not times:
        return "-"
    middle = seconds(statistics.median(times))
    return middle if len(times) == 1 else f"{middle} ({seconds(min(times))} to {seconds(max(times))})"
