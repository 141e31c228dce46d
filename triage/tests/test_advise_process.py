"""The worker of `advise` in a process of its own, with nothing of this project but what is copied beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.observe.outcome import Returned
from oracle.program import Program
from oracle.subjects.spec import SubjectSpec
from triage.advise import asking
from triage.advise.asking import Request, ask
from triage.interpreters import Ended
from triage.tests.stand_ins import interpreter

# Says where the worker's modules are from, and adds 1 to every result.
_BACKEND = """
import oracle.observe
import sys

def moved(gm, inputs):
    sys.stderr.write(oracle.__path__[0])
    return lambda *args: [x + 1 for x in gm(*args)]
"""


def test_the_worker_runs_by_what_is_copied_and_finds_the_users_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moved_backend.py").write_text(_BACKEND)
    monkeypatch.setattr(asking, "SPEED_S", 0.01)
    ends: list[str] = []
    run = asking.run_child

    def keep_errors(words: Sequence[str], **options: Any) -> Ended:
        ended = run(words, **options)
        ends.append(ended.errors)
        return ended

    monkeypatch.setattr(asking, "run_child", keep_errors)
    source = (
        "def inputs(call):\n    import torch\n    return [torch.zeros(3)], {}\n\ndef program(a):\n    return a * 2\n"
    )
    request = Request(
        program=Program(name="p", source=source),
        subject=SubjectSpec(name="moved", kind="backend", path="moved_backend:moved"),
        folders=(str(tmp_path),),
        timeout_s=60,
    )
    answer = ask(request, interpreter(tmp_path, "other", OTHER="1"))
    assert (answer.torch, answer.death) == (torch.__version__, "")
    assert isinstance(answer.eager, Returned)
    assert isinstance(answer.compiled, Returned)
    values = [outcome.calls[0].outputs[0].value.tolist() for outcome in (answer.eager, answer.compiled)]
    assert values == [[0.0] * 3, [1.0] * 3]
    assert "/torch-oracle-" in ends[0]  # the temporary folder, and not this project's
