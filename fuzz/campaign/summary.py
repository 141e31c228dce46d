"""The summary of a campaign, as text and as JSON. Does not import torch."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuzz.campaign.relations import relation_lines
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, FoundBucket, FoundProgram, Work
from fuzz.program.render import render_shown
from fuzz.program.structure import FuzzProgram
from fuzz.triage.ledger import Recheck
from oracle.localisation.ladder import SHARED_OPTIONS
from oracle.symptom import Symptom

_SHOWN_ERRORS = 3
_SHOWN_FLAKY = 5
_SHOWN_REASONS = 8
_SHOWN_WAITING = 10  # symptoms of findings that are not confirmed or reduced


def summary_lines(
    settings: CampaignSettings, state: CampaignState, *, corpus: Path | None, rechecked: Sequence[Recheck] = ()
) -> Iterator[str]:
    """The summary's text: one entry for each bucket, then numbers."""
    if state.stopped:
        yield f"stopped: {state.stopped}"
        yield ""
    for bucket in sorted(state.new_buckets, key=lambda found: (-found.count - found.alike, found.key)):
        yield from bucket_lines(bucket, settings, corpus=corpus)
        yield ""
    yield from waiting_lines(settings, state, corpus=corpus)
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
    """One finding: its symptom, first wrong rung, program, numbers of programs, and the command that repeats it."""
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
    yield from _program_lines(FuzzProgram.from_json(bucket.program), bucket.inputs)
    yield f"  repeat: {repeat_command(bucket, settings, corpus=corpus)}"


def _program_lines(program: FuzzProgram, inputs: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"    {line}" if line else "" for line in render_shown(program).rstrip().splitlines())
    yield from (f"    {line}" for line in call_lines(program, inputs))
    if program.config:
        yield f"    # with {dict(program.config)}"


def call_lines(program: FuzzProgram, inputs: Sequence[Sequence[str]]) -> Iterator[str]:
    """The calls of a program as comments: for each call the statements before it, its inputs, and the call.

    `inputs`: for each call the result of `fuzz.draw.inputs.source.shown_inputs`; without it the specs of the inputs are shown.
    """
    for number, call in enumerate(program.calls):
        made = inputs[number] if number < len(inputs) else [f"program({_specs_text(call.args)})"]
        flags = [call.grad_mode] if call.grad_mode != "grad" else []
        flags += ["backward"] if call.backward else []
        flags += [] if call.training is None else ["train()" if call.training else "eval()"]
        lines = [*call.before.splitlines(), *made]
        lines[-1] += f"  ({', '.join(flags)})" if flags else ""
        head = f"# call {number}: "
        yield from ((head if at == 0 else "#".ljust(len(head))) + line for at, line in enumerate(lines))


def waiting_lines(settings: CampaignSettings, state: CampaignState, *, corpus: Path | None) -> Iterator[str]:
    """Findings that were not confirmed or reduced: for each symptom the number of programs, and the smallest of them."""
    waiting = state.waiting
    count = len(waiting) + len(state.awaiting_draw)
    if not count:
        return
    goes_on = (
        "the same command goes on with them" if corpus is not None else "with --corpus DIR the same command would go on"
    )
    yield f"{count} findings were not confirmed or reduced before the end, nor compared with the known issues; {goes_on}:"
    groups: dict[tuple[str, str], list[Work]] = {}
    for work in waiting:
        assert work.found is not None
        groups.setdefault(work.found.symptom_key, []).append(work)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    for (status, kind), works in ordered[:_SHOWN_WAITING]:
        found = [work.found for work in works if work.found is not None]
        smallest = min(found, key=lambda one: len(json.dumps(one.program)))
        seen_again = sum(work.kind == "reduce" for work in works)
        counted = f"{len(works)} program{'s' if len(works) > 1 else ''} ({_numbers_text(found)})"
        programs = f"{counted}, {seen_again} of them seen again in another process"
        yield f"  {status}  {kind}: {programs}; program {smallest.numbers[0]}:"
        yield from _program_lines(FuzzProgram.from_json(smallest.program), smallest.inputs)
        yield f"  repeat: {_number_command(smallest.numbers[0], settings)}"
    if len(ordered) > _SHOWN_WAITING:
        yield f"  and {len(ordered) - _SHOWN_WAITING} other symptoms"
    for number, verdict in state.awaiting_draw.items():
        yield f"  {verdict['status']}: program {number}"
        yield f"  repeat: {_number_command(number, settings)}"
    yield ""


def _numbers_text(found: Sequence[FoundProgram]) -> str:
    numbers = [str(one.numbers[0]) for one in found]
    return ", ".join(numbers[:_SHOWN_FLAKY]) + (", ..." if len(numbers) > _SHOWN_FLAKY else "")


def repeat_command(bucket: FoundBucket, settings: CampaignSettings, *, corpus: Path | None) -> str:
    """The command that repeats the finding: from its file with the first wrong rung, else by the drawn program's number."""
    if corpus is None:
        return _number_command(bucket.numbers[0], settings)
    return shlex.join(
        [
            "torch-oracle",
            "fuzz",
            *_subject_words(bucket, settings),
            "--replay",
            str(corpus / "findings" / f"{bucket.key}.json"),
        ]
    )


def _subject_words(bucket: FoundBucket, settings: CampaignSettings) -> list[str]:
    """Options that name the first wrong rung, since later stages are not needed to see the finding."""
    own = settings.subject
    if bucket.rung in ("", own.name):
        return _own_words(settings)
    shared = {key: value for key, value in own.options.items() if key in SHARED_OPTIONS}
    options = ",".join(f"{key}={json.dumps(value)}" for key, value in shared.items())
    return ["--subject", f"{bucket.rung}[{options}]" if options and "[" not in bucket.rung else bucket.rung]


def _own_words(settings: CampaignSettings) -> list[str]:
    file = ["--subjects-file", settings.subjects_file] if settings.subjects_file else []
    return ["--subject", settings.subject.name, *file]


def _number_command(number: int, settings: CampaignSettings) -> str:
    """The command that judges program `number` on the campaign's own subject, which influences the programs that are drawn."""
    words = ["torch-oracle", "fuzz", *_own_words(settings), "--seed", str(settings.seed), "--number", str(number)]
    words += ["--focus", settings.focus] if settings.focus != "all" else []
    words += ["--max-statements", str(settings.max_statements)] if settings.max_statements != 6 else []
    return shlex.join(words)


def summary_json(
    settings: CampaignSettings, state: CampaignState, *, corpus: Path | None, rechecked: Sequence[Recheck] = ()
) -> dict[str, Any]:
    """The summary as JSON."""
    return {
        "campaign": settings.identity(),
        "programs": state.programs,
        "statuses": dict(state.statuses),
        "refused": dict(state.refused),
        "relations": dict(state.relations),
        "symptoms": dict(state.symptoms),
        "buckets": [bucket_json(bucket, settings, corpus=corpus) for bucket in state.buckets.values()],
        "known_issues": {found.issue.id: found.outcome for found in rechecked},
        "waiting": [
            {"is_confirmed": work.kind == "reduce", **asdict(work.found)}
            for work in state.waiting
            if work.found is not None
        ],
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
    """A bucket as JSON, without the scripts, which are files of their own (`findings/KEY.py`)."""
    data = asdict(bucket)
    del data["script"], data["short_script"]
    return {**data, "repeat": repeat_command(bucket, settings, corpus=corpus)}


def drawn_sizes(state: CampaignState) -> dict[str, int]:
    """The number of distinct features of structured programs by kind, including rounds that are not closed."""
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
    if state.error_count:
        lost = f", {state.lost} of {state.programs} programs lost to them" if state.lost else ""
        yield f"  {state.error_count} internal errors of torch-oracle{lost}, please report them:"
        yield from (f"    {error.strip().splitlines()[-1][:200]}" for error in state.errors[:_SHOWN_ERRORS])


def _flaky_text(flaky: list[FoundProgram]) -> str:
    symptoms = dict.fromkeys(Symptom.from_json(found.symptom).kind or found.symptom["status"] for found in flaky)
    numbers = ", ".join(str(found.numbers[0]) for found in flaky[:_SHOWN_FLAKY])
    return f"{'; '.join(list(symptoms)[:_SHOWN_FLAKY])}; numbers {numbers}"


def _specs_text(args: Any) -> str:
    """Argument specs in short: "float32[3, 1] (stride (1, 3), drawn by choice ...)"."""
    return "inputs of the source" if args is None else ", ".join(_spec_text(spec) for spec in args)


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
        if isinstance(fill, Mapping):
            fields = ", ".join(f"{key} {value}" for key, value in fill.items() if key != "kind")
            notes.append(f"drawn by {fill.get('kind')}: {fields}" if fields else f"drawn by {fill.get('kind')}")
        text = f"{spec['dtype']}{list(spec['shape'])}"
        return f"{text} ({', '.join(notes)})" if notes else text
    if spec.get("$") == "same":
        return f"the same as {spec.get('id')}"
    return str({key: value for key, value in spec.items() if key != "$"} or spec.get("$"))
