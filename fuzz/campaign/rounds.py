"""Rounds: fixed ranges of program numbers, each drawn under one steering. Torch-free.

Note [Which programs are drawn]
Program number n of seed s is a function of s, n and the factors of its round. The factors of round r are computed from the
structured programs of rounds 0 to r-2, counted in the order of their numbers, whatever happened when they were judged: so the
programs are the same for any number of workers, on a slow and on a fast machine, in one run and in several. Round r-1 is left
out so that its last programs may still be judged while round r is drawn.
"""

from __future__ import annotations

from collections import Counter

from fuzz.campaign.settings import TRIAL_PROGRAMS, CampaignSettings
from fuzz.campaign.state import CampaignState, RoundState, Work
from fuzz.coverage import STEERING_KINDS, steering_factors

LAG = 2


def may_begin_round(settings: CampaignSettings, state: CampaignState) -> bool:
    """Whether there are numbers left, and what steers the next ones is known."""
    is_counted_out = settings.count is not None and state.next_number >= settings.count
    return not is_counted_out and state.next_number // settings.round_size < state.closed_rounds + LAG


def begin_round(settings: CampaignSettings, state: CampaignState) -> None:
    """Add the ranges of the next round (or of the rest of one that a count had cut off) to the work."""
    start = state.next_number
    number = start // settings.round_size
    end = (number + 1) * settings.round_size
    if settings.count is not None:
        end = min(end, settings.count)
    state.rounds.setdefault(number, RoundState())
    at = start
    if start == 0:
        at = min(TRIAL_PROGRAMS, end)
        for trial in range(at):
            state.add_work(Work(kind="range", round=0, numbers=(trial,), batch_size=1))
    while at < end:
        last = min(end, at - at % settings.chunk + settings.chunk)
        work = Work(kind="range", round=number, numbers=tuple(range(at, last)), batch_size=settings.batch_size)
        state.add_work(work)
        at = last
    state.next_number = end


def close_rounds(settings: CampaignSettings, state: CampaignState) -> None:
    """Take the rounds whose programs are all known into the coverage, in order, and steer those to come."""
    while (round_ := state.rounds.get(state.closed_rounds)) is not None:
        if len(round_.features) < settings.round_size:
            return
        fresh_of: Counter[str] = Counter()
        seen_of: Counter[str] = Counter()
        for number in sorted(round_.features):
            features = round_.features[number]
            fresh = sum(f.partition(":")[0] in STEERING_KINDS for f in state.drawn.add(features))
            for name in {f.partition(":")[2] for f in features if f.startswith("op:")}:
                fresh_of[name] += fresh
                seen_of[name] += 1
        novelty = {name: fresh_of[name] / count for name, count in sorted(seen_of.items())}
        number = state.closed_rounds
        state.factors[number + LAG] = steering_factors(state.vocabulary, state.drawn, novelty)
        del state.rounds[number]
        needed = {work.round for work in state.work.values()} | {number + 1, number + LAG}
        state.factors = {key: factors for key, factors in state.factors.items() if key in needed}
        state.closed_rounds += 1


def factors_of(state: CampaignState, number: int) -> dict[str, float]:
    return state.factors.get(number, {})
