"""Writes docs/known-bugs.md, and the measured results of known issues (oracle/known/seen.json).

    torch-oracle sweep --suite regressions --subject dynamo,aot_eager,inductor --known none --db seen.db
    python docs/tools/known_issues.py --measure seen.db    # keep the results of every case that the ledger names
    python docs/tools/known_issues.py --write              # write the page

`--measure` takes the latest run of each database. For another version of torch it is enough that an interpreter with that version
runs each program on its own rung: `torch-oracle issues '*' --run --json > seen-2.12.jsonl`. `--measure` takes such files too, if
their names end in `.jsonl`. A subject's results replace earlier ones with the same minor version of torch;
with `--add` they are added, for programs whose result varies. `--check` fails if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from oracle.known.ledger import SEEN, KnownIssue, Ledger, load_ledger
from oracle.known.seen import Ending, Seen, minor_of
from oracle.known.severity import Severity
from oracle.verdict import Status, Verdict
from results.store import Store

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "known-bugs.md"
_NOT_MEASURED = (Status.MISSING, Status.NOT_RUN, Status.KNOWN, Status.XPASS, Status.TIMEOUT, Status.OOM)


End = tuple[str, str, Verdict]  # a case without its subject ("suite/name"), the subject, how it ended


def run_of(db: str) -> Iterator[tuple[str, list[End]]]:
    """The version of torch and the ends of the latest run in a database."""
    with Store.open(db, create=False, read_only=True) as store:
        run = store.run()
        records = store.records(run.run_id)
        ends = [(f"{record.suite}/{record.name}", record.subject, record.verdict) for record in records]
        yield run.environment["worker"]["torch"], ends


def lines_of(path: Path, ledger: Ledger) -> Iterator[tuple[str, list[End]]]:
    """Read what `torch-oracle issues --run --json` wrote: the version of torch, and how the program of each line ended."""
    for line in path.read_text(encoding="utf-8").splitlines():  # lines about entries that are gone are left out
        told = json.loads(line)
        issue = ledger.of_id(told["id"])
        if issue is not None and issue.subject == told["subject"]:
            yield told["torch"], [(issue.shown_by[0], told["subject"], Verdict.from_json(told["verdict"]))]


def measured(before: Seen, ledger: Ledger, ends: Iterable[End], *, torch: str, add: bool) -> Seen:
    """The earlier measurements, updated with a run with a version of torch ("2.13.0+cpu").

    Raises ValueError for a run that used a ledger, since it does not say how its known cases ended.
    """
    cases = {case for issue in ledger.issues for case in issue.shown_by}
    found: dict[str, dict[str, tuple[Ending, ...]]] = defaultdict(dict)
    for case, by_subject in before.by_torch.get(minor_of(torch), {}).items():
        found[case] = dict(by_subject)
    for case, subject, verdict in ends:
        if verdict.status in (Status.KNOWN, Status.XPASS):
            raise ValueError(f"{case}@{subject} is {verdict.status.value}: run the sweep with --known none")
        if case not in cases or verdict.status in _NOT_MEASURED:
            continue
        now = Ending.of(verdict)
        old = found[case].get(subject, ()) if add else ()
        found[case][subject] = old if any(now.is_like(one) for one in old) else (*old, now)
    kept = {case: endings for case, endings in found.items() if case in cases}
    return Seen(by_torch={**before.by_torch, minor_of(torch): kept})


def _with_how_many(ledger: Ledger, version: str) -> str:
    """A version of torch; with the number of programs that were run with it, if they are not all."""
    count = sum(bool(ledger.seen.measured(f"regressions/{issue.program_name}", version)) for issue in ledger.issues)
    return version if count == len(ledger.issues) else f"{version} ({count} of them)"


def page(ledger: Ledger) -> str:
    """The page: every cause with its entries, most severe first."""
    by_cause: dict[str, list[KnownIssue]] = defaultdict(list)
    for issue in ledger.issues:
        by_cause[issue.cause].append(issue)
    for issues in by_cause.values():
        issues.sort(key=lambda issue: (issue.severity.rank, issue.id))
    causes = sorted(by_cause.items(), key=lambda item: (item[1][0].severity.rank, -len(item[1]), item[0]))
    versions = ", ".join(_with_how_many(ledger, version) for version in ledger.seen.versions)
    lines = [
        "# Known bugs of PyTorch's compilers",
        "",
        f"{len(ledger.issues)} programs on which a compiled PyTorch program differs from eager, because"
        f" of {len(by_cause)} causes. Each was run with torch {versions} on a CPU and judged against eager and fp64;"
        " `torch-oracle issues ID` prints the program and both results, `torch-oracle issues ID --script` a script that"
        " needs only PyTorch. A sweep counts them as `known`, so that it reports only new bugs.",
        "",
        "Made by `docs/tools/known_issues.py --write` from the ledger (`oracle/known/entries`); do not edit.",
        "",
        "| severity | causes | programs | meaning |",
        "| --- | ---: | ---: | --- |",
    ]
    for severity in Severity:
        programs = [issue for issue in ledger.issues if issue.severity is severity]
        worst = [issues for _, issues in causes if issues[0].severity is severity]
        if programs:
            lines.append(
                f"| [{severity.value}](#{_anchor(severity)}) | {len(worst)} | {len(programs)} | {severity.meaning} |"
            )
    for severity in Severity:
        of_severity = [(cause, issues) for cause, issues in causes if issues[0].severity is severity]
        if not of_severity:
            continue
        lines += ["", f"## {severity.value[0].upper()}{severity.value[1:]}", ""]
        for cause, issues in of_severity:
            lines += _cause_lines(cause, issues, ledger)
    return "\n".join(lines) + "\n"


def _cause_lines(cause: str, issues: list[KnownIssue], ledger: Ledger) -> list[str]:
    lines = [f"### {cause[0].upper()}{cause[1:]}", ""]
    for issue in issues:
        link = f" ([{_short(issue.link)}]({issue.link}))" if issue.link else ""
        answer = _answer(issue, ledger)
        lines.append(f"* **{issue.title}**{link}  ")
        lines.append(f"  `{issue.id}`, first wrong rung {issue.subject}" + (f": {_code(answer)}" if answer else ""))
    return [*lines, ""]


def _answer(issue: KnownIssue, ledger: Ledger) -> str:
    """The measured symptom of its program on its rung, with the newest version of torch."""
    endings = ledger.newest_endings(issue).get(issue.subject, ())
    text = next((ending.symptom for ending in endings if ending.symptom), "")
    return text if len(text) <= 160 else text[:157] + "..."


def _code(text: str) -> str:
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _short(link: str) -> str:
    return f"pytorch#{link.rpartition('/')[2]}" if "github.com/pytorch/pytorch" in link else "report"


def _anchor(severity: Severity) -> str:
    return severity.value.replace(" ", "-")


def _one_line_a_case(seen: Seen) -> str:
    """JSON with one line per case, so that a diff shows changed cases."""
    versions = []
    for minor, by_case in seen.to_json().items():
        cases = [f"  {json.dumps(case)}: {json.dumps(found, ensure_ascii=False)}" for case, found in by_case.items()]
        versions.append(f" {json.dumps(minor)}: {{\n" + ",\n".join(cases) + "\n }")
    return "{\n" + ",\n".join(versions) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--measure", nargs="+", metavar="FILE", help="databases whose latest runs are taken, or .jsonl files"
    )
    what.add_argument("--write", action="store_true", help="write the page")
    what.add_argument("--check", action="store_true", help="fail if the page is out of date")
    parser.add_argument("--add", action="store_true", help="with --measure: also keep earlier results")
    options = parser.parse_args()
    ledger = load_ledger()
    if options.measure:
        seen = ledger.seen
        for source in options.measure:
            for version, ends in lines_of(Path(source), ledger) if source.endswith(".jsonl") else run_of(source):
                seen = measured(seen, ledger, ends, torch=version, add=options.add)
        SEEN.write_text(_one_line_a_case(seen), encoding="utf-8")
        return 0
    text = page(ledger)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write("docs/known-bugs.md is out of date: run docs/tools/known_issues.py --write (make fix does)\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
