"""The parts that are run on a machine with a GPU: their limits, what is kept of them, and what they find around them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tarfile
import time
from pathlib import Path

import pytest

import gpu

TWICE = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); n = int(p.read_text() or 0) + 1 if p.exists() else 1; "


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs these parts in the place of the real ones; gives the exit code, what each came to, and what was printed."""
    monkeypatch.setattr(gpu, "GRACE_S", 1.0)
    monkeypatch.setattr(gpu, "LEAST_S", 0.5)
    monkeypatch.setattr(gpu, "machine_name", lambda **_: "machine")

    def run(*parts: gpu.Part, minutes: float = 5.0, arguments: tuple[str, ...] = ()) -> tuple[int, dict, str]:
        monkeypatch.setattr(gpu, "parts", lambda *_, **__: list(parts))
        output = tmp_path / "out"
        code = gpu.main(["--output", str(output), "--minutes", str(minutes), *arguments])
        return code, json.loads((output / "state.json").read_text()), capsys.readouterr().out

    return run


def _part(name: str, text: str, *arguments: str, minutes: float = 1.0, **options) -> gpu.Part:
    command = (sys.executable, "-c", text, *arguments)
    return gpu.Part(name=name, minutes=minutes, command=command, needs=options.pop("needs", ()), **options)


def test_a_part_that_fails_keeps_no_other_from_running_and_is_not_run_again(run, tmp_path: Path) -> None:
    file = tmp_path / "count"
    counting = TWICE + "p.write_text(str(n)); sys.exit(4)"
    parts = [_part("bad", counting, str(file)), _part("good", "print('fine')")]
    archive = tmp_path / "all.tar.gz"
    for _ in range(2):
        code, state, printed = run(*parts, arguments=("--archive", str(archive)))
        assert (code, state["bad"]["state"], state["bad"]["code"], state["good"]["state"]) == (1, "failed", 4, "done")
        assert "fine" in printed
    assert file.read_text() == "1"
    with tarfile.open(archive) as tar:
        assert {"out/bad.log", "out/good.log", "out/state.json"} <= set(tar.getnames())


def test_a_part_is_stopped_at_its_limit_with_all_it_started_and_goes_on_later(run, tmp_path: Path) -> None:
    file, child = tmp_path / "count", tmp_path / "child"
    text = TWICE + (
        "p.write_text(str(n)); import subprocess, time; made = subprocess.Popen(['sleep', '300']) if n == 1 else None; "
        f"pathlib.Path({str(child)!r}).write_text(str(made.pid)) if made else None; time.sleep(300 if n == 1 else 0)"
    )
    part = _part("slow", text, str(file), minutes=0.05, goes_on=True)
    code, state, _ = run(part)
    assert (code, state["slow"]["state"]) == (2, "stopped")
    for _ in range(50):
        if (
            not Path(f"/proc/{child.read_text()}").exists()
            or "\tZ" in Path(f"/proc/{child.read_text()}/status").read_text()
        ):
            break
        time.sleep(0.1)
    else:
        pytest.fail("what the part had started still runs")
    code, state, _ = run(part)
    assert (code, state["slow"]["state"], file.read_text()) == (0, "done", "2")


def test_a_part_that_asks_for_it_is_begun_again_at_once(run, tmp_path: Path) -> None:
    text = TWICE + "p.write_text(str(n)); sys.exit(3 if n < 3 else 0)"
    code, state, _ = run(_part("often", text, str(tmp_path / "count"), again=3))
    assert (code, state["often"]["state"], (tmp_path / "count").read_text()) == (0, "done", "3")


def test_what_is_not_installed_is_named_and_no_part_begins_without_time(run) -> None:
    code, state, _ = run(_part("lacks", "", needs=("sys", "no_such_module")), _part("late", ""), minutes=0.01)
    assert state == {"lacks": {"state": "failed", "why": "not installed: no_such_module", "seconds": 0}}
    assert code == 1


def test_commands_are_found_where_nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    variables = gpu.environment(tmp_path)
    monkeypatch.undo()
    folder = variables["PYTHONPATH"].split(os.pathsep)[1]
    (found,) = importlib.metadata.distributions(path=[folder])
    project = gpu.tomllib.loads((gpu.ROOT / "pyproject.toml").read_text())["project"]
    for group, entries in project["entry-points"].items():
        assert {(point.name, point.value) for point in found.entry_points.select(group=group)} == set(entries.items())


@pytest.mark.parametrize("is_cpu", [True, False])
def test_the_files_and_modules_of_every_part_are_there(tmp_path: Path, *, is_cpu: bool) -> None:
    made = gpu.parts(tmp_path, tmp_path, is_cpu=is_cpu)
    assert len({part.name for part in made}) == len(made)
    for part in made:
        for word in part.command:
            if word.startswith("refimpl/"):
                assert (gpu.ROOT / word).exists()
            if word == "benchmarks":
                assert (gpu.ROOT / word / "__main__.py").exists()
            if word.startswith("refimpl.") or word == "oracle.cli":
                assert (gpu.ROOT / (word.replace(".", "/") + ".py")).exists()
