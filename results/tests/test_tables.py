"""Tables: every row counts once, a missing row counts, and speed is that of right answers only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oracle.verdict import Status
from results import tables
from results.ladder import ladder_of, rung_of
from results.schema import FLAT_NAMES
from results.store import Store
from results.tests import fabricate


def test_a_frame_has_the_documented_columns_and_one_row_per_record():
    records = fabricate.record_of_every_status()
    table = tables.frame(records)
    assert list(table.columns) == [*FLAT_NAMES, "run_id", "is_finding", "is_silent"]
    assert list(table["status"]) == [status.value for status in Status]
    assert list(table["is_finding"]) == [status.is_finding for status in Status]


def test_pass_rates_count_every_row_and_take_the_percentage_of_the_comparable_ones():
    statuses = [Status.PASS] * 3 + [Status.FAIL_ACCURACY, Status.PASS_DUE_TO_SKIP, Status.EAGER_TWO_RUNS_DIFFER]
    records = [fabricate.record(fabricate.case(f"op{i}/float32"), status) for i, status in enumerate(statuses)]
    (row,) = tables.pass_rates(tables.frame(records)).to_dict("records")
    assert (row["suite"], row["subject"], row["cases"], row["comparable"]) == ("opinfo", "inductor", 6, 4)
    assert row["pass_percent"] == pytest.approx(75.0)
    assert (row["pass"], row["fail_accuracy"], row["pass_due_to_skip"]) == (3, 1, 1)


def test_the_pass_rate_of_an_interrupted_run_is_of_what_ran(tmp_path: Path):
    done, left = fabricate.case("add/float32/0"), fabricate.case("sub/float32/0")
    path = fabricate.database(tmp_path / "results.db", [fabricate.record(done)], unrecorded=[left])
    with Store.open(path, create=False) as store:
        table = tables.frame(store.records(with_missing=True))
    (row,) = tables.pass_rates(table).to_dict("records")
    assert (row["cases"], row["not_run"], row["pass_percent"]) == (2, 1, pytest.approx(100.0))
    assert tables.failures(table).empty


def test_a_hole_in_a_complete_run_lowers_the_pass_rate():
    done, hole = fabricate.case("add/float32/0"), fabricate.case("sub/float32/0")
    records = [fabricate.record(done), fabricate.record(hole, Status.MISSING)]
    (row,) = tables.pass_rates(tables.frame(records)).to_dict("records")
    assert (row["cases"], row["missing"], row["pass_percent"]) == (2, 1, pytest.approx(50.0))


def test_a_pass_rate_of_nothing_comparable_is_unknown_not_100_percent():
    table = tables.frame([fabricate.record(fabricate.case(), Status.PASS_DUE_TO_SKIP)])
    assert tables.pass_rates(table)["pass_percent"].isna().all()


def test_the_statuses_of_pass_rates_sum_to_the_cases():
    rates = tables.pass_rates(tables.frame(fabricate.record_of_every_status())).iloc[0]
    assert sum(rates[status.value] for status in Status) == rates["cases"] == len(Status)


def test_failures_are_exactly_the_findings_silent_ones_first_with_the_worst_element():
    found = tables.failures(tables.frame(fabricate.record_of_every_status()))
    statuses = [Status(status) for status in found["status"]]
    assert sorted(statuses) == sorted(status for status in Status if status.is_finding)
    assert [status.is_silent for status in statuses] == sorted((status.is_silent for status in statuses), reverse=True)
    worst = found[found["status"] == "fail_accuracy"].iloc[0]
    assert (worst["worst_where"], worst["worst_index"]) == ("call 0: output[1]", (0, 3))
    assert (worst["worst_eager_error"], worst["worst_subject_error"]) == (1e-7, 3.0)


def test_speed_is_that_of_passing_timed_rows_only():
    records = [
        fabricate.record(fabricate.case("a/f"), speedup=2.0),
        fabricate.record(fabricate.case("b/f"), speedup=0.5),
        fabricate.record(fabricate.case("c/f"), Status.FAIL_ACCURACY, speedup=100.0),
        fabricate.record(fabricate.case("d/f")),  # not timed
    ]
    table = tables.frame(records)
    assert list(tables.speed(table)["speedup"]) == [0.5, 2.0]
    (row,) = tables.speed_summary(table).to_dict("records")
    assert (row["timed"], row["slower"]) == (2, 1)
    assert row["speedup"] == pytest.approx(1.0)  # not clipped: clipping would give 1.41
    assert row["compression_ratio"] == pytest.approx(1.5)


def ladder(**statuses: Status) -> list:
    return [fabricate.record(fabricate.case("add/f", subject=subject), status) for subject, status in statuses.items()]


def test_the_first_wrong_rung_is_the_lowest_that_fails():
    records = ladder(inductor=Status.FAIL_ACCURACY, aot_eager=Status.FAIL_STRIDE, dynamo=Status.PASS, eager=Status.PASS)
    (row,) = tables.first_wrong_rung(tables.frame(records)).to_dict("records")
    assert (row["first_wrong"], row["status"], row["agrees_below"]) == ("aot_eager", "fail_stride", "dynamo")
    assert (row["not_run_below"], row["also_wrong"]) == ("", "inductor")


def test_rungs_that_were_not_run_or_not_compared_are_named_because_the_stage_may_be_earlier():
    records = ladder(dynamo=Status.MISSING, aot_eager=Status.PASS_DUE_TO_SKIP, inductor=Status.CRASH)
    (row,) = tables.first_wrong_rung(tables.frame(records)).to_dict("records")
    assert (row["first_wrong"], row["agrees_below"]) == ("inductor", "")
    assert row["not_run_below"] == "dynamo, aot_eager, aot_eager_decomp_partition"


def test_a_rung_that_is_known_to_differ_does_not_agree():
    records = ladder(dynamo=Status.PASS, aot_eager=Status.KNOWN, inductor=Status.FAIL_ACCURACY)
    (row,) = tables.first_wrong_rung(tables.frame(records)).to_dict("records")
    assert (row["first_wrong"], row["agrees_below"]) == ("inductor", "dynamo")


def test_a_subject_with_options_stands_on_its_rung_and_others_beside_the_ladder():
    assert rung_of("inductor[mode=max-autotune]") == rung_of("inductor") == 4
    assert rung_of("refimpl.make_fx") is None
    records = [
        fabricate.record(fabricate.case("add/f", subject="refimpl.make_fx"), Status.FAIL_ACCURACY),
        fabricate.record(fabricate.case("add/f", subject="inductor"), Status.PASS),
    ]
    assert tables.first_wrong_rung(tables.frame(records)).empty


def test_an_exported_program_stands_on_a_ladder_of_its_own_below_what_it_was_put_through():
    decomposed, saved = "refimpl.export[decomposed=all]", "refimpl.export[decomposed=all,through=saved]"
    assert [rung_of(name) for name in ("refimpl.export[strict=false]", decomposed, saved)] == [1, 2, 3]
    assert ladder_of("export[through=saved,strict=false]") == "export[strict=false]"
    assert ladder_of("inductor[dynamic=true]") == ""
    statuses = {
        "refimpl.export": Status.PASS, decomposed: Status.FAIL_ACCURACY, saved: Status.FAIL_ACCURACY, "dynamo": Status.FAIL_GRAD,
        "export[strict=false,through=saved]": Status.CRASH,
    }  # fmt: skip
    records = [fabricate.record(fabricate.case("add/f", subject=name), status) for name, status in statuses.items()]
    rows = {row["first_wrong"]: row for row in tables.first_wrong_rung(tables.frame(records)).to_dict("records")}
    assert rows.keys() == {decomposed, "dynamo", "export[strict=false,through=saved]"}
    assert (rows[decomposed]["agrees_below"], rows[decomposed]["also_wrong"]) == ("refimpl.export", saved)
    assert {name: row["not_run_below"] for name, row in rows.items()} == {
        decomposed: "", "dynamo": "", "export[strict=false,through=saved]": "export[strict=false]",
    }  # fmt: skip
    assert {row["name"] for row in rows.values()} == {"add/f"}


def test_tables_of_no_records_are_empty():
    table = tables.frame([])
    for make in (tables.pass_rates, tables.failures, tables.speed, tables.speed_summary, tables.first_wrong_rung):
        assert make(table).empty


def test_numbers_that_are_not_known_are_missing_values_not_zeros():
    record = fabricate.record(fabricate.case())
    record = replace(record, measurements=replace(record.measurements, recompiles=None, compile_cold_s=None))
    table = tables.frame([record])
    assert table["recompiles"].isna().all()
    assert table["compile_cold_s"].isna().all()
