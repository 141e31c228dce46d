"""Exports: what is read back is what was written, in layouts that other tools know; files are whole or absent."""

from __future__ import annotations

import csv
import io
import json
import math
import resource
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from oracle.errors import UsageError
from oracle.records import SCHEMA_VERSION, Record
from oracle.verdict import Status
from results import export
from results.commands import FORMATS, format_of
from results.files import write_atomically
from results.junit import junit_of_records
from results.report import selected
from results.schema import FLAT_NAMES, flatten, unflatten
from results.store import RunInfo
from results.tests import fabricate
from results.tests.faults import in_child

RUN = RunInfo(
    run_id="run-1",
    state="complete",
    started_at="2026-01-02T03:04:05+00:00",
    ended_at="2026-01-02T03:05:05+00:00",
    environment=fabricate.ENVIRONMENT,
    arguments=fabricate.ARGUMENTS,
    planned=len(Status),
    recorded=len(Status),
)


def some_records() -> list[Record]:
    timed = fabricate.record(fabricate.case("mul/float32/forward/0"), speedup=1.5)
    slow = fabricate.record(fabricate.case("mul/float32/forward/1"), speedup=0.5)
    return [timed, slow, *fabricate.record_of_every_status()]


def markdown_of(records: list[Record]) -> str:
    return "".join(export.markdown_of(selected(records), run=RUN))


def junit_of(records: list[Record]) -> str:
    return "".join(junit_of_records(records, run_id=RUN.run_id, environment=RUN.environment))


def test_json_lines_come_back_as_the_same_records():
    records = some_records()
    assert export.from_json_lines("".join(export.json_lines(records))) == records


def test_json_lines_of_a_newer_schema_or_of_nonsense_are_refused_with_the_line():
    good = "".join(export.json_lines([fabricate.record(fabricate.case())]))
    newer = json.dumps({**json.loads(good), "schema_version": SCHEMA_VERSION + 1})
    with pytest.raises(UsageError, match="schema_version"):
        export.from_json_lines(newer)
    for line in ("nonsense", "{}", "[]", '{"verdict": 1}'):
        with pytest.raises(UsageError, match="line 2: "):
            export.from_json_lines(good + line)


def test_csv_has_the_documented_columns_and_layout(golden: Callable[[str, str], None]):
    golden("records.csv", "".join(export.csv_lines(some_records())))


def test_csv_reads_back_with_nan_and_unknown_apart():
    record = fabricate.record(fabricate.case('a,b\n"c"/f'), Status.FAIL_ACCURACY)
    worst = replace(fabricate.WORST, subject_error=math.nan, allowed_error=None)
    record = replace(record, verdict=replace(record.verdict, worst=worst))
    (row,) = csv.DictReader(io.StringIO("".join(export.csv_lines([record]))))
    assert tuple(row) == (*FLAT_NAMES, "run_id")
    assert (row["worst_subject_error"], row["worst_allowed_error"]) == ("nan", "")
    assert (row["name"], row["worst_index"]) == ('a,b\n"c"/f', "[0, 3]")


def test_csv_reads_back_whatever_text_a_subject_produced():
    texts = [
        "a\rb",
        "a\r\nb",
        "a\nb",
        "\r",
        "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g",
        'say ""',
        " outer ",
        "a,b",
        "日本",
        "\x1b[2J",
    ]
    for text in texts:
        written = "".join(export.csv_lines([fabricate.record(fabricate.case(), Status.FAIL_ALIAS, symptom=text)] * 2))
        for newline in ("", None):  # None also takes "\r" for the end of a line, as many readers do
            rows = list(csv.DictReader(io.StringIO(written, newline=newline)))
            assert [row["status"] for row in rows] == ["fail_alias"] * 2, text
        assert list(pd.read_csv(io.StringIO(written), keep_default_na=False)["symptom"]) == [text] * 2
        assert next(csv.DictReader(io.StringIO(written, newline="")))["symptom"] == text


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1;2", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n@a", "\uff1d1", '=HYPERLINK("x")'],
)
def test_csv_has_no_text_that_a_spreadsheet_would_run(text: str):
    record = fabricate.record(fabricate.case(name=text), Status.FAIL_ALIAS, symptom=text)
    (row,) = csv.DictReader(io.StringIO("".join(export.csv_lines([record])), newline=""))
    assert row["symptom"] == row["name"] == "'" + text
    (row,) = csv.DictReader(io.StringIO("".join(export.dynamo_accuracy_lines([record])), newline=""))
    assert row["name"] == "'" + text


@pytest.mark.parametrize("text", ["-1.5", "+2", "-inf", "-1+2j", "-0"])
def test_csv_keeps_numbers_as_they_are(text: str):
    record = fabricate.record(fabricate.case(), Status.FAIL_ACCURACY)
    worst = replace(fabricate.WORST, eager=text, subject_error=-1.5)
    record = replace(record, verdict=replace(record.verdict, worst=worst))
    (row,) = csv.DictReader(io.StringIO("".join(export.csv_lines([record]))))
    assert (row["worst_eager"], row["worst_subject_error"]) == (text, "-1.5")


def test_the_accuracy_csv_has_the_layout_of_pytorch_s_benchmarks(golden: Callable[[str, str], None]):
    golden("dynamo_accuracy.csv", "".join(export.dynamo_accuracy_lines(some_records())))


def test_the_speedup_csv_has_the_layout_of_pytorch_s_benchmarks(golden: Callable[[str, str], None]):
    golden("dynamo_speedup.csv", "".join(export.dynamo_speedup_lines(some_records())))


def test_the_benchmark_csvs_use_milliseconds_and_gigabytes_and_zero_for_failures():
    timed = fabricate.record(fabricate.case("a/f"), speedup=2.0)
    failed = fabricate.record(fabricate.case("b/f"), Status.CRASH)
    untimed = fabricate.record(fabricate.case("c/f"))
    rows = list(csv.DictReader(io.StringIO("".join(export.dynamo_speedup_lines([timed, failed, untimed])))))
    assert [row["name"] for row in rows] == ["a/f", "b/f"]
    assert (float(rows[0]["speedup"]), float(rows[0]["abs_latency"])) == (2.0, 1.0)
    assert (float(rows[0]["eager_peak_mem"]), float(rows[0]["compression_ratio"])) == (0.0015, 1.5)
    assert (float(rows[1]["speedup"]), float(rows[1]["abs_latency"])) == (0.0, 0.0)


def test_a_benchmark_csv_of_two_subjects_is_refused():
    records = [fabricate.record(fabricate.case(subject=subject)) for subject in ("dynamo", "inductor")]
    for write in (export.dynamo_accuracy_lines, export.dynamo_speedup_lines):
        with pytest.raises(UsageError, match=r"dynamo, inductor(.|\n)*--subject"):
            list(write(records))


def test_parquet_comes_back_as_the_same_records_with_run_and_environment(tmp_path: Path):
    records = some_records()
    worst = replace(fabricate.WORST, subject_error=math.nan, eager_error=None)
    records[2] = replace(records[2], verdict=replace(records[2].verdict, worst=worst, max_ulp=math.inf))
    path = tmp_path / "run.parquet"
    export.export(records, run=RUN, path=path, format="parquet")
    table = pq.read_table(path)
    read = [unflatten(row, run_id="run-1") for row in table.to_pylist()]
    assert ["".join(export.json_lines([record])) for record in read] == [
        "".join(export.json_lines([r])) for r in records
    ]
    assert table.schema.metadata[b"torch_oracle_run_id"] == b"run-1"
    assert json.loads(table.schema.metadata[b"torch_oracle_environment"]) == fabricate.ENVIRONMENT
    frame = pd.read_parquet(path)
    assert list(frame["status"]) == [record.verdict.status.value for record in records]


def test_parquet_of_no_records_keeps_its_columns(tmp_path: Path):
    export.export([], run=RUN, path=tmp_path / "run.parquet", format="parquet")
    assert pq.read_table(tmp_path / "run.parquet").column_names == [*FLAT_NAMES, "extra", "run_id"]


def test_markdown_of_a_run(golden: Callable[[str, str], None]):
    golden("run.md", markdown_of(some_records()))


# ------------------------------------------------------------------------------------------------------------- JUnit


def test_junit_has_one_case_per_record_and_counts_that_add_up(golden: Callable[[str, str], None]):
    text = junit_of(some_records())
    golden("run.xml", text)
    root = ET.fromstring(text)
    (suite,) = root.findall("testsuite")
    assert int(root.get("tests", "")) == len(suite.findall("testcase")) == len(some_records())
    found = {tag: len(suite.findall(f"testcase/{tag}")) for tag in ("failure", "error", "skipped")}
    assert found == {"failure": int(suite.get("failures", "")), "error": int(suite.get("errors", "")), "skipped": 5}
    assert found["failure"] + found["error"] == sum(status.is_finding for status in Status)
    assert {error.get("type") for error in suite.findall("testcase/error")} == {
        "crash",
        "missing",
        "model_fail_to_load",
    }


def test_junit_messages_of_one_bug_begin_alike_and_its_cases_are_counted():
    cases = [
        fabricate.case(f"add/float32/forward/sample-{i}", subject=s) for i in range(3) for s in ("dynamo", "inductor")
    ]
    records = [
        fabricate.record(
            c, Status.FAIL_ACCURACY, symptom=f"call 0: output[{i}] is {i}.5, but should be 1.0 (fp64 1.0): error 1"
        )
        for i, c in enumerate(cases)
    ]
    records.append(
        fabricate.record(fabricate.case("add/float32/forward/sample-9"), Status.CRASH, symptom="died: signal 11")
    )
    root = ET.fromstring(junit_of(records))
    prefixes = [
        (found.get("message") or "").partition("] ")[0] for found in root.iter() if found.tag in ("failure", "error")
    ]
    assert Counter(prefixes) == {
        "[add: fail_accuracy first on dynamo (output: number)": 6,
        "[add: crash first on inductor (signal 11)": 1,
    }
    counted = {suite.get("name"): suite.findtext("system-out") for suite in root}
    assert counted == {
        "opinfo@dynamo": "new findings:\n3 x add: fail_accuracy first on dynamo (output: number)",
        "opinfo@inductor": "new findings:\n3 x add: fail_accuracy first on dynamo (output: number)\n"
        "1 x add: crash first on inductor (signal 11)",
    }


def test_junit_skips_a_known_issue_with_its_id_and_tells_of_one_that_is_gone():
    records = [fabricate.record(fabricate.case(f"{s.value}/f"), s) for s in (Status.KNOWN, Status.XPASS)]
    known, gone = ET.fromstring(junit_of(records)).iter("testcase")
    skipped = known.find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "known issue made-up-issue (fail_accuracy): accepted: see the link"
    assert [child.tag for child in gone] == ["system-out"]
    assert "made-up-issue" in (gone.findtext("system-out") or "")


def test_markdown_shows_groups_first_and_unfolds_to_every_case():
    cases = [fabricate.case(f"add/float32/forward/sample-{i}") for i in range(50)]
    text = markdown_of([fabricate.record(case, Status.CRASH) for case in cases])
    head, _, folded = text.partition("<details>")
    assert "### new findings: 1 in 50 cases" in head
    assert sum(case.case_id in head for case in cases) == 1
    assert all(case.case_id in folded for case in cases)
    assert folded.count("</details>") == text.count("<details>") == 1
    assert "<summary>failures (50)</summary>\n\n|" in folded  # GitHub reads a table only after an empty line


def test_junit_groups_by_suite_and_subject():
    records = [fabricate.record(fabricate.case(suite=s, subject=j)) for s in ("a", "b") for j in ("x", "y")]
    names = [suite.get("name") for suite in ET.fromstring(junit_of(records))]
    assert names == ["a@x", "a@y", "b@x", "b@y"]


def test_junit_is_well_formed_whatever_text_a_subject_produced():
    nasty = "".join(map(chr, range(0x100))) + "\ud800 \udfff \ufffe \uffff ]]> <a & \"b\" 'c' ∞ 😀"
    record = fabricate.record(fabricate.case("a/" + nasty), Status.FAIL_TO_RUN, symptom=nasty)
    record = replace(record, traceback=nasty, repro=nasty)
    text = "".join(junit_of_records([record], run_id="run-1", environment={nasty: nasty}))
    root = ET.fromstring(text.encode("utf-8"))
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    message = failure.get("message") or ""
    assert "\\x00" in message
    assert "\\x1b" in message
    assert "\\ud800" in message
    assert "]]> <a & \"b\" 'c' ∞ 😀" in message


# ------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("a.csv", None, "csv"),
        ("a.xml", None, "junit"),
        ("a.md", None, "markdown"),
        ("a.jsonl", None, "jsonl"),
        ("a.parquet", None, "parquet"),
        ("a.csv", "dynamo-accuracy", "dynamo-accuracy"),
    ],
)
def test_the_format_is_the_one_given_or_the_suffix_s(name: str, given: str | None, expected: str):
    assert format_of(Path(name), given) == expected


@pytest.mark.parametrize(("name", "given"), [("a.txt", None), ("a", None), ("a.csv", "xlsx")])
def test_an_unknown_format_is_refused_with_the_known_ones(name: str, given: str | None):
    with pytest.raises(UsageError, match="parquet"):
        format_of(Path(name), given)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_replaces_an_existing_file_and_leaves_nothing_else(tmp_path: Path, format: str):
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o640)
    export.export(some_records(), run=RUN, path=path, format=format)
    assert path.read_bytes() != b"old"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(tmp_path: Path, format: str):
    path = tmp_path / "out"
    path.write_text("old")
    records = [fabricate.record(fabricate.case(f"op/{i}", dtype=str(i))) for i in range(2000)]

    def write_on_a_full_disk() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        export.export(records, run=RUN, path=path, format=format)
        return "written"

    message = in_child(write_on_a_full_disk)
    assert message.startswith(f"UsageError: {path}: "), message
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_absent_directory_a_directory_and_a_full_device_are_named(tmp_path: Path):
    for path in (tmp_path / "absent" / "out", tmp_path, Path("/dev/full")):
        with pytest.raises(UsageError) as caught:
            write_atomically(path, "text" * 10_000)
        assert str(path) in caught.value.seen
    assert list(tmp_path.iterdir()) == []


def test_flat_rows_and_records_hold_the_same(tmp_path: Path):
    # The formats above all go through flatten: it must not lose a field that a record has.
    record = some_records()[0]
    empty = fabricate.record(fabricate.case("mul/float32/forward/0"))
    assert unflatten(flatten(record), run_id="run-1") == record
    assert flatten(record) != flatten(empty)
