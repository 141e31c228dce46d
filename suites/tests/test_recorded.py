"""Recordings: what is written, what is read back, and what the suite makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from oracle.errors import UsageError
from oracle.observe import observe
from oracle.observe.outcome import Returned
from oracle.program.build import instantiate
from oracle.program.inputs import decode_call
from oracle.recording import Recorder, read_recording, text_of
from suites.base import Selection, SuiteProgram
from suites.recorded.recorder import make_recording
from suites.recorded.suite import RecordedSuite
from suites.request import make_request

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 4)

    def forward(self, ids):
        rows = self.table(ids)
        return rows.mT @ rows


def raises():
    raise ValueError("no data")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def _recorded(function: object, path: Path) -> Path:
    recorder = Recorder()
    with recorder:
        function()  # type: ignore[operator]
    path.write_text(text_of(recorder, source="here"))
    return path


def _programs(path: Path, **selection: object) -> list[SuiteProgram]:
    suite, asked = RecordedSuite(), Selection(recording=str(path), **selection)  # type: ignore[arg-type]
    return [found for group in suite.groups(asked) for found in suite.programs(asked, group)]


def test_calls_with_the_same_shapes_are_one_line_with_a_count_and_the_range_of_all(tmp_path: Path) -> None:
    def work() -> None:
        for low in (0.0, 1.0):
            torch.add(torch.tensor([low, low + 0.25, low + 1.0]), 2)

    found = read_recording(_recorded(work, tmp_path / "a.jsonl"))
    (add,) = [call for call in found if call.op == "aten.add.Tensor"]
    assert (add.count, add.args[1], add.args[0]["range"]) == (2, 2, [0.0, 2.0])


def test_a_replayed_tensor_has_the_shape_strides_dtype_and_range_that_was_recorded(tmp_path: Path) -> None:
    base = torch.linspace(3, 5, 12, dtype=torch.float64).reshape(3, 4)
    scores = torch.tensor([[0.5, -torch.inf], [2.0, 1.0]])
    path = _recorded(lambda: (base.t().exp(), scores.softmax(-1), base.sum([0])), tmp_path / "a.jsonl")
    calls = {call.op: decode_call(call.to_call(backward=False), seed=1)[0] for call in read_recording(path)}
    (seen,) = calls["aten.exp.default"]
    assert (seen.shape, seen.stride(), seen.dtype) == ((4, 3), (1, 4), torch.float64)
    assert seen.min() >= 3
    assert seen.max() <= 5
    drawn = calls["aten._softmax.default"][0]
    assert set(drawn[drawn.isfinite()].tolist()) <= {0.5 + 1.5 / 16 * step for step in range(17)}
    assert calls["aten.sum.dim_IntList"][1] == [0]


def test_arguments_that_share_memory_share_it_when_they_are_replayed(tmp_path: Path) -> None:
    buffer = torch.zeros(6)
    path = _recorded(lambda: buffer[3:].copy_(buffer[:3]), tmp_path / "a.jsonl")
    (copy,) = [call for call in read_recording(path) if call.op == "aten.copy_.default"]
    target, source = decode_call(copy.to_call(backward=False), seed=1)[0]
    assert target.untyped_storage()._cdata == source.untyped_storage()._cdata
    assert (target.storage_offset(), source.storage_offset()) == (3, 0)


def test_a_model_is_recorded_with_its_backward_and_every_call_runs_again(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    said = make_recording(f"{model}:Net", inputs="i64[2, 3] < 50", output=path, seed=0, allow_effects=False)
    assert str(path) in said
    found = _programs(path)
    assert {"aten.embedding.default", "aten.bmm.default", "aten.embedding_dense_backward.default"} <= {
        one.group for one in found
    }
    assert any(one.direction == "backward" for one in found)
    for one in found:
        assert isinstance(observe(instantiate(one.program)), Returned), one.program.name


def test_what_cannot_be_replayed_is_a_program_that_says_why(tmp_path: Path) -> None:
    path = _recorded(lambda: torch.randperm(3, generator=torch.Generator()), tmp_path / "a.jsonl")
    lines = path.read_text().splitlines()
    lines.append(json.dumps({"op": "aten.no_such.default", "count": 1, "args": [], "kwargs": {}}))
    path.write_text("\n".join(lines))
    sources = {found.group: found.program.source for found in _programs(path)}
    assert "has no operator aten.no_such.default" in sources["aten.no_such.default"]
    assert "Generator" in sources["aten.randperm.generator"]


HEADER = '{"format": "torch-oracle recording", "schema": 1}'
TENSOR = '{"op": "aten.relu.default", "count": 1, "args": [%s], "kwargs": {}}'


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", "line 1"),
        ('{"format": "another"}', "line 1"),
        (HEADER.replace("1}", "2}"), "schema 2"),
        (f"{HEADER}\n{TENSOR % '1'}\n{{broken", "line 3"),
        (f'{HEADER}\n{{"op": "aten.relu.default(); import os", "count": 1}}', "line 2"),
        (f"{HEADER}\n" + TENSOR % '{"$": "tensor", "shape": [2], "stride": [1, 1], "dtype": "float32"}', "line 2"),
        (f"{HEADER}\n" + TENSOR % '{"$": "tensor", "shape": [2], "stride": [1], "dtype": "save"}', "dtype 'save'"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_the_line(tmp_path: Path, text: str, seen: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=seen):
        read_recording(path)


@pytest.mark.parametrize(
    ("name", "seen"), [("missing.py:f", "no file"), ("net.py:f", "no 'f'"), ("net.py:raises", "no data")]
)
def test_a_program_that_does_not_run_leaves_no_file(model: Path, tmp_path: Path, name: str, seen: str) -> None:
    output = tmp_path / "recorded.jsonl"
    with pytest.raises(UsageError, match=seen):
        make_recording(str(model.parent / name), inputs="", output=output, seed=0, allow_effects=False)
    assert not output.exists()


def test_a_recording_without_its_suite_and_the_suite_without_a_recording_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--recording"):
        RecordedSuite().groups(Selection())
    options = dict.fromkeys(
        ("subject", "subjects_file", "match", "tag", "dtype", "direction", "max_samples", "time", "workers")
    )
    rest = {
        "shard": "1/1",
        "device": "cpu",
        "case_timeout": 1.0,
        "memory": 1.0,
        "threads": 1,
        "speed": False,
        "speed_budget": 1.0,
    }
    with pytest.raises(UsageError, match="--suite recorded"):
        make_request(suite="features", recording=tmp_path / "a.jsonl", **options, **rest)
