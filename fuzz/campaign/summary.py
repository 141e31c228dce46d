"""What a campaign has come to: text for people, JSON for scripts. Torch-free."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuzz.campaign.relations import relation_lines
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, FoundBucket, FoundProgram
from fuzz.ledger import Recheck
from fuzz.render import render_shown
from fuzz.structure import FuzzProgram
from oracle.symptom import Symptom

_SHOWN_ERRORS = 3
_SHOWN_FLAKY = 5
_SHOWN_REASONS = 8


def summary_lines(
    settings: CampaignSettings, state: CampaignState, *, corpus: Path | None, rechecked: Sequence[Recheck] = ()
) -> Iterator[str]:
    """The text that ends a campaign: one entry a bucket, then numbers."""
    if state.stopped:
        yield f"stopped: {state.stopped}"
        yield ""
    for bucket in sorted(state.new_buckets, key=lambda found: (-found.count - found.alike, found.key)):
        yield from bucket_lines(bucket, settings, corpus=corpus)
        yield ""
    known = [bucket for bucket in state.buckets.values() if bucket.known]
    for bucket in known:
        yield f"known issue {bucket.known}: {bucket.count + bucket.alike} programs ({bucket.status}: {bucket.kind})"
    yield from (f"known issue {found.text()}" for found in rechecked if found.needs_attention)
    if state.flaky:
        yield f"flaky: {state.statuses['flaky']} programs differed once and not again ({_flaky_text(state.flaky)})"
    if state.refused:
        yield f"refused: {sum(state.refused.values())} programs, by name; no findings"
        yield from (f"  {count} {reason}" for reason, count in state.refused.most_common(_SHOWN_REASONS))
        others = len(state.refused) - _SHOWN_REASONS
        if others > 0:
            yield f"  and {others} other reasons"
    yield from _count_lines(settings, state)


def bucket_lines(bucket: FoundBucket, settings: CampaignSettings, *, corpus: Path | None) -> Iterator[str]:
    """One finding: what is wrong, where first, the program, the numbers, how to repeat it."""
    times = bucket.count + bucket.alike
    yield f"{bucket.key}  {bucket.status}  {bucket.kind}"
    shown = "" if bucket.is_reduced else ", not reduced"
    culprit = f"; {bucket.culprit}" if bucket.culprit else ""
    yield f"  programs: {times}{shown}; first wrong rung: {bucket.rung or 'not looked for'}{culprit}"
    if bucket.relation:
        yield f"  relation: {bucket.relation}; the subject agrees with eager on the program alone"
    if bucket.opinion:
        yield f"  second opinion: {bucket.opinion}"
    verdict = bucket.parsed_verdict()
    yield f"  symptom: {verdict.symptom[:400]}"
    worst = verdict.worst
    if worst is not None:
        truth = f", fp64 {worst.truth}" if worst.truth else ""
        yield f"  {worst.where}[{', '.join(map(str, worst.index))}]: eager {worst.eager}, subject {worst.subject}{truth}"
        if worst.subject_error is not None:
            errors = f"error against fp64: eager {worst.eager_error}, subject {worst.subject_error:.3g}"
            yield f"  {errors}, allowed {worst.allowed_error}"
    program = FuzzProgram.from_json(bucket.program)
    yield from (f"    {line}" if line else "" for line in render_shown(program).rstrip().splitlines())
    for number, call in enumerate(program.calls):
        before = f"{call.before}; " if call.before else ""
        flags = [call.grad_mode] if call.grad_mode != "grad" else []
        flags += ["backward"] if call.backward else []
        yield f"    # call {number}: {before}{args_text(call.args)}{' (' + ', '.join(flags) + ')' if flags else ''}"
    if program.config:
        yield f"    # with {dict(program.config)}"
    yield f"  repeat: {repeat_command(bucket, settings, corpus=corpus)}"


def args_text(args: Any) -> str:
    """Argument specs in short: "float32[3, 1](strides 1, 3)"."""
    if args is None:
        return "inputs of the source"
    return ", ".join(_spec_text(spec) for spec in args)


def repeat_command(bucket: FoundBucket, settings: CampaignSettings, *, corpus: Path | None) -> str:
    """The command that judges the finding alone: its reduced program where there is a file, else the one that was drawn."""
    words = ["torch-oracle", "fuzz", "--subject", settings.subject.name]
    if corpus is not None:
        words += ["--replay", str(corpus / "findings" / f"{bucket.key}.json")]
    else:
        words += ["--seed", str(settings.seed), "--number", str(bucket.numbers[0])]
        words += ["--focus", settings.focus] if settings.focus != "all" else []
        words += ["--max-statements", str(settings.max_statements)] if settings.max_statements != 6 else []
    return shlex.join(words)


def summary_json(
    settings: CampaignSettings, state: CampaignState, *, corpus: Path | None, rechecked: Sequence[Recheck] = ()
) -> dict[str, Any]:
    """The same for scripts."""
    return {
        "campaign": settings.identity(),
        "programs": state.programs,
        "statuses": dict(state.statuses),
        "refused": dict(state.refused),
        "relations": dict(state.relations),
        "symptoms": dict(state.symptoms),
        "buckets": [bucket_json(bucket, settings, corpus=corpus) for bucket in state.buckets.values()],
        "known_issues": {found.issue.id: found.outcome for found in rechecked},
        "flaky": [asdict(found) for found in state.flaky],
        "ill": state.ill,
        "errors": state.errors,
        "error_count": state.error_count,
        "lost": state.lost,
        "stopped": state.stopped,
        "wall_s": state.wall_s,
        "draw_cpu_s": state.draw_cpu_s,
        "judge_cpu_s": state.judge_cpu_s,
        "reduce_s": state.reduce_s,
        "judgements": state.judgements,
        "coverage": coverage_json(state),
    }


def bucket_json(bucket: FoundBucket, settings: CampaignSettings, *, corpus: Path | None) -> dict[str, Any]:
    """Without the script, which is a file of its own (`findings/KEY.py`)."""
    data = asdict(bucket)
    del data["script"]
    return {**data, "repeat": repeat_command(bucket, settings, corpus=corpus)}


def drawn_sizes(state: CampaignState) -> dict[str, int]:
    """Distinct features of structured programs by kind, rounds that are not closed included."""
    features = set(state.drawn.counts)
    features.update(f for round_ in state.rounds.values() for found in round_.features.values() for f in found)
    return dict(sorted(Counter(feature.partition(":")[0] for feature in features).items()))


def coverage_json(state: CampaignState) -> Mapping[str, Any]:
    kept = {
        f.partition(":")[2] for round_ in state.rounds.values() for found in round_.features.values() for f in found
    }
    kept.update(state.drawn.of_kind("op"))
    return {
        "drawn": drawn_sizes(state),
        "reached": state.reached.sizes(),
        "operators": len(state.vocabulary.operators),
        "operators_drawn": sum(name in kept for name in state.vocabulary.operators),
    }


def _count_lines(settings: CampaignSettings, state: CampaignState) -> Iterator[str]:
    minutes = state.wall_s / 60
    rate = f", {state.programs / minutes:.0f} a minute" if minutes else ""
    yield f"{state.programs} programs of seed {settings.seed} on {settings.subject.name} in {state.wall_s:.0f} s{rate}"
    yield "  " + ", ".join(f"{count} {status}" for status, count in state.statuses.most_common())
    yield from relation_lines(state)
    drawn, reached = drawn_sizes(state), state.reached.sizes()
    covered = [f"{drawn.get('op', 0)} operators, {drawn.get('pair', 0)} pairs of operators"]
    covered += [
        f"{count} {name}"
        for kind, name in (
            ("aten", "aten overloads"), ("lowering", "lowerings"), ("pass", "passes"), ("break", "reasons of graph breaks")
        )
        if (count := reached.get(kind))
    ]  # fmt: skip
    yield "  covered: " + ", ".join(covered)
    waiting = sum(work.found is not None for work in state.work.values())
    if waiting:
        yield f"  {waiting} findings were not confirmed or reduced before the end; the same command goes on with them"
    if state.error_count:
        lost = f", {state.lost} of {state.programs} programs lost to them" if state.lost else ""
        yield f"  {state.error_count} internal errors of torch-oracle{lost}, please report them:"
        yield from (f"    {error.strip().splitlines()[-1][:200]}" for error in state.errors[:_SHOWN_ERRORS])


def _flaky_text(flaky: list[FoundProgram]) -> str:
    symptoms = dict.fromkeys(Symptom.from_json(found.symptom).kind or found.symptom["status"] for found in flaky)
    numbers = ", ".join(str(found.numbers[0]) for found in flaky[:_SHOWN_FLAKY])
    return f"{'; '.join(list(symptoms)[:_SHOWN_FLAKY])}; numbers {numbers}"


def _spec_text(spec: Any) -> str:
    if isinstance(spec, list):
        return f"[{', '.join(map(_spec_text, spec))}]"
    if not isinstance(spec, Mapping):
        return repr(spec)
    if spec.get("$") == "tensor":
        notes = [f"stride {tuple(spec['stride'])}"] if spec.get("stride") is not None else []
        notes += [f"offset {spec['offset']}"] if spec.get("offset") else []
        notes += [f"storage {spec['storage']!r}"] if "storage" in spec else []
        notes += [key for key in ("requires_grad", "parameter", "conj", "neg") if spec.get(key)]
        fill = spec.get("fill")
        if isinstance(fill, Mapping) and "values" in fill:
            notes.append(f"values {fill['values']}"[:120])
        text = f"{spec['dtype']}{list(spec['shape'])}"
        return f"{text} ({', '.join(notes)})" if notes else text
    if spec.get("$") == "same":
        return f"the same as {spec.get('id')}"
    return str({key: value for key, value in spec.items() if key != "$"} or spec.get("$"))
