"""Rounds: fixed ranges of program numbers, each drawn with the same weights. Does not import torch.

Note [Which programs are drawn] Program n of seed s depends on s, n and the factors of its round. The factors of round r are
computed from the structured programs of rounds 0 to r-2, in the order of their numbers, and not from how they were judged. So the
programs are the same for any number of workers, on slow and fast machines, in one run and in several. Round r-1 is left out so
that its last programs may still be judged while round r is drawn.
"""

from __future__ import annotations

from collections import Counter

from fuzz.campaign.coverage import STEERING_KINDS, steering_factors
from fuzz.campaign.settings import TRIAL_PROGRAMS, CampaignSettings
from fuzz.campaign.state import CampaignState, RoundState, Work

LAG = 2


def may_begin_block(settings: CampaignSettings, state: CampaignState) -> bool:
    """Whether there are numbers left, the factors of the next ones are known, and more work is needed.

    Batches are formed within a block: the next block begins after this one's batches are formed.
    """
    is_counted_out = settings.count is not None and state.next_number >= settings.count
    waiting = sum(len(work.numbers) for work in state.work.values() if work.kind in ("range", "sort"))
    is_steered = state.next_number // settings.round_size < state.closed_rounds + LAG
    is_sorting = any(work.kind == "sort" for work in state.work.values())
    return not is_counted_out and is_steered and not is_sorting and waiting < settings.chunk * settings.processes


def begin_block(settings: CampaignSettings, state: CampaignState) -> None:
    """Add the next block of a round (or the rest of one that --count cut off) to the work."""
    start = state.next_number
    number = start // settings.round_size
    end = min((start // settings.block + 1) * settings.block, (number + 1) * settings.round_size)
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
        kind = "sort" if settings.batch_size > 1 else "range"
        state.add_work(Work(kind=kind, round=number, numbers=tuple(range(at, last)), batch_size=1))
        at = last
    state.next_number = end


def form_batches(settings: CampaignSettings, state: CampaignState) -> None:
    """Plan tasks for rounds whose programs are all drawn: one for each batch, and for programs that are judged alone.

    Batches depend only on the round, so that a finding of a batch can be repeated. Full batches come first.
    """
    for number, round_ in state.rounds.items():
        if not round_.sorted or any(work.kind == "sort" and work.round == number for work in state.work.values()):
            continue
        works: list[Work] = []
        for key, numbers in sorted(round_.sorted.items()):
            size = settings.batch_size if key else settings.chunk
            batched = settings.batch_size if key else 1
            ordered = sorted(numbers)
            for at in range(0, len(ordered), size):
                works.append(
                    Work(kind="range", round=number, numbers=tuple(ordered[at : at + size]), batch_size=batched)
                )
        round_.sorted = {}
        for work in sorted(works, key=lambda work: -len(work.numbers)):
            state.add_work(work)


def close_rounds(settings: CampaignSettings, state: CampaignState) -> None:
    """Add finished rounds to the coverage, in order, and compute the factors of later rounds."""
    while (round_ := state.rounds.get(state.closed_rounds)) is not None:
        if len(round_.features) < settings.round_size or round_.sorted:
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
