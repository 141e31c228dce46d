"""The ledger of known issues: every entry is complete, has a program, and was measured; a damaged one is refused."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.errors import UsageError
from oracle.known.ledger import (
    ENTRIES,
    PROGRAMS,
    REGRESSIONS,
    Ledger,
    ledger_named,
    load_ledger,
    program_name,
    programs,
    variants,
)
from oracle.known.seen import Ending, Seen, load_seen
from oracle.known.severity import Severity
from oracle.program import ComparePolicy
from oracle.verdict import Status

LEDGER = load_ledger()
ENTRY = """
[[issue]]
id = "own"
title = "the result is negated"
severity = "wrong value"
rung = "my_pkg:compile"
statuses = ["fail_accuracy"]
expires = 2099-01-01
source = "import torch"
"""


def test_every_program_with_a_file_has_one_entry_and_every_entry_a_program() -> None:
    named = Counter(issue.program_name for issue in LEDGER.issues)
    assert set(named.values()) == {1}
    assert sorted(named) == sorted([*programs(), *variants()])


def test_a_program_in_an_entry_keeps_its_policy_its_seed_and_what_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    issue = next(issue for issue in LEDGER.issues if issue.program_name.startswith("known/"))
    policy = ComparePolicy(strides="ignore", reason="a test")
    program = replace(issue.program, policy=policy, seed=7, expects_raise=True)
    one = Ledger(issues=(replace(issue, program=program),))
    monkeypatch.setattr("oracle.known.ledger.load_ledger", lambda: one)
    assert variants()[issue.program_name].to_program(name=program.name, device="cpu") == program


def test_every_entry_was_measured_and_differs_on_its_rung() -> None:
    newest = LEDGER.seen.versions[-1]
    for issue in LEDGER.issues:
        for case in issue.shown_by:
            endings = LEDGER.seen.measured(case, newest)
            assert any(one.status.is_finding for found in endings.values() for one in found), (issue.id, case)
        own = LEDGER.seen.measured(issue.shown_by[0], newest)[issue.subject]
        assert issue.statuses[0] in [ending.status.value for ending in own], issue.id
        assert newest in LEDGER.torch_versions(issue), issue.id


def test_what_was_measured_belongs_to_an_entry() -> None:
    cases = {case for issue in LEDGER.issues for case in issue.shown_by}
    for minor in LEDGER.seen.versions:
        assert set(LEDGER.seen.by_torch[minor]) <= cases


def test_every_entry_has_a_link_upstream_or_none_and_a_date() -> None:
    upstream = ("https://github.com/pytorch/pytorch/issues/", "https://github.com/pytorch/pytorch/pull/")
    for issue in LEDGER.issues:
        if issue.link:
            assert issue.link.startswith(upstream), issue.id
            assert issue.link.rpartition("/")[2] == issue.id.split("-")[1], issue.id
        assert issue.expires > datetime.date(2026, 11, 1), issue.id


def test_cases_with_several_entries_are_told_apart_by_the_rung() -> None:
    for issue in LEDGER.issues:
        assert issue in LEDGER.of_case(issue.shown_by[0])
        assert LEDGER.of_id(issue.id) is issue
    assert LEDGER.of_id("nothing of that name") is None
    assert LEDGER.of_case(f"{REGRESSIONS}/control/reduction_order") == ()


def test_severities_are_ordered_and_explained() -> None:
    assert [severity.rank for severity in Severity] == list(range(len(Severity)))
    assert all(severity.meaning.endswith(".") for severity in Severity)


def test_names_of_programs_follow_their_files() -> None:
    assert program_name("issue_197829_shifted_slice_copy") == "197829/shifted_slice_copy"
    assert program_name("found_dead_random_write") == "found/dead_random_write"
    assert all((PROGRAMS / f"{snippet.name}.py").is_file() for snippet in programs().values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[issue]]\nid = 'x'\n", "missing title"),
        ("[[issue]\n", "TOML"),
        ("[issues]\n", "beside or instead"),
        (ENTRY.replace("statuses", "states"), "unknown fields states"),
        (ENTRY.replace("fail_accuracy", "fail_acuracy"), "unknown statuses fail_acuracy"),
        (ENTRY.replace("fail_accuracy", "pass"), "unknown statuses pass"),
        (ENTRY.replace("wrong value", "bad"), "unknown severity 'bad'"),
        (ENTRY.replace("2099-01-01", "'soon'"), "which is no date"),
        (ENTRY.replace("source", "# source"), "or neither"),
        (ENTRY + "program = '197829/shifted_slice_copy'\n", "both a program and a source"),
        (ENTRY.replace('source = "import torch"', "program = 'no/such'"), "'no/such'"),
        (
            ENTRY.replace('source = "import torch"', "program = '197829/shifted_slice_copy'\ndynamic = true"),
            "dynamic beside",
        ),
        (ENTRY + "message = 'Error*'\n", "a message without the status fail_to_run"),
        (ENTRY + "finding = { kinds = [] }\n", "finding without operators"),
        (ENTRY + "finding = { operators = [], colour = 1 }\n", "unknown fields colour in finding"),
        (ENTRY + ENTRY, "twice"),
    ],
)
def test_a_damaged_ledger_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_ledger(path)


def test_a_ledger_is_named_by_a_word_or_a_path(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(ENTRY)
    own = ledger_named(str(tmp_path / "own.toml"))
    assert own is not None
    assert [issue.cause for issue in own.issues] == ["the result is negated"]
    assert ledger_named("none") is None
    assert ledger_named("torch") is load_ledger()
    assert ledger_named(str(ENTRIES)) is not None
    with pytest.raises(UsageError, match="no file"):
        ledger_named(str(tmp_path / "absent.toml"))


def test_ledgers_are_joined_and_ids_are_unique_among_them(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(ENTRY)
    both = ledger_named(f"torch, {path}")
    assert both is not None
    assert [issue.id for issue in both.issues] == [*(issue.id for issue in LEDGER.issues), "own"]
    assert both.seen == LEDGER.seen
    path.write_text(ENTRY.replace('"own"', f'"{LEDGER.issues[0].id}"'))
    with pytest.raises(UsageError, match="twice in torch,"):
        ledger_named(f"torch,{path}")


def test_an_own_entry_may_have_every_field_of_a_program(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    more = """
found = "run 1"
seed = 3
expects_raise = true
policy = { strides = "ignore", reason = "any" }
[[issue.calls]]
backward = true
"""
    path.write_text(ENTRY + more)
    (issue,) = load_ledger(path).issues
    assert (issue.program_name, issue.found, issue.program.seed) == ("own.toml/own", "run 1", 3)
    assert issue.program.expects_raise
    assert issue.program.policy.strides == "ignore"
    assert [call.backward for call in issue.program.calls] == [True]


def test_a_fixed_entry_explains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    refusal = ENTRY.replace('"fail_accuracy"', '"fail_to_run"') + "message = 'Error*'\n"
    path.write_text(refusal)
    assert load_ledger(path).of_case("regressions/own.toml/own")
    assert load_ledger(path).with_message(Status.FAIL_TO_RUN, "Error: no")
    path.write_text(refusal + "fixed = '2.14.0'\n")
    assert load_ledger(path).issues[0].fixed == "2.14.0"
    assert not load_ledger(path).of_case("regressions/own.toml/own")
    assert not load_ledger(path).with_message(Status.FAIL_TO_RUN, "Error: no")


@pytest.mark.parametrize("text", ["", "[]", '{"2.13": {"a/b": {"dynamo": [["no status", "", ""]]}}}', '{"2.13": 1}'])
def test_damaged_measurements_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text(text)
    with pytest.raises(UsageError, match=r"seen\.json"):
        load_seen(tmp_path / "seen.json")


def test_a_version_that_was_not_measured_is_held_to_the_newest_that_was() -> None:
    older = {"s/p": {"dynamo": (Ending(status=Status.FAIL_GRAD, kind="grad: number"),)}}
    newer = {"s/p": {"dynamo": (Ending(status=Status.FAIL_STRIDE, kind="output.stride()"),)}}
    seen = Seen(by_torch={"2.9": older, "2.13": newer})
    assert seen.versions == ("2.9", "2.13")
    assert seen.endings("s/p", "2.9.1") == older["s/p"]
    assert seen.endings("s/p", "2.14.0+cpu") == newer["s/p"]
    assert seen.measured("s/p", "2.14.0+cpu") == {}
    assert Seen().endings("s/p", "2.13.0") == {}
    both = Seen(by_torch={"2.9": older, "2.13": {"s/p": {**newer["s/p"], "inductor": newer["s/p"]["dynamo"]}}})
    assert both.endings("s/p", "2.9.1") == {**older["s/p"], "inductor": newer["s/p"]["dynamo"]}  # not run with 2.9


@pytest.mark.parametrize(
    ("older", "shown", "measured"),
    [
        (Status.FAIL_GRAD, ("2.9", "2.13"), True),
        (Status.PASS, ("2.13",), True),
        (Status.EAGER_FAIL_TO_RUN, ("2.13",), False),  # eager lacks the operator: nothing was compared
        (None, ("2.13",), False),
    ],
)
def test_a_version_in_which_a_program_was_not_compared_says_nothing_about_its_bug(
    older: Status | None, shown: tuple[str, ...], measured: bool
) -> None:
    issue = LEDGER.issues[0]
    case, wrong = issue.shown_by[0], Ending(status=Status.FAIL_GRAD, kind="grad: number")
    by_case = {} if older is None else {case: {issue.subject: (Ending(status=older, kind=""),)}}
    one = Ledger(issues=(issue,), seen=Seen(by_torch={"2.9": by_case, "2.13": {case: {issue.subject: (wrong,)}}}))
    assert one.torch_versions(issue) == shown
    assert one.is_measured(issue, "2.9") == measured


def test_the_newest_endings_of_an_issue_are_those_of_the_newest_torch() -> None:
    issue = LEDGER.issues[0]
    case = issue.shown_by[0]
    older, newer = Ending(status=Status.FAIL_GRAD, kind="grad: number"), Ending(status=Status.PASS, kind="")
    seen = Seen(by_torch={"2.9": {case: {"dynamo": (older,)}}, "2.13": {case: {"dynamo": (newer,)}}})
    assert Ledger(issues=(issue,), seen=seen).newest_endings(issue) == {"dynamo": (newer,)}
    assert Ledger(issues=(issue,)).newest_endings(issue) == {}
