"""The transformers suite: configurations are shrunk by rules, and what it lists builds, runs and repeats itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oracle.errors import UsageError
from oracle.records import Measurements, PlannedCase, Record
from oracle.verdict import Status, Verdict
from results.store import Store
from suites.base import Selection
from suites.registry import load_suite
from suites.tests.plain_runner import run, same
from suites.transformers.funnel import funnel, main, markdown, owners_text, row_of, stop_of
from suites.transformers.shrink import Strength, shrunk

pytest.importorskip("transformers", reason="the extra torch-oracle[models] is not installed")


def test_widths_are_divided_by_one_number_and_counts_are_cut() -> None:
    values = {
        "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128, "num_hidden_layers": 32, "vocab_size": 32000,
        "image_token_id": 31999, "patch_size": 14, "num_channels": 3, "num_experts": 64, "num_experts_per_tok": 6,
        "layer_types": ["linear"] * 3 + ["full"] + ["linear"] * 28, "vision": {"hidden_size": 1024, "image_token_id": 31999},
    }  # fmt: skip
    assert shrunk(values, Strength(width=16, image=4)) == {
        "hidden_size": 256, "num_attention_heads": 32, "head_dim": 8, "num_hidden_layers": 4, "vocab_size": 128,
        "image_token_id": 127, "patch_size": 14, "num_channels": 3, "num_experts": 8, "num_experts_per_tok": 2,
        "layer_types": ["linear"] * 3 + ["full"], "vision": {"hidden_size": 64, "image_token_id": 127},
    }  # fmt: skip


def test_stages_of_a_backbone_are_those_of_fewer_layers_and_stages_with_depths_stay() -> None:
    of_layers = {"num_hidden_layers": 12, "out_features": ["stage12"], "out_indices": [12], "stage_names": ["stem"]}
    of_depths = {"num_layers": 4, "depths": [2, 2, 6, 2], "out_features": ["stage4"]}
    strength = Strength(width=16, image=4)
    assert shrunk(of_layers, strength) == {"num_hidden_layers": 2, "out_features": ["stage2"]}
    assert shrunk(of_depths, strength) == {"num_layers": 4, "depths": [2, 2, 2, 2], "out_features": ["stage4"]}


def test_listing_imports_no_model(run_fresh: Callable[..., Any]) -> None:
    code = (
        "import sys; from suites.registry import load_suite; from suites.base import Selection\n"
        "suite = load_suite('transformers'); groups = suite.groups(Selection())\n"
        "programs = [found for group in groups for found in suite.programs(Selection(), group)]\n"
        "models = [name for name in sys.modules if '.modeling_' in name and name.startswith('transformers.models.')]\n"
        "print(len(groups) >= 600, len(programs) == 2 * len(groups), models)"
    )
    done = run_fresh(code)
    assert done.stdout.strip() == "True True ['transformers.models.auto.modeling_auto']", done.stderr


@pytest.mark.parametrize("group", ["llama", "clip", "whisper"])
def test_text_images_and_sound_build_run_and_repeat_themselves(group: str) -> None:
    for found in load_suite("transformers").programs(Selection(), group):
        first = run(found.program)
        assert not any(isinstance(call, str) for call in first), f"{found.program.name} raised {first[-1]}"
        assert same(first, run(found.program)), f"{found.program.name} does not repeat itself"


def test_an_architecture_that_cannot_be_built_raises_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suites.transformers.build.STRENGTHS", ())
    (found,) = load_suite("transformers").programs(Selection(directions=("forward",)), "albert")
    assert run(found.program) == ["CannotBuildError"]


def test_an_unknown_architecture_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no-such-model"):
        list(load_suite("transformers").programs(Selection(), "no-such-model"))


def test_without_transformers_the_suite_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # makes the import fail
    from suites.transformers.catalog import transformers_module  # noqa: PLC0415  after the import of the package is cut

    with pytest.raises(UsageError, match=r"torch-oracle\[models\]"):
        transformers_module()


def _record(
    status: Status, *, symptom: str = "", traceback: str = "", graphs: int | None = 1, group: str = "bert"
) -> Record:
    return Record(
        run_id="r", case_id=f"transformers/{group}/float32/forward/eval@aot_eager", suite="transformers", group=group,
        name=f"{group}/float32/forward/eval", subject="aot_eager", dtype="float32", direction="forward", device="cpu",
        verdict=Verdict(status=status, symptom=symptom), measurements=Measurements(graphs=graphs), traceback=traceback,
    )  # fmt: skip


def _store(path: Path, *records: Record) -> None:
    with Store.open(path, create=True) as store:
        cases = [
            PlannedCase(case_id=one.case_id, suite=one.suite, group=one.group, name=one.name, subject=one.subject)
            for one in records
        ]
        store.begin_planned(run_id="r", environment={}, arguments={}, cases=cases)
        store.append(records)


STOPS = [
    (_record(Status.PASS), ""),
    (_record(Status.PASS, graphs=0), "capture"),
    (_record(Status.MODEL_FAIL_TO_LOAD), "build"),
    (_record(Status.EAGER_FAIL_TO_RUN), "eager"),
    (_record(Status.EAGER_FAIL_TO_RUN, symptom="call 0: eager is suites.transformers.build.CannotBuildError"), "build"),
    (_record(Status.TIMEOUT, symptom="outcome is no end within 60 s in eager, but should be a result"), "eager"),
    (_record(Status.CRASH, symptom="outcome is a dead process (signal 11) in subject, but should be"), "compile"),
    (_record(Status.FAIL_TO_RUN, symptom="torch._dynamo.exc.Unsupported in call 0 ('...')"), "capture"),
    (_record(Status.FAIL_TO_RUN, symptom="torch._dynamo.exc.BackendCompilerFailed in call 0"), "compile"),
    (_record(Status.FAIL_TO_RUN, symptom="RuntimeError in call 0 ('sizes')"), "run"),
    (_record(Status.EAGER_TWO_RUNS_DIFFER), "compare"),
    (_record(Status.FAIL_ACCURACY), "agree"),
]


@pytest.mark.parametrize(("record", "stop"), STOPS)
def test_every_record_stops_at_one_step(record: Record, stop: str) -> None:
    assert stop_of(record) == stop


def test_the_funnel_counts_who_has_done_each_step_and_the_table_says_why_others_stop() -> None:
    rows = [row_of(record) for record, _ in STOPS]
    assert funnel(rows) == {
        "build": 10, "eager": 8, "capture": 6, "compile": 4, "run": 3, "compare": 2, "agree": 1,
    }  # fmt: skip
    text = markdown([row_of(_record(Status.FAIL_ACCURACY, symptom="output[0] is 1, but <2>"))], environment="here")
    assert "| bert | eval, float32 | fail_accuracy | output[0] is 1, but &lt;2> |" in text


def test_an_earlier_table_gives_the_rows_that_no_run_has(tmp_path: Path) -> None:
    failed = _record(Status.FAIL_ACCURACY, symptom="a, b")
    _store(
        tmp_path / "old.db",
        failed,
        replace(failed, group="albert", name="albert/float32/forward/eval", case_id="albert"),
    )
    _store(tmp_path / "new.db", _record(Status.PASS))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    main(["--db", str(tmp_path / "old.db"), "--output", str(tmp_path / "first")])
    table = tmp_path / "first" / "transformers.csv"
    main(["--db", str(tmp_path / "new.db"), "--earlier", str(table), "--output", str(tmp_path / "second")])
    lines = (tmp_path / "second" / "transformers.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["albert", "bert"]
    assert "fail_accuracy" in lines[1]
    assert "pass" in lines[2]
    table.write_text("a,b\n")
    with pytest.raises(UsageError, match="with the columns a, b"):
        main(["--db", str(tmp_path / "new.db"), "--earlier", str(table), "--output", str(tmp_path / "second")])


def test_an_owner_is_the_folder_that_defines_the_architecture() -> None:
    assert "transformers/clip_vision_model/* @transformers/clip\n" in owners_text()
