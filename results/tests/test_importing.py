"""Files come back as the runs they were made of; a bad row is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oracle.errors import UsageError
from oracle.verdict import Status
from results import export
from results.importing import ImportedRun, Labels, read_file, write_runs
from results.store import Store
from results.tests import fabricate, test_queries

LABELS = Labels(suite="torchbench", subject="inductor")
RECORD = fabricate.record(fabricate.case())


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "runs.db", create=True) as opened:
        yield opened


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_an_export_is_imported_as_the_same_records_once(store: Store, tmp_path: Path, suffix: str):
    test_queries.filled(store)
    records = [record for record in store.records("run-1") if not record.verdict.status.is_absent]
    planned = [record.case_id for record in store.records("run-1", with_missing=True)]
    file = tmp_path / f"run.{suffix}"
    every = store.records("run-1", with_missing=True)
    export.export(every, run=store.run("run-1"), path=file, format=suffix)
    with Store.open(tmp_path / "other.db", create=True) as other:
        write_runs(other, read_file(file, LABELS), source=file.name)
        assert repr(list(other.records("run-1"))) == repr(records)
        assert [case.case_id for case in other.planned("run-1")] == planned
        with pytest.raises(UsageError, match=r"run-1 of run.* already"):
            write_runs(other, read_file(file, LABELS), source=file.name)


# As PyTorch's benchmarks/dynamo/common.py writes them, with and without a tag.
ACCURACY = """dev,name,batch_size,accuracy,calls_captured,unique_graphs,graph_breaks,unique_graph_breaks,compilation_latency
cuda,BERT_pytorch,16,pass,497,1,0,0,21.5
cuda,vision_maskrcnn,1,fail_accuracy,,29,27,,
cuda,sam,1,eager_1st_run_OOM,0,0,0,0,
cuda,llama,1,pass_due_to_skip,0,0,0,0,
"""
SPEEDUP = """dev,name,batch_size,tag,speedup,abs_latency,compilation_latency,compression_ratio,eager_peak_mem,dynamo_peak_mem
cuda,BERT_pytorch,16,x,1.5,20.0,30.25,1.25,2.5,2.0
cuda,vision_maskrcnn,1,x,0.0,0.0,nan,,,
"""
EXPECTED = "name,accuracy,graph_breaks\n\n\nBERT_pytorch,pass,0\n\n\n\nllama,fail_to_run,5\n"


def ends(run: ImportedRun) -> list:
    return [(record.name, record.verdict.status, record.verdict.symptom) for record in run.records]


def test_the_csvs_of_pytorch_s_benchmarks(tmp_path: Path):
    (run,) = read_file(written(tmp_path / "accuracy.csv", ACCURACY), LABELS)
    assert ends(run) == [
        ("BERT_pytorch", Status.PASS, ""),
        ("vision_maskrcnn", Status.FAIL_ACCURACY, "fail_accuracy"),
        ("sam", Status.EAGER_FAIL_TO_RUN, "eager_1st_run_OOM"),
        ("llama", Status.PASS_DUE_TO_SKIP, "pass_due_to_skip"),
    ]
    first = run.records[0]
    assert (first.case_id, first.device) == ("torchbench/BERT_pytorch@inductor", "cuda")
    assert (first.measurements.graphs, first.measurements.compile_cold_s) == (1, 21.5)
    (run,) = read_file(written(tmp_path / "performance.csv", SPEEDUP), LABELS)
    assert ends(run) == [("BERT_pytorch", Status.PASS, ""), ("vision_maskrcnn", Status.FAIL_TO_RUN, "speedup is 0")]
    m = run.records[0].measurements
    assert (m.speedup, m.subject_s, m.eager_s, m.peak_memory, m.eager_peak_memory) == (1.5, 0.02, 0.03, 2e9, 2.5e9)
    (run,) = read_file(written(tmp_path / "inductor_torchbench_training.csv", EXPECTED), LABELS)
    assert ends(run) == [("BERT_pytorch", Status.PASS, ""), ("llama", Status.FAIL_TO_RUN, "fail_to_run")]
    assert run.records[1].measurements.graph_breaks == 5


def line(**changes: object) -> str:
    return json.dumps({**RECORD.to_json(), **changes}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", ACCURACY.replace("fail_accuracy", "fine"), r"line 3: accuracy 'fine'"),
        ("a.csv", ACCURACY.replace("sam", "BERT_pytorch"), r"line 4: .* a second time \(first on line 2\)"),
        ("a.csv", ACCURACY.replace(",21.5", ",-1"), r"line 2: compilation_latency '-1'"),
        ("a.csv", ACCURACY.replace(",21.5", ",21.5,7"), r"line 2: 10 fields"),
        ("a.csv", ACCURACY.replace("llama", ""), r"line 5: an empty name"),
        ("a.csv", ACCURACY.replace("sam", '"sam'), r"line \d+: "),
        ("a.csv", "model,verdict\n", r"line 1: the columns model, verdict"),
        ("a.csv", "", r"line 1: the columns \(none\)"),
        ("a.csv", "name,accuracy\n", "without a row"),
        ("a.csv", b"name,accuracy\n\xff,pass\n", "UTF-8"),
        ("a.jsonl", line() + "{", r"line 2: "),
        ("a.jsonl", "[]\n", r"line 1: a list"),
        ("a.jsonl", line() + line(case_id="b", subject=7), r"line 2: subject is 7"),
        ("a.jsonl", line(started_at={"a": 1}), r"line 1: started_at is"),
        ("a.jsonl", line(verdict={"status": "fine"}), r"line 1: 'fine'"),
        ("a.jsonl", line(run_id=""), r"line 1: an empty run_id"),
        ("a.jsonl", line() + line(), r"line 2: .* a second time \(first on line 1\)"),
        ("a.jsonl", line(nonsense=1), r"line 1: .*nonsense"),
        ("a.parquet", b"PAR1 nonsense", "a Parquet file"),
        ("a.xlsx", "", r"\.jsonl, \.parquet or \.csv"),
    ],
)
def test_a_bad_file_is_refused_and_the_row_is_named(tmp_path: Path, name: str, content: str | bytes, said: str):
    with pytest.raises(UsageError, match=said):
        read_file(written(tmp_path / name, content), LABELS)
