"""Systematic errors over many cases: found together where no case tells, and what eager has too is no finding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oracle.records import Record
from oracle.verdict import BiasSum, Status
from results.bias import find_bias, tables_of
from results.compare import compare
from results.compare import tables_of as comparison_tables
from results.render import plain
from results.report import selected, summary
from results.store import Store
from results.tests import fabricate


def bias(
    mean: float, *, eager: float = 0.0, error: float = 0.05, weight: int = 100, dtype: str = "bfloat16"
) -> BiasSum:
    return BiasSum(
        dtype=dtype,
        eps=2.0**-7,
        tensors=1,
        weight=weight,
        subject=weight * mean,
        eager=weight * eager,
        variance=(weight * error) ** 2,
    )


def record(
    number: int, one: BiasSum, *, status: Status = Status.PASS, device: str = "cpu", group: str = "softmax"
) -> Record:
    made = fabricate.record(fabricate.case(f"{group}/{one.dtype}/forward/sample-{number}", dtype=one.dtype), status)
    return replace(made, device=device, verdict=replace(made.verdict, bias=(one,)))


def test_a_bias_that_no_case_shows_is_found_over_many():
    records = [record(number, bias(0.13)) for number in range(48)]
    assert find_bias(records[:4]) == []
    (found,) = find_bias(records)
    assert found.cases == 48
    assert not found.is_advisory
    assert found.text == "bfloat16 results of softmax are 0.1 % too large over 48 cases, eager's 0 %"
    assert found.limit == pytest.approx(0.05 + 5 * 0.05 / 48**0.5)


def test_errors_of_both_signs_even_out():
    assert find_bias([record(number, bias(0.13 * (-1) ** number)) for number in range(48)]) == []


def test_a_bias_that_eager_has_too_is_no_finding():
    assert find_bias([record(number, bias(0.13, eager=-0.13)) for number in range(48)]) == []


def test_results_that_are_too_small_are_told_so():
    (found,) = find_bias([record(number, bias(-0.5)) for number in range(48)])
    assert "0.39 % too small" in found.text


def test_each_operator_dtype_and_subject_is_added_apart():
    records = [record(number, bias(0.13), group=f"op{number}") for number in range(48)]
    assert find_bias(records) == []


def test_one_case_is_judged_by_itself_only():
    assert find_bias([record(0, bias(5.0))]) == []


def test_cases_that_are_findings_already_are_left_out():
    assert find_bias([record(number, bias(0.5), status=Status.FAIL_ACCURACY) for number in range(48)]) == []


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "bfloat16"), ("cpu", "float32")])
def test_gpus_and_float32_give_advice_that_comes_last(device, dtype):
    records = [record(number, bias(0.5, dtype=dtype), device=device) for number in range(48)]
    records += [record(number, bias(0.13), group="add") for number in range(48)]
    first, second = find_bias(records)
    assert (first.group, first.is_advisory) == ("add", False)
    assert (second.group, second.is_advisory) == ("softmax", True)


def test_sums_survive_the_store_and_json(tmp_path: Path):
    records = [record(number, bias(0.13)) for number in range(48)]
    path = fabricate.database(tmp_path / "results.db", records)
    with Store.open(path, create=False) as store:
        read = list(store.records(with_missing=True))
    assert [one.verdict.bias for one in read] == [one.verdict.bias for one in records]
    assert Record.from_json(json.loads(json.dumps(records[0].to_json()))).verdict.bias == records[0].verdict.bias
    (found,) = find_bias(read)
    assert json.loads(json.dumps(found.to_json()))["relative"] == pytest.approx(0.13 * 2**-7)


def test_sums_of_two_dtypes_are_refused():
    with pytest.raises(ValueError, match="one dtype"):
        _ = bias(0.1) + bias(0.1, dtype="float16")


def test_a_run_tells_its_systematic_errors():
    records = [record(number, bias(0.13)) for number in range(48)]
    text = "\n".join(part if isinstance(part, str) else plain(part) for part in summary(selected(records)))
    assert "systematic errors (1)" in text
    assert "bfloat16 results of softmax are 0.1 % too large over 48 cases" in text
    assert tables_of([]) == []


def test_a_comparison_tells_what_only_its_head_has(tmp_path: Path):
    right = [record(number, bias(0.01)) for number in range(48)]
    wrong = [record(number, bias(0.13)) for number in range(48)]
    path = tmp_path / "results.db"
    with Store.open(path, create=True) as store:
        for run_id, records in (("base", right), ("head", wrong)):
            fabricate.write_run(store, records, run_id=run_id)
        base_run, head_run = store.run("base"), store.run("head")
    one = compare(right, wrong, base_run=base_run, head_run=head_run)
    assert [finding.group for finding in one.new_bias] == ["softmax"]
    assert not one.has_regression
    assert any(table.title == "systematic errors of head alone (1)" for table in comparison_tables(one))
    assert compare(wrong, wrong, base_run=head_run, head_run=head_run).new_bias == ()
