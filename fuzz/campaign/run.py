"""The loop of a campaign. Confirming and reducing findings comes before new programs. Does not import torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from fuzz.campaign.coverage import Vocabulary
from fuzz.campaign.results import Listener, ResultTaker
from fuzz.campaign.rounds import begin_block, close_rounds, form_batches, may_begin_block
from fuzz.campaign.settings import TRIAL_PROGRAMS, CampaignSettings
from fuzz.campaign.state import LOST_TRIALS, CampaignState
from fuzz.campaign.work import selected_work, task_of
from fuzz.judge.refusal import REFUSED
from oracle.deadline import is_over
from oracle.errors import InternalError
from oracle.isolate import Completed, Task, TaskPool, TaskResult
from oracle.verdict import Status

FAILS_ALWAYS = TRIAL_PROGRAMS  # stop if the first programs are all findings with one symptom
FAILS_VARIOUSLY = 3 * FAILS_ALWAYS  # or with several symptoms
HANGS_ALWAYS = 3
SAVE_EVERY_S = 60.0
GRACE_SHARE = 0.2  # extra share of the time, to reduce findings after it is over
LEAST_GRACE_S = 30.0
_SAYING_NOTHING = (
    Status.EAGER_FAIL_TO_RUN.value,
    Status.EAGER_TWO_RUNS_DIFFER.value,
    Status.MODEL_FAIL_TO_LOAD.value,
    Status.PASS_DUE_TO_SKIP.value,
    REFUSED,
)


def run_campaign(
    settings: CampaignSettings,
    state: CampaignState,
    pool: TaskPool,
    *,
    listener: Listener,
    save: Callable[[], None],
    on_progress: Callable[[], None] = lambda: None,
    between_rounds: Callable[[], None] = lambda: None,
    whole: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Continue from `state` until the count or the time is reached, or the subject fails on every program.

    `save` is called after every run of the pool, and from time to time within one. After KeyboardInterrupt the state is that of
    the last task that ended: the context `whole` delays interrupts around changes that must be complete.
    """
    clock = _ClockState(state, settings.time_s)
    taker = ResultTaker(settings, state, listener)
    if not state.vocabulary.operators:
        state.vocabulary = describe_grammar(pool)
    while True:
        is_late = clock.is_over() or bool(state.stopped)
        wide = replace(settings, workers=settings.workers * pool.places)  # enough work for all slots of a cluster
        with whole():
            form_batches(settings, state)
            if not is_late and may_begin_block(wide, state):
                begin_block(settings, state)
            taker.drop_explained()
        selected = selected_work(wide, state, only_findings=is_late)
        if not selected:
            break
        was_stopped = state.stopped
        results = pool.run([task_of(key, work, settings, state) for key, work in selected])
        try:
            _take(
                results, state, taker,
                is_time_over=clock.is_grace_over if is_late else clock.is_over,
                save=save, on_progress=on_progress, whole=whole,
            )  # fmt: skip
        finally:
            with whole():
                results.close()
                close_rounds(settings, state)
                clock.read()
        if state.stopped != was_stopped:
            _keep_one_example(state)
        save()
        between_rounds()
        if clock.is_grace_over():
            break


class _ClockState:
    """Measures how long a campaign has run (`wall_s` of its state), and whether its time is over."""

    def __init__(self, state: CampaignState, time_s: float | None) -> None:
        self._state = state
        self._wall_before_s = state.wall_s
        self._started = time.monotonic()
        self._deadline = None if time_s is None else self._started + time_s
        self._grace = None if time_s is None else self._started + time_s + max(LEAST_GRACE_S, GRACE_SHARE * time_s)

    def read(self) -> None:
        """Update `wall_s`."""
        self._state.wall_s = self._wall_before_s + time.monotonic() - self._started

    def is_over(self) -> bool:
        self.read()
        return is_over(self._deadline)

    def is_grace_over(self) -> bool:
        """Whether the extra time for reducing findings is over as well."""
        self.read()
        return is_over(self._grace)


def _take(
    results: Iterable[TaskResult],
    state: CampaignState,
    taker: ResultTaker,
    *,
    is_time_over: Callable[[], bool],
    save: Callable[[], None],
    on_progress: Callable[[], None],
    whole: Callable[[], AbstractContextManager[None]],
) -> None:
    """Take the results of a round, until none is left, the time is over or the campaign has a reason to stop."""
    was_stopped, saved = state.stopped, time.monotonic()
    for result in results:
        with whole():
            taker.take(result)
        state.stopped = was_stopped or reason_to_stop(state)
        on_progress()
        if time.monotonic() - saved >= SAVE_EVERY_S:
            save()
            saved = time.monotonic()
        if state.stopped != was_stopped or is_time_over():
            return


def _keep_one_example(state: CampaignState) -> None:
    """The campaign stops because all programs fail alike: confirm and reduce one of them."""
    keys = [key for key, work in state.work.items() if work.found is not None]
    for key in keys[1:]:
        del state.work[key]
    killed = [] if keys else sorted(state.awaiting_draw)[:1]
    state.awaiting_draw = {number: state.awaiting_draw[number] for number in killed}


def reason_to_stop(state: CampaignState) -> str:
    """Why the campaign should stop, since more programs would show nothing new; "" to go on."""
    if state.lost >= LOST_TRIALS and state.lost == state.programs:
        return f"torch-oracle itself fails on every program: {state.lost} of {state.programs} lost to internal errors"
    if state.buckets:
        return ""  # a finding was confirmed, and other programs passed
    judged = {word: count for word, count in state.statuses.items() if word not in _SAYING_NOTHING and count}
    programs = sum(judged.values())
    if judged.get(Status.TIMEOUT.value) == programs >= HANGS_ALWAYS:
        return f"this subject does not end on any program: {programs} of {programs} reached the time limit"
    findings = sum(state.symptoms.values())
    if programs == findings >= FAILS_ALWAYS and len(state.symptoms) == 1:
        ((symptom, _),) = state.symptoms.items()
        return f"this subject fails on every program: {programs} of {programs} with {symptom}"
    if programs == findings >= FAILS_VARIOUSLY:
        symptom = max(state.symptoms, key=lambda name: state.symptoms[name])
        return f"this subject fails on every program: {programs} of {programs}, most often with {symptom}"
    return ""


def describe_grammar(pool: TaskPool) -> Vocabulary:
    """Names of the operators and rules, from a worker, since this needs torch."""
    task = Task(
        key="grammar",
        function="fuzz.campaign.worker:describe_grammar",
        payload={},
        group="",
        timeout_s=180,
        memory_bytes=4 * 2**30,
    )
    (result,) = pool.run([task])
    if not isinstance(result.end, Completed):
        raise InternalError(f"the grammar does not load: {result.end}")
    found = result.end.value
    return Vocabulary(operators=tuple(found["operators"]), rules=tuple(found["rules"]))  # type: ignore[arg-type]
