"""The coverage benchmark: what corpora reached, against what OpInfo's samples call."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from benchmarks.measurements import fuzz_coverage as coverage
from oracle.errors import UsageError


def corpus(folder: Path, *, drawn: dict[str, int], reached: dict[str, int], programs: int, wall_s: float) -> Path:
    folder.mkdir()
    state = {"drawn": drawn, "reached": reached, "statuses": {"pass": programs - 1, "crash": 1}, "wall_s": wall_s}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_corpora_are_added_up(tmp_path: Path) -> None:
    one = corpus(tmp_path / "a", drawn={"op:add": 2}, reached={"aten:aten.add.Tensor": 1}, programs=5, wall_s=60.0)
    two = corpus(tmp_path / "b", drawn={"op:add": 3}, reached={"aten:aten.mul.Tensor": 4}, programs=7, wall_s=30.0)
    counts, programs, wall_s = coverage.reached([one, two])
    assert counts == Counter({"op:add": 5, "aten:aten.add.Tensor": 1, "aten:aten.mul.Tensor": 4})
    assert (programs, wall_s) == (12, 90.0)


def test_what_is_no_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"state\.json"):
        coverage.reached([tmp_path])


def test_a_row_says_what_of_an_entry_was_reached() -> None:
    found = [
        coverage.Entry(name="add", overloads={"aten.add.Tensor", "aten.add.Scalar"}),
        coverage.Entry(name="broken", reason="RuntimeError: no\nkernel"),
    ]
    rows = coverage.table(found, {"aten:aten.add.Tensor": 3, "op:add": 3})
    assert rows == [
        {"entry": "add", "overloads": 2, "reached": 1, "not_reached": "aten.add.Scalar", "reason": ""},
        {"entry": "broken", "overloads": 0, "reached": 0, "not_reached": "", "reason": "RuntimeError: no kernel"},
    ]


def test_the_report_counts_what_both_have() -> None:
    counts = {"aten:aten.add.Tensor": 3, "aten:aten.sin.default": 1, "op:add": 3, "lowering:aten.add.Tensor": 2}
    found = [
        coverage.Entry(name="add", overloads={"aten.add.Tensor"}),
        coverage.Entry(name="mul", overloads={"aten.add.Tensor", "aten.mul.Tensor"}),
    ]
    lines = list(coverage.report(counts, found))
    assert "     2 aten overloads" in lines
    assert "OpInfo: 1 of the 2 aten overloads that its samples call, and 1 that they do not" in lines
    assert "OpInfo: 2 entries; all overloads of 1 reached, some of 2" in lines
    assert lines[-1].startswith("lowerings: 1 of the ")


def test_samples_of_an_entry_are_run_forward_and_backward() -> None:
    (info,) = (info for info in op_db if info.name == "sinh")
    entry = coverage.Entry(name="sinh")
    coverage._run(info, torch.float32, entry)
    assert entry.overloads >= {"aten.sinh.default", "aten.cosh.default"}  # the second one is of the gradient
    assert entry.reason == ""


def test_an_entry_whose_samples_cannot_be_made_says_why() -> None:
    class Broken:
        supports_autograd = False

        def sample_inputs(self, *args: object, **kwargs: object) -> None:
            raise ValueError("no samples here")

    entry = coverage.Entry(name="broken")
    coverage._run(Broken(), torch.float32, entry)
    assert entry.reason == "ValueError: no samples here"
