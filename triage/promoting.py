"""The command `torch-oracle promote`: a wrong program becomes an entry of a ledger, a fixed one a regression test.

The program is minimised and localised first, and the entry is run from the file as a sweep would run it. Only an entry that ends
as it says is written. Exit code 0: the entry is written. Everything else is a usage error, and leaves the ledger as it was.
"""

from __future__ import annotations

import ast
import datetime
import glob
import os
import re
import shlex
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import tomlkit
import torch
from tomlkit.exceptions import ConvertError

from fuzz.program.structure import FuzzProgram
from fuzz.triage.bucket import operators_of
from fuzz.triage.inputs_in_source import inputs_in_source
from fuzz.triage.issue_text import title_of
from oracle.errors import UsageError
from oracle.known.ledger import load_ledger
from oracle.known.severity import Severity
from oracle.known_runs import verdicts_of
from oracle.localisation.report import Localisation
from oracle.localisation.search import Questions
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.program.user_file import TARGET, package_of
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import symptom_of
from oracle.verdict import Status, Verdict
from results.groups import severity_of
from results.store import Store
from triage.quiet import without_prints
from triage.reports import alike_issues, localised, minimised, time_note
from triage.target import FileOptions, Target, case_of, find_target

_EXPIRES_DAYS = 180
_ID = re.compile(r"^[\w.-]+$")
_NOT_IN_ID = re.compile(r"[^\w.]+")


def promote(
    *,
    target: str,
    to: Path,
    inputs: str,
    subject: str,
    id: str,
    title: str,
    link: str,
    expires: str,
    fixed: bool,
    as_it_is: bool,
    budget: float,
    calls: int,
    seed: int,
    dynamic: bool | None,
    allow_effects: bool,
    db: str,
    localises: bool,
) -> None:
    """Keep a wrong program as an entry of a ledger, or a fixed one as a regression test."""
    warnings.simplefilter("ignore")  # of torch and its compilers, about themselves
    options = FileOptions(inputs=inputs, calls=calls, seed=seed, dynamic=dynamic, allow_effects=allow_effects)
    ids = _ids_in(to)
    given = {"id": _checked_id(id, ids), "title": title, "link": link, "expires": _day(expires)}
    with without_prints():
        asked = find_target(target, subject=subject, db=db, options=options)
    entry = (
        _fixed_entry(asked) if fixed else _live_entry(asked, budget=0.0 if as_it_is else budget, localises=localises)
    )
    entry |= {key: value for key, value in given.items() if value}
    entry.setdefault("id", _free(_own_id(asked), ids))
    entry["found"] = f"{_origin(asked, db)}, torch {torch.__version__}, {_today()}" + entry.pop("reduced", "")
    text = _checked_text(entry, asked)
    _append(to, text)
    path, group = shlex.quote(os.path.relpath(to)), glob.escape(to.name)
    sys.stdout.write(
        f"{path}: {entry['id']}\n\n{textwrap.indent(text.strip(), '    ')}\n\n"
        f"torch-oracle issues {entry['id']} --known {path} --run\n"
        f"torch-oracle sweep --suite regressions --known torch,{path} --match {shlex.quote(f'{group}/*')} "
        f"--subject {shlex.quote(entry['rung'])}\n"
    )


# ---------------------------------------------------------------------------------------------------------------- entries


def _live_entry(asked: Target, *, budget: float, localises: bool) -> dict[str, Any]:
    """The entry of a program that differs, minimised within `budget` seconds, or as it is with 0."""
    found = minimised(asked, budget) if budget else None
    sys.stderr.write("" if found is None else time_note(found, budget))
    verdict = found.verdict if found is not None else _judged(asked)
    if not (found.reproduced if found is not None else verdict.status.is_finding):
        runs = f"{found.shown} of {found.runs} runs differ from eager" if found is not None else verdict.status.value
        raise UsageError(
            seen=f"{asked.name} on {asked.subject.name}: {runs}",
            expected="a program that differs", do="to keep it as a test that it stays right, add --fixed",
        )  # fmt: skip
    program = found.source if found is not None else asked.program
    structure = found.program if found is not None else None
    where = localised(asked, program) if localises else None
    rung, verdict = _first_wrong(where) or (found.rung if found is not None else asked.subject, verdict)
    entry: dict[str, Any] = {"title": title_of(verdict, rung, structure or program)}
    entry |= {"severity": _severity(verdict), "rung": rung.name, "statuses": [verdict.status.value]}
    entry |= {"where": where.culprit.text} if where is not None and where.culprit.text else {}
    entry |= _program_fields(program)
    if structure is not None and operators_of(structure):
        entry["finding"] = _pattern(structure, verdict, where)
    if found is not None:
        before, after = found.before.statements, found.after.statements
        entry["reduced"] = f", {before} statements reduced to {after}" if after < before else ""
        for issue in alike_issues(asked, found, rung, verdict, where):
            sys.stderr.write(f"it may be the bug of {issue.id}: {issue.title}\n")
    return entry


def _fixed_entry(asked: Target) -> dict[str, Any]:
    """The entry of a program that agrees with eager, as it is: what differed before is not known any more."""
    verdict = _judged(asked)
    if verdict.status is not Status.PASS:
        raise UsageError(
            seen=f"{asked.name} on {asked.subject.name}: {verdict.status.value}: {verdict.symptom}",
            expected="a program that agrees with eager", do="leave --fixed out, to keep it as a known issue",
        )  # fmt: skip
    return {
        "title": f"{asked.name} agrees with eager on {asked.subject.name}",
        "severity": Severity.VALUE.value,
        "rung": asked.subject.name,
        "statuses": [Status.FAIL_ACCURACY.value],
        "fixed": f"torch {torch.__version__}",
        **_program_fields(asked.program),
    }


def _judged(asked: Target) -> Verdict:
    with without_prints():
        return Questions.about(lambda: instantiate(asked.program)).verdict(asked.subject)


def _first_wrong(where: Localisation | None) -> tuple[SubjectSpec, Verdict] | None:
    """The first wrong rung, and the program's verdict there; None if it was not looked for, or not found."""
    row = None if where is None else next((row for row in where.rungs if row.name == where.first_wrong), None)
    return None if row is None else (resolve(row.name), row.verdict)


def _severity(verdict: Verdict) -> str:
    found = severity_of(verdict.status.value, symptom_of(verdict).kind)
    assert found is not None, "only a case without a record has none"
    return found.value


def _pattern(program: FuzzProgram, verdict: Verdict, where: Localisation | None) -> dict[str, Any]:
    """Which findings of a campaign are this bug: those with its operators, its symptom, and its culprit.

    Without a culprit a finding may have no other operator: a wrong number of `a + b` must not hide those of all its neighbours.
    """
    pattern: dict[str, Any] = {"operators": sorted(operators_of(program))}
    pattern["kinds"] = [_as_glob(symptom_of(verdict).kind)]
    if where is not None and len(where.culprit.parts) == 1:
        pattern |= {"extra": 1, "culprits": [f"{_as_glob(str(where.culprit.parts[0]))}*"]}
    return pattern


def _as_glob(text: str) -> str:
    """A glob that matches this text alone."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _program_fields(program: Program) -> dict[str, Any]:
    """The fields of an entry that hold its program, with its inputs as source."""
    data = inputs_in_source(program).to_json()
    fields = {key: value for key, value in data.items() if key not in ("format", "name")}
    if fields["calls"] == [{}]:
        del fields["calls"]
    return {**fields, "source": f"{fields['source'].strip(chr(10))}\n"}


# ------------------------------------------------------------------------------------------------------------------ checks


def _checked_text(entry: Mapping[str, Any], asked: Target) -> str:
    """The entry as TOML. Raises UsageError if it cannot be written, or does not end as it says when it is run from the file."""
    if neighbours := sorted(_neighbours(entry["source"], asked)):
        raise UsageError(
            seen=f"a program that imports {', '.join(neighbours)} from the folder of {asked.name.partition(':')[0]}",
            expected="a program that runs alone", do="have it minimised for longer with --budget, or move the code",
        )  # fmt: skip
    text = _toml(entry)
    with tempfile.TemporaryDirectory(prefix="torch-oracle-") as folder:
        path = Path(folder) / "entry.toml"
        path.write_text(text, encoding="utf-8")
        (issue,) = load_ledger(path).issues
        ((_, verdict),) = verdicts_of([issue])
    if not issue.agrees_with(verdict):
        raise UsageError(
            seen=f"the program of the entry ends with {verdict.status.value} ({verdict.symptom}) in a process of its own",
            expected="pass" if issue.fixed else " or ".join(issue.statuses),
            do="look at it with `torch-oracle check`; with --as-it-is the program is not minimised",
        )
    return text


_ORDER = ("id", "title", "severity", "rung", "where", "link", "found", "fixed", "expires", "statuses", "source")


def _toml(entry: Mapping[str, Any]) -> str:
    """The entry as an [[issue]] table. Raises UsageError for settings that TOML has not."""
    try:
        table = tomlkit.item({key: entry[key] for key in (*_ORDER, *entry) if key in entry})
        source = entry["source"]
        table["source"] = tomlkit.string(source, multiline=True, literal=_is_literal(source))
        document = tomlkit.document()
        tables = tomlkit.aot()
        tables.append(table)
        document["issue"] = tables
        # TOML leaves out a line break at the beginning of such a string, and the program is easier to read with it.
        return re.sub(r"^source = ('''|\"\"\")", r"source = \1\n", tomlkit.dumps(document), count=1, flags=re.MULTILINE)
    except ConvertError as error:
        raise UsageError(
            seen=f"a program with a setting that is none of TOML's: {error}", expected="text, numbers, lists and tables of them",
            do="simplify the program's config",
        ) from error  # fmt: skip


def _is_literal(text: str) -> bool:
    """Whether a multi-line literal of TOML can hold the text, so that nothing in it is escaped."""
    return "'''" not in text and all(char.isprintable() or char in "\n\t" for char in text)


def _neighbours(source: str, asked: Target) -> Iterator[str]:
    """Modules that a user's program imports from the folder of its file, or from its package."""
    named = TARGET.match(asked.words[0])
    if named is None:
        return
    file = Path(named["file"]).resolve()
    root, _ = package_of(file, ast.parse(file.read_bytes()))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in {name.partition(".")[0] for name in names}:
            if PathFinder.find_spec(name, [str(root), str(file.parent)]) is not None:
                yield name


def _ids_in(path: Path) -> set[str]:
    if path.suffix != ".toml":
        raise UsageError(seen=f"--to {path}", expected="a TOML file", do="write for example --to known.toml")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(seen=f"--to {path}", expected="a file in a folder that exists", do="correct the path")
    return {issue.id for issue in load_ledger(path).issues} if path.exists() else set()


def _checked_id(name: str, ids: set[str]) -> str:
    if name and not _ID.match(name):
        raise UsageError(seen=f"--id {name!r}", expected="letters, digits, '-', '_' and '.'", do="choose a short name")
    if name in ids:
        raise UsageError(
            seen=f"--id {name}, which the ledger has already", expected="a new id", do="choose another one"
        )
    return name


def _own_id(asked: Target) -> str:
    """An id made of what the program is called, without the folders of its file, which another checkout has elsewhere."""
    name = asked.name if case_of(asked.words[0]) or asked.words[0].startswith("issue:") else Path(asked.name).name
    return _NOT_IN_ID.sub("-", name.removesuffix(".json").replace(".py:", "-")).strip("-")


def _free(name: str, ids: set[str]) -> str:
    numbered = (f"{name}-{number}" if number > 1 else name for number in range(1, len(ids) + 2))
    return next(word for word in numbered if word not in ids)


def _day(text: str) -> datetime.date:
    if not text:
        return _today() + datetime.timedelta(days=_EXPIRES_DAYS)
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            seen=f"--expires {text!r}",
            expected="a day such as 2027-06-30",
            do="after this day the issue counts as new again",
        ) from error


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.timezone.utc).date()


def _origin(asked: Target, db: str) -> str:
    """The origin of the program, with a run's id instead of "latest"."""
    text = asked.words[0]
    if (found := case_of(text)) is None:
        return text
    run, case = found
    with Store.open(db, create=False, read_only=True) as store:
        return f"{case} of run {store.run(run).run_id}"


def _append(path: Path, text: str) -> None:
    """Adds an entry at the end of a ledger, whose text stays as it is. The file is replaced at once."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = f"{before.rstrip(chr(10))}\n\n{text}" if before.strip() else text
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(whole, encoding="utf-8")
        load_ledger(part)  # raises UsageError if the ledger would not be valid
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
