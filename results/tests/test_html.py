"""The HTML report as a file: what it holds, how it is escaped, errors for bad input. In a browser: test_html_browser.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from oracle.errors import UsageError
from oracle.records import Record
from oracle.verdict import Status, Verdict
from results.changes import ChangeKind
from results.history import flaky_cases
from results.html.commands import report
from results.html.contents import Contents, Side, columns_of, contents_of, details_of
from results.html.history import is_flaky
from results.html.page import page
from results.html.payload import blocks, number_column, pack, text_column, unpack
from results.html.words import CHANGE_SENTENCES, NOT_PLANNED, STATUS_SENTENCES
from results.store import LATEST, Store
from results.tests import fabricate
from results.tests.hostile import hostile_record, hostile_run

_NAN = float("nan")


def database(path: Path, *runs: Sequence[Record]) -> Path:
    """A database with these runs, "run-1" first."""
    with Store.open(path, create=True) as store:
        for number, records in enumerate(runs, 1):
            fabricate.write_run(store, records, run_id=f"run-{number}")
    return path


def contents(path: Path, *, base: str | None = None, limit: int = 1000) -> Contents:
    earlier = Side.read(str(path), base) if base else None
    return contents_of(Side.read(str(path), LATEST), earlier, limit=limit)


def cases(statuses: str) -> list[Record]:
    """Records of cases 0, 1, ... that pass (p), return wrong numbers (f) or are known (k)."""
    words = {"p": Status.PASS, "f": Status.FAIL_ACCURACY, "k": Status.KNOWN}
    return [fabricate.record(fabricate.case(f"add/float32/{i}"), words[letter]) for i, letter in enumerate(statuses)]


class _Elements(HTMLParser):
    """Every element of a page, with its attributes and the text directly in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2].append(data)

    def named(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, "".join(text)) for name, attributes, text in self.found if name == tag]


def invoke(*words: str | Path) -> str:
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stderr


# ------------------------------------------------------------------------------------------------------------ payload


def test_packed_data_comes_back_and_is_the_same_text_each_time():
    data = {"a": text_column(["x", "y", "x"]), "b": number_column([1.23456789, None, _NAN, float("inf"), 7, 1e-300])}
    assert unpack(pack(data)) == {
        "a": {"words": ["x", "y"], "codes": [0, 1, 0]},
        "b": [1.235, None, None, None, 7, 1e-300],
    }
    assert pack(data) == pack(data)
    assert "<" not in pack({"text": "</script><script>"})
    assert [unpack(block) for block in blocks(list(range(5)), 2)] == [[0, 1], [2, 3], [4]]


# ------------------------------------------------------------------------------------------------- rows and histories


@pytest.mark.parametrize(
    ("word", "expected"),
    [("pppf", False), ("fffp", False), ("pfp", True), ("p..f-p", True), ("pkp", False), ("ff", False), ("", False)],
)
def test_a_case_is_flaky_if_it_turned_twice(word: str, expected: bool):
    assert is_flaky([word]) is expected


def test_in_a_report_too_a_switch_with_another_version_of_the_subject_counts_half(tmp_path: Path):
    for name, versions, expected in (("other", "abc", {}), ("same", "aaa", {"opinfo/add/float32/0@inductor": 1})):
        path = tmp_path / f"{name}.db"
        with Store.open(path, create=True) as store:
            for number, (letter, version) in enumerate(zip("pfp", versions, strict=True), 1):
                tested = {**fabricate.ENVIRONMENT, "subjects": {"inductor": version}}
                fabricate.write_run(store, cases(letter), run_id=f"run-{number}", environment=tested)
        assert contents(path).flags == expected


def test_a_new_failure_that_did_not_repeat_is_flaky_in_a_report(tmp_path: Path):
    good, bad = (
        fabricate.record(fabricate.case()),
        fabricate.record(fabricate.case(), Status.FAIL_ACCURACY, run_id="run-2"),
    )
    with Store.open(tmp_path / "r.db", create=True) as store:
        fabricate.write_run(store, [good], run_id="run-1")
        again = replace(bad, verdict=replace(bad.verdict, reruns=("pass", "pass")))
        fabricate.write_run(store, [again], run_id="run-2")
    assert contents(tmp_path / "r.db", base="run-1").flags == {bad.case_id: 1}


def test_each_row_says_what_changed_and_how_it_ended_in_earlier_runs(tmp_path: Path):
    path = database(tmp_path / "r.db", cases("pppf"), cases("pfpf"), cases("ppff"))
    found = contents(path, base="run-2")
    columns = columns_of(found)
    words = [columns["history"]["words"][code] for code in columns["history"]["codes"]]
    changes = [columns["change"]["words"][code] for code in columns["change"]["codes"]]
    assert words == ["ppp", "pfp", "ppf", "fff"]
    assert changes == ["unchanged", "fixed", "new failure", "still failing"]
    assert found.flags == {"opinfo/add/float32/1@inductor": 1}
    assert [(run["run_id"], run["new"], run["passed"]) for run in columns["runs"]] == [
        ("run-1", 1, 3),
        ("run-2", 2, 2),
        ("run-3", 2, 2),
    ]
    assert [(group.finding.cases, group.new) for group in found.groups] == [(2, 1)]


def test_a_case_whose_program_changed_is_not_flaky(tmp_path: Path):
    with Store.open(tmp_path / "r.db", create=True) as store:
        for number, status in enumerate((Status.PASS, Status.FAIL_ACCURACY, Status.PASS), 1):
            case = fabricate.case(
                source="def program(x):\n    return x\n" if number == 1 else "def program(x):\n    return -x\n"
            )
            store.begin_planned(run_id=f"run-{number}", environment={}, arguments={}, cases=[case])
            store.append([fabricate.record(case, status, run_id=f"run-{number}")])
            store.end_run(f"run-{number}", state="complete")
    found = contents(tmp_path / "r.db")
    assert (found.history.word(0), found.history.steady_words(0)) == ("pfp", (".fp",))
    assert not found.flags


def test_a_case_is_flaky_in_a_report_if_it_is_in_its_history(tmp_path: Path):
    with Store.open(tmp_path / "r.db", create=True) as store:
        case = fabricate.case()
        for number, status in enumerate((Status.PASS, Status.FAIL_ACCURACY, Status.PASS, Status.FAIL_ACCURACY), 1):
            torch = {"torch": f"2.{number % 2}"}  # one version passes, the other one fails
            fabricate.write_run(store, [fabricate.record(case, status)], run_id=f"run-{number}", environment=torch)
        assert flaky_cases(store) == []
        assert contents(tmp_path / "r.db").flags == {}
        for number, status in ((5, Status.FAIL_ACCURACY), (6, Status.PASS)):
            fabricate.write_run(
                store, [fabricate.record(case, status)], run_id=f"run-{number}", environment={"torch": "2.1"}
            )
        assert [case_id for case_id, _ in flaky_cases(store)] == [case.case_id]
        assert contents(tmp_path / "r.db").flags == {case.case_id: 1}


def test_a_case_that_head_did_not_plan_has_a_row(tmp_path: Path):
    path = database(tmp_path / "r.db", cases("pp"), cases("p"))
    columns = columns_of(contents(path, base="run-1"))
    assert [columns["status"]["words"][code] for code in columns["status"]["codes"]] == ["pass", NOT_PLANNED]
    assert [columns["change"]["words"][code] for code in columns["change"]["codes"]] == ["unchanged", "missing row"]


def test_with_too_many_rows_new_failures_are_kept_and_the_page_says_what_is_left_out(tmp_path: Path):
    path = database(tmp_path / "r.db", cases("ppppfp"), cases("pppffp"))
    found = contents(path, base="run-1", limit=2)
    assert columns_of(found)["name"]["words"] == ["add/float32/3", "add/float32/4"]
    text = page(found)
    assert "This page counts all 6 cases. Lists and case pages have 2 rows" in text
    assert "4 cases are left out" in text
    assert "<strong>4</strong><span>pass</span>" in text  # counts are of all cases


def test_records_are_read_only_of_the_rows_that_the_file_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = database(tmp_path / "r.db", cases("ffffffpp"), cases("ffffffff"))
    found = contents(path, base="run-1", limit=3)
    read: list[int] = []
    one_read = Store.records_at
    monkeypatch.setattr(
        Store, "records_at", lambda self, run, ordinals: read.extend(ordinals) or one_read(self, run, ordinals)
    )
    monkeypatch.setattr(Store, "records", lambda *_, **__: pytest.fail("all records are read"))
    page(found)
    assert read == [0, 6, 7]  # the two new failures, and the first of the others


def test_details_follow_the_rows_and_programs_are_stored_once(tmp_path: Path):
    records = [fabricate.record(fabricate.case("add/float32/0", subject=subject)) for subject in ("dynamo", "inductor")]
    records.append(fabricate.record(fabricate.case("add/float32/1"), Status.FAIL_TO_RUN))
    read, programs = details_of(contents(database(tmp_path / "r.db", records)))
    details = list(read)
    assert len(details) == 3
    assert details[0]["program"] == details[1]["program"] != details[2]["program"]
    assert len(programs) == 2
    assert programs[details[2]["program"]]["source"].startswith("def program")
    assert details[2]["traceback"].endswith("RuntimeError: boom")


def test_every_status_and_kind_of_change_has_a_sentence():
    assert set(STATUS_SENTENCES) == {status.value for status in Status} | {NOT_PLANNED}
    assert set(CHANGE_SENTENCES) == {kind.value for kind in ChangeKind}


# --------------------------------------------------------------------------------------------------------------- page


def headline(text: str) -> str:
    return next(said.strip() for attributes, said in _Elements(text).named("h1") if attributes.get("id") == "headline")


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (["ppf"], "1 failing case in 1 group"),
        (["ppp"], "No failures"),
        (["ppf", "ppf"], "No new failures"),
        (["ppp", "fpf"], "2 new failures in 1 group"),
        (["ppp", "pp"], "No new failures, but 1 case without a result"),
        ([""], "The run has no cases"),
        (["p", ""], "The run has no cases"),
    ],
)
def test_the_first_words_say_what_is_new(tmp_path: Path, runs: list[str], expected: str):
    path = database(tmp_path / "r.db", *map(cases, runs))
    assert headline(page(contents(path, base="run-1" if len(runs) > 1 else None))) == expected


def test_the_page_loads_nothing_and_allows_only_its_own_script_and_style(tmp_path: Path):
    text = page(contents(database(tmp_path / "r.db", cases("pf"))))
    elements = _Elements(text)
    assert not [
        link for tag in ("script", "img", "iframe", "link") for link, _ in elements.named(tag) if link.get("src")
    ]
    assert [link["href"] for link, _ in elements.named("link")] == ["data:,"]
    running = [said for attributes, said in elements.named("script") if attributes.get("type") is None]
    assert len(running) == 1
    policy = next(a["content"] for a, _ in elements.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_hostile_text_in_every_field_makes_no_element(tmp_path: Path):
    tame, wild = tmp_path / "tame.db", tmp_path / "wild.db"
    database(tame, [fabricate.record(fabricate.case("add/float32/0"), Status.FAIL_ACCURACY)])
    hostile_run(wild, [hostile_record(0)])
    before, after = (_Elements(page(contents(path))) for path in (tame, wild))
    kinds = {tag for tag, _, _ in before.found}
    assert {tag for tag, _, _ in after.found} - kinds <= {"small"}
    names = {name for _, attributes, _ in before.found for name in attributes}
    assert {name for _, attributes, _ in after.found for name in attributes} <= names  # no onerror, no onload
    assert "hacked" in page(contents(wild))  # the text is there


def test_numbers_that_json_does_not_have_are_text(tmp_path: Path):
    worst = replace(fabricate.WORST, subject="nan", subject_error=_NAN, ulp=float("inf"))
    record = fabricate.record(fabricate.case(), Status.FAIL_ACCURACY)
    record = replace(record, verdict=replace(record.verdict, worst=worst, max_ulp=float("inf")))
    details = list(details_of(contents(database(tmp_path / "r.db", [record])))[0])
    assert details[0]["worst"]["subject_error"] == "nan"
    assert details[0]["max_ulp"] == "inf"
    pack(details)  # raises for NaN


# ------------------------------------------------------------------------------------------------------------ command


def test_the_earlier_run_of_the_same_selection_is_the_base(tmp_path: Path):
    path = database(tmp_path / "r.db", cases("pp"), cases("pf"))
    with Store.open(path, create=True) as store:
        fabricate.write_run(store, cases("p"), run_id="other", arguments={"suite": ["models"]})
        fabricate.write_run(store, cases("ff"), run_id="run-3")
    output = tmp_path / "report.html"
    assert "run run-3 compared with run-2, 2 of 2 cases" in invoke(path, "-o", output)
    assert headline(output.read_text(encoding="utf-8")) == "1 new failure in 1 group"
    assert "compared" not in invoke(path, "-o", output, "--alone")
    assert "compared with run-1" in invoke(f"{path}#run-1", path, "-o", output)
    assert "run other, 1 of 1 cases" in invoke(f"{path}#other", "-o", output)


def test_bad_input_is_refused_and_an_old_report_stays(tmp_path: Path):
    path = database(tmp_path / "r.db", cases("p"))
    output = tmp_path / "report.html"
    output.write_text("old")
    with pytest.raises(UsageError, match="does not exist"):
        invoke(tmp_path / "absent.db", "-o", output)
    with pytest.raises(UsageError, match="run 'nowhere' is not in"):
        invoke(f"{path}#nowhere", "-o", output)
    with pytest.raises(UsageError, match="3 runs"):
        invoke(path, path, path, "-o", output)
    with pytest.raises(UsageError, match="a place that can be written"):
        invoke(path, "-o", tmp_path / "absent" / "report.html")
    assert output.read_text() == "old"


def test_an_unfinished_run_says_so(tmp_path: Path):
    path = fabricate.database(tmp_path / "r.db", cases("p"), unrecorded=[fabricate.case("mul/float32/0")])
    text = page(contents(path))
    assert "The run is interrupted: 1 planned case did not run." in text


def test_a_verdict_without_details_has_a_page(tmp_path: Path):
    record = replace(fabricate.record(fabricate.case()), verdict=Verdict(status=Status.CRASH))
    details = list(details_of(contents(database(tmp_path / "r.db", [record])))[0])
    assert details[0]["compared"] == (0, 0, 0, 0)


def test_the_history_goes_over_two_databases(tmp_path: Path):
    base = database(tmp_path / "base.db", cases("pf"), cases("ff"))
    with Store.open(tmp_path / "head.db", create=True) as store:
        fabricate.write_run(store, cases("fp"), run_id="branch")
    head = Side.read(str(tmp_path / "head.db"), LATEST)
    found = contents_of(head, Side.read(str(base), "run-2"))
    assert [run.run_id for run in found.history.runs] == ["run-1", "run-2", "branch"]
    assert [found.history.word(i) for i in range(2)] == ["pff", "ffp"]
    shorter = contents_of(head, Side.read(str(base), "run-2"), history_runs=2)
    assert [run.run_id for run in shorter.history.runs] == ["run-2", "branch"]
