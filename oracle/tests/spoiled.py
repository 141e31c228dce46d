"""Subjects for tests that do what eager does, and then change the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracle.case import EagerState
from oracle.hygiene import snapshot
from oracle.judge import Evidence, judge
from oracle.observe import observe
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.verdict import Verdict


def verdict_on(source: str, change: Callable[[Any], Any]) -> Verdict:
    """The verdict on a subject that returns `change(result)` of eager's. `source`: a program without its import of torch."""
    program = Program(name="t", source="import torch\n" + source)
    state, before = EagerState(make=lambda: instantiate(program)), snapshot()
    state.run(lambda stage: None, before)
    assert state.first is not None
    assert state.second is not None
    subject = observe(state.make(), compile_target=lambda target: lambda *args: change(target(*args)))
    runs = state.further_runs(lambda stage: None, before)
    return judge(Evidence(eager=state.first, again=state.second, subject=subject, runs=runs))
