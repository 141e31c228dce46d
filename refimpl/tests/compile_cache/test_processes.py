"""What one process keeps another one loads, and does what eager mode does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_CHILD = "refimpl.tests.compile_cache.child"
Report = dict[str, dict[str, int]]


def _start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT)


def _report(child: subprocess.Popen[str]) -> Report:
    out, errors = child.communicate(timeout=500)
    assert child.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report, Report, Path]:
    """Reports of two processes that write to one folder at the same time and of a later process, and the folder."""
    folder = tmp_path_factory.mktemp("cache")
    words = ("-m", _CHILD, str(folder), "aot_eager")
    together = [_start(*words) for _ in range(2)]
    first, second = map(_report, together)
    return first, second, _report(_start(*words)), folder


def test_a_later_process_loads_all_that_an_earlier_one_kept(reports: tuple[Report, Report, Report, Path]) -> None:
    """Each program has agreed with eager mode in every process: values, gradients, mutation, aliases, random state."""
    first, _, later, _ = reports
    assert set(first) == set(later)
    for name, counts in first.items():
        kept = counts.get("saved", 0) + counts.get("hit", 0)  # a hit, if the other process was first
        assert later[name].get("hit", 0) == kept, name
        assert "saved" not in later[name], name
    assert sum(counts.get("hit", 0) for counts in later.values()) > 60


def test_what_is_not_kept_is_counted(reports: tuple[Report, Report, Report, Path]) -> None:
    *_, later, _ = reports
    for name, counts in later.items():
        assert counts.get("miss", 0) <= counts.get("bypass", 0), name


def test_two_writers_leave_whole_files(reports: tuple[Report, Report, Report, Path]) -> None:
    first, second, _, folder = reports
    for counts in (first["model static"], second["model static"]):
        assert counts.get("saved", 0) + counts.get("hit", 0) == 1
    assert {path.suffix for path in folder.iterdir()} == {".program"}


def test_kernels_are_compiled_from_loaded_graphs(tmp_path: Path) -> None:
    """The backend is called with the graphs of the file, in the process that loads them."""
    code = (
        "import refimpl.tests.compile_cache.child as child, json\n"
        "child.NAMES = child.NAMES[::9]\n"
        f"print(json.dumps(child.report({str(tmp_path / 'kept')!r}, 'triton')))"
    )
    found = [_report(_start("-c", code)) for _ in range(2)]
    assert found[0]["model static"] == {"miss": 1, "saved": 1}
    assert found[1]["model static"] == {"hit": 1}
    assert found[1]["resized dynamic"] == {"hit": 1}
