"""A run whose every text tries to break out of the page that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from oracle.records import PlannedCase, Record
from oracle.verdict import Status
from results.store import Store
from results.tests import fabricate


def hostile(field: str) -> str:
    """Text that sets `window.hacked` if a page takes it for markup, an attribute, a script, a template or a link."""
    run = f"window.hacked='{field}'"
    return (
        f"{field}</script><script>{run}</script><img src=x onerror={run}>\"'><svg onload={run}>"
        f"{{{{ {run} }}}}${{{run}}}</style></textarea>--><!--]]>javascript:{run}\u202e\u2028\x1b[2J&lt;b&gt;%3Cb%3E"
    )


_SOURCE = f"def program(x):\n    return '''{hostile('source')}'''\n"


def _planned(number: int) -> PlannedCase:
    name, subject = f"{hostile('name')}/{number}", hostile("subject")
    return PlannedCase(
        case_id=f"{hostile('suite')}/{name}@{subject}",
        suite=hostile("suite"),
        group=hostile("group"),
        name=name,
        subject=subject,
        dtype=hostile("dtype"),
        direction=hostile("direction"),
        device=hostile("device"),
        tags=(hostile("tag"),),
        program={"format": 1, "name": name, "source": _SOURCE, "calls": [{"before": hostile("before")}]},
    )


def hostile_record(number: int) -> Record:
    """A failing record; all its text is hostile."""
    verdict = fabricate.verdict(Status.FAIL_ACCURACY, hostile("symptom") + "\ud800\0")
    worst = replace(
        fabricate.WORST,
        where=hostile("where"),
        eager=hostile("eager"),
        subject=hostile("value"),
        truth=hostile("truth"),
    )
    verdict = replace(
        verdict,
        worst=worst,
        stage=hostile("stage"),
        witnesses=((hostile("witness"), 3),),
        also=(hostile("also"),),
        explained=(hostile("explained"),),
    )
    return Record.of(
        _planned(number),
        run_id=hostile("run"),
        verdict=verdict,
        measurements=fabricate.measurements(1.5),
        repro=hostile("repro"),
        started_at=hostile("started"),
        traceback=f'File "<program x>", line 2\n{hostile("traceback")}\ud800\0',
    )


def hostile_run(path: Path, records: Iterable[Record]) -> Path:
    """A database whose run has hostile facts, arguments and records of `hostile_record`."""
    records = list(records)
    run_id = records[0].run_id
    known = replace(records[0], name=f"{records[0].name}/known")
    known = replace(known, case_id=f"{known.suite}/{known.name}@{known.subject}")
    known = replace(
        known, verdict=replace(known.verdict, status=Status.KNOWN, issue=hostile("issue"), observed=hostile("observed"))
    )
    everything = [*records, known]
    planned = [replace(_planned(i), case_id=record.case_id, name=record.name) for i, record in enumerate(everything)]
    facts = {hostile("key"): hostile("fact"), "cpu_model": hostile("cpu"), "versions": {"torch": hostile("torch")}}
    with Store.open(path, create=True) as store:
        store.begin_planned(
            run_id=run_id, environment=facts, arguments={hostile("option"): [hostile("argument")]}, cases=planned
        )
        store.append(everything)
        store.end_run(run_id, state="complete")
    return path
