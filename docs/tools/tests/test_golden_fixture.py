"""The root conftest: the `golden` fixture compares exactly and rewrites only when told to; what every test finds set up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import contracts

TEST = "def test_text(golden):\n    golden('text.txt', 'one\\ntwo\\n')\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Returns a project of one test with our conftest."""
    conftest = (contracts.ROOT / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_sample.py").write_text(TEST, encoding="utf-8")
    return tmp_path


def pytest_in(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in the project."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def test_a_missing_golden_fails_and_accept_writes_it(project: Path):
    missing = pytest_in(project)
    assert missing.returncode == 1
    assert "there is no golden goldens/text.txt; `make accept` writes it" in missing.stdout
    assert pytest_in(project, "--accept").returncode == 0
    assert (project / "goldens/text.txt").read_bytes() == b"one\ntwo\n"
    assert pytest_in(project).returncode == 0


DIFFERENT = ["one\n2\n", "one\ntwo", "one\r\ntwo\r\n", "one\ntwo \n", ""]


def test_any_difference_fails_with_a_diff_and_leaves_the_golden_alone(project: Path):
    paths = [project / f"goldens/text{i}.txt" for i in range(len(DIFFERENT))]
    paths[0].parent.mkdir()
    for path, text in zip(paths, DIFFERENT, strict=True):
        path.write_bytes(text.encode())
    each = f"import pytest\n@pytest.mark.parametrize('i', range({len(paths)}))\n"
    test = TEST.replace("(golden)", "(golden, i)").replace("'text.txt'", "f'text{i}.txt'")
    (project / "test_sample.py").write_text(each + test, encoding="utf-8")
    result = pytest_in(project)
    assert result.returncode == 1
    assert f"{len(paths)} failed in" in result.stdout
    assert [path.name for path in paths if f"+++ goldens/{path.name} (now)" not in result.stdout] == []
    assert result.stdout.partition("short test summary")[0].count("If the change is meant: make accept") == len(paths)
    assert [path.read_bytes() for path in paths] == [text.encode() for text in DIFFERENT]


def test_of_a_fractional_matrix_every_value_and_of_three_axes_every_pair_is_quick(project: Path):
    text = """
import pytest

@pytest.mark.fractional
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize(("b", "c"), [("x", 1), ("y", 1), ("z", 2)])
@pytest.mark.parametrize("d", [False, True])
def test_three(a, b, c, d):
    print("ran", a, b, d)

@pytest.mark.fractional(3)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(4))
def test_two(a, b):
    print("ran", a, b)
"""
    (project / "test_sample.py").write_text(text, encoding="utf-8")
    quick, every = (
        {line for line in pytest_in(project, "-s", *chosen).stdout.split("\n") if "ran" in line}
        for chosen in (("-m", "not slow"), ())
    )
    assert (len(quick), len(every)) == (10, 24)
    rows = [line.replace(".", "").split()[1:] for line in quick]
    three, two = ([row for row in rows if len(row) == length] for length in (3, 2))
    assert [len({(row[i], row[j]) for row in three}) for i, j in ((0, 1), (0, 2), (1, 2))] == [6, 4, 6]
    assert [len({row[i] for row in two}) for i in (0, 1)] == [3, 4]


def test_a_fractional_test_that_would_lose_a_value_is_refused(project: Path):
    text = "import pytest\n@pytest.mark.fractional\n@pytest.mark.parametrize('a', [1, 2])\ndef test_it(a): pass\n"
    (project / "test_sample.py").write_text(text, encoding="utf-8")
    result = pytest_in(project)
    assert result.returncode == 4
    assert "test_it: fractional(2) leaves no quick case of some values of ('a',)" in result.stderr


def test_a_gpu_test_is_skipped_with_a_reason_where_there_is_none(project: Path):
    conftest = project / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + "\nhas_cuda = lambda: False\n", encoding="utf-8")
    text = "import pytest\n@pytest.mark.gpu\ndef test_on_gpu(): assert False\ndef test_on_cpu(): pass\n"
    (project / "test_sample.py").write_text(text, encoding="utf-8")
    result = pytest_in(project, "-rs")
    assert "1 passed, 1 skipped" in result.stdout
    assert "needs a CUDA device" in result.stdout


def test_the_logger_of_torchs_traces_has_no_handler_of_pytest(project: Path):
    """With such a handler torch prints every graph that it makes. A module may make torch set its logger up again: the next
    module has no handler either.
    """
    set_up = "import logging\nlog = logging.getLogger('torch.__trace')\n"
    test = "def test_it():\n    assert log.handlers == []\n    log.propagate = False\n"
    (project / "test_sample.py").write_text(f"{set_up}log.propagate = False\n{test}", encoding="utf-8")
    (project / "test_second.py").write_text(f"{set_up}{test}", encoding="utf-8")
    result = pytest_in(project)
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout
