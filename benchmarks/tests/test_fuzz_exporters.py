"""The table of exporters: what is counted, who else is asked of a finding, and what notes add."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurements.fuzz_exporters import main, markdown, read_campaign, rows
from fuzz.program.parsing import program_of
from fuzz.program.structure import FuzzProgram
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict

_SUM = program_of("def program(a):\n    r = a.sum()\n    return r\n", [{"$": "tensor", "shape": [3], "dtype": "int64"}])


def _corpus(folder: Path, subject: str, *keys: str) -> Path:
    (folder / "findings").mkdir(parents=True)
    state = {
        "identity": {"subject": subject}, "statuses": {"pass": 8, "refused": 2, "fail_grad": len(keys)},
        "refused": {"UserError": 1, "a | b": 1},
    }  # fmt: skip
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    for key in keys:
        bucket: dict[str, Any] = {
            "key": key, "status": "fail_grad", "kind": "grad: number", "count": 3, "program": _SUM.to_json(),
            "source": "import torch\ndef program(a): ...", "verdict": {"symptom": "grad of a is 1"},
        }  # fmt: skip
        (folder / "findings" / f"{key}.json").write_text(json.dumps(bucket), encoding="utf-8")
    return folder


def test_each_bucket_says_how_the_other_subjects_end_on_it(tmp_path: Path) -> None:
    asked: list[str] = []

    def judge_on(program: FuzzProgram, spec: SubjectSpec) -> Verdict:
        asked.append(spec.name)
        assert program == _SUM
        if spec.kind == "export":
            return Verdict(
                status=Status.FAIL_TO_RUN,
                symptom="call 0: outcome is torch._dynamo.exc.UserError in call ('no'), but should be a return",
            )
        return Verdict(status=Status.FAIL_GRAD, symptom="grad of a is 1")

    ours = read_campaign(_corpus(tmp_path / "ours", "refimpl.export[strict=false]", "b", "a"))
    theirs = read_campaign(_corpus(tmp_path / "theirs", "export", "c"))
    table = rows([ours, theirs], {"a": {"cause": "hooks", "whose": "as upstream"}}, judge_on=judge_on)
    assert [(row["bucket"], row["others"], row["cause"], row["whose"]) for row in table] == [
        ("a", "export: refused", "hooks", "as upstream"),
        ("b", "export: refused", "", "not looked at"),
        ("c", "refimpl.export[strict=false]: fail_grad", "", "not looked at"),
    ]
    assert asked == ["export", "export", "refimpl.export[strict=false]"]
    text = markdown([ours, theirs], table, environment="torch 0")
    assert "| refimpl.export[strict=false] | 12 | 8 | 2 | 2 | 2 |" in text
    assert "| hooks | as upstream | 1 | 3 |" in text
    assert "| 1 | a \\| b |" in text


def test_the_command_writes_both_tables_with_the_verdicts_of_real_subjects(tmp_path: Path) -> None:
    corpora = [_corpus(tmp_path / "one", "eager", "k"), _corpus(tmp_path / "two", "refimpl.export[strict=false]")]
    notes = tmp_path / "notes.csv"
    notes.write_text("bucket,cause,whose\nk,sums,ours\n", encoding="utf-8")
    main([*map(str, corpora), "--output", str(tmp_path), "--notes", str(notes), "--environment", "torch 0"])
    with (tmp_path / "export-fuzz.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["subject"], row["bucket"], row["cause"], row["programs"]) == ("eager", "k", "sums", "3")
    assert row["others"] == "refimpl.export[strict=false]: pass"
    assert "# Random programs on exporters" in (tmp_path / "export-fuzz.md").read_text(encoding="utf-8")


def test_a_directory_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"state\.json"):
        read_campaign(tmp_path)
