"""The target of the commands of this package: one program on one subject, named in one of four ways.

| target | program |
|---|---|
| `model.py:Net` | a function or module of a user's file (`oracle.program.user_file`) |
| `RUN:SUITE/NAME@SUBJECT`, `latest:...` | a case of a run in a database of results |
| `issue:197829` | the program of a known issue of the ledger |
| `findings/KEY.json` | a finding of a fuzz campaign |
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.campaign.corpus import read_json
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.errors import UsageError
from oracle.known.ledger import KnownIssue, load_ledger
from oracle.program import Program
from oracle.program.user_file import TARGET, program_of_file
from oracle.subjects.registry import check_requirements, resolve
from oracle.subjects.spec import SubjectSpec
from results.store import Store
from triage.options import DEFAULT_SUBJECT

_CASE = re.compile(r"^(?P<run>[^/:]+):(?P<case>[^@]+/[^@]*@.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """Options that only a target in a user's file has."""

    inputs: str = ""
    calls: int = 3
    seed: int = 0
    dynamic: bool | None = None
    allow_effects: bool = False

    def words(self) -> list[str]:
        """The options as words of a command line; those with their default are left out."""
        words = ["--inputs", self.inputs] if self.inputs else []
        words += ["--calls", str(self.calls)] if self.calls != 3 else []
        words += ["--seed", str(self.seed)] if self.seed else []
        words += [] if self.dynamic is None else ["--dynamic" if self.dynamic else "--static"]
        return words + (["--allow-effects"] if self.allow_effects else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A program, the subject that is in question, and the words that name both on a command line."""

    name: str
    program: Program
    subject: SubjectSpec
    words: tuple[str, ...]

    def command(self, verb: str) -> str:
        """A command line about the target, without a subject: "torch-oracle check model.py:Net --inputs ..."."""
        return shlex.join(["torch-oracle", verb, *self.words])

    def next_step(self, verb: str, subject: str, *words: str, what: str) -> str:
        """The line that names the next command about the target on a subject, and what that does. For stderr."""
        return f"next: {shlex.join(['torch-oracle', verb, *self.words, '--subject', subject, *words])}\n      {what}\n"


def find_target(text: str, *, subject: str, db: str, options: FileOptions) -> Target:
    """The target that a text names. `subject` is "" for that of the record, or else inductor.

    Raises UsageError for a text of another form, and for a file, run, case or issue that does not exist.
    """
    if TARGET.match(text):
        program = program_of_file(
            text,
            inputs=options.inputs,
            calls=options.calls,
            seed=options.seed,
            dynamic=options.dynamic,
            allow_effects=options.allow_effects,
        )
        return _on(text, program, subject or DEFAULT_SUBJECT, [text, *options.words()])
    is_record = text.startswith("issue:") or text.endswith(".json") or _CASE.match(text) is not None
    if is_record and options != FileOptions():
        raise UsageError(
            seen=f"{shlex.join(options.words())} for {text!r}", expected="these options for FILE.py:NAME only",
            do="leave them out: a record knows its inputs",
        )  # fmt: skip
    if text.startswith("issue:"):
        issue = _issue(text.removeprefix("issue:"))
        program = replace(issue.program, name=issue.program_name)
        return _on(text, program, subject or issue.subject, [text])
    if text.endswith(".json"):
        return _finding(text, subject)
    if (found := _CASE.match(text)) is not None:
        with Store.open(db, create=False, read_only=True) as store:
            program = Program.from_json(store.program(found["case"], found["run"]))
        _, _, own = found["case"].rpartition("@")
        return _on(found["case"], program, subject or own, [text, "--db", db])
    module, _, name = text.partition(":")
    path = f"{module.replace('.', '/')}.py"
    raise UsageError(
        seen=f"target {text!r}",
        expected="FILE.py:NAME, RUN:CASE (such as latest:opinfo/add/0@inductor), issue:ID, or a finding's .json file",
        do=f"did you mean {path}:{name}?" if name and Path(path).is_file()
        else "`torch-oracle show` lists cases, `torch-oracle issues` lists issues",
    )  # fmt: skip


def case_of(text: str) -> tuple[str, str] | None:
    """The run and the case that a text such as "latest:opinfo/add/0@inductor" names; None for another form."""
    found = _CASE.match(text)
    return None if found is None else (found["run"], found["case"])


def _on(name: str, program: Program, subject: str, words: Sequence[str]) -> Target:
    spec = resolve(subject)
    check_requirements(spec)
    return Target(name=name, program=program, subject=spec, words=tuple(words))


def _issue(word: str) -> KnownIssue:
    issues = load_ledger().issues
    named = [issue for issue in issues if word in (issue.id, issue.id.removeprefix("pytorch-"), issue.program_name)]
    if len(named) == 1:
        return named[0]
    among = named or issues
    near = difflib.get_close_matches(word, [issue.id for issue in among], n=3, cutoff=0.3)
    raise UsageError(
        seen=f"issue:{word}, which names {len(named)} issues", expected="the id of one entry of the ledger",
        do=f"one of {', '.join(near)}" if near else "`torch-oracle issues` lists them",
    )  # fmt: skip


def _finding(text: str, subject: str) -> Target:
    path = Path(text)
    if not path.is_file():
        raise UsageError(seen=f"no file {path}", expected="a finding's .json file", do="check the path")
    data = read_json(path)
    inner = data.get("program")
    try:
        program = to_program(FuzzProgram.from_json(inner if isinstance(inner, dict) else data), name=path.stem)
    except UsageError as error:
        raise UsageError(
            seen=f"{path}: {error.seen}", expected="a finding's .json file, as a fuzz campaign wrote it",
            do="restore it, or name another one",
        ) from error  # fmt: skip
    own = data.get("subject") or data.get("rung") or DEFAULT_SUBJECT
    return _on(text, program, subject or str(own), [text])
