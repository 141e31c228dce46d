"""The command `advise`, from its options to its exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from oracle.cli import run_app
from oracle.in_fork import settle_in_fork
from oracle.isolate.forked import in_child
from triage.advise import asking, worker
from triage.commands import advise, bisect
from triage.interpreters import Ended
from triage.tests.stand_ins import interpreter


def _run(*words: str) -> int:
    app = typer.Typer(add_completion=False)
    app.command("advise")(advise)
    app.command("bisect")(bisect)
    return run_app(lambda: typer.main.get_command(app), ["advise", *words], name="torch-oracle")


_MODEL = """
import os
import torch

def mix(a):
    if "PLANTED" in os.environ:
        torch._dynamo.graph_break()
    return torch.erf(a) * 2
"""
_BACKEND = """
import os

def wrong(gm, inputs):
    return lambda *args: [x + ("PLANTED" in os.environ) for x in gm(*args)]
"""


def _run_in_fork(words: Sequence[str], **options: Any) -> Ended:
    """`run_child` for a worker, but in a fork of this process, which is quicker; with PLANTED set for the interpreter "new"."""

    def work() -> None:
        settle_in_fork()
        if words[0].endswith("new"):
            os.environ["PLANTED"] = "1"
        worker.main(Path(words[2]))

    in_child(work, timeout_s=60)
    return Ended(code=0, seconds=1.0, output="", errors="")


def test_the_command_tells_what_got_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(asking, "SPEED_S", 0.01)
    monkeypatch.setattr(asking, "run_child", _run_in_fork)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "planted_wrong.py").write_text(_BACKEND)
    (tmp_path / "model.py").write_text(_MODEL)
    new = interpreter(tmp_path, "new", PLANTED="1")
    words = [f"{tmp_path}/model.py:mix", "--inputs", "f32[3]", "--subject", "planted_wrong:wrong", "--calls", "1"]
    assert _run(*words, "--from", sys.executable, "--to", new, "--rounds", "1", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    changes = {aspect["aspect"]: aspect["change"] for aspect in told["aspects"]}
    assert changes == {
        "values": "worse", "errors": "same", "graphs": "worse", "recompiles": "same", "compile time": "not told",
        "speed": "not told",
    }  # fmt: skip
    assert told["aspects"][0]["text"] == "the new torch compiles it wrong, the old one right"
    assert [row["text"].partition(":")[0] for row in told["comparisons"]] == [
        "the same bits",
        "differs",
        "the same bits",
        "differs",
    ]
    assert told["aspects"][2]["details"][0].startswith("new graph break: model.py:7: torch._dynamo.graph_break() (")
    assert [version["interpreter"] for version in told["versions"]] == [sys.executable, new]
    assert [len(times) for times in told["seconds"]["compile_s"]] == [1, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "no-such-python"], "no interpreter 'no-such-python'"),
        (["--from", sys.executable, "--pip", "--pre"], "--pip without a version to install"),
        (["--from", sys.executable, "--subject", "export"], "torch.compile with one of its backends"),
        (["--from", "TORCHLESS"], "No module named 'numpy'"),
        ([], "Missing option '--from'"),
    ],
)
def test_bad_input_is_told_with_exit_code_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(_MODEL)
    torchless = tmp_path / "torchless"
    torchless.write_text(f'#!/bin/sh\nshift 0; exec {sys.executable} -S "$@"\n')
    torchless.chmod(0o755)
    words = [str(torchless) if word == "TORCHLESS" else word for word in words]
    assert _run(f"{tmp_path}/model.py:mix", "--inputs", "f32[3]", *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
