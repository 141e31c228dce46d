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


@pytest.mark.parametrize("text", ["one\n2\n", "one\ntwo", "one\r\ntwo\r\n", "one\ntwo \n", ""])
def test_any_difference_fails_with_a_diff_and_leaves_the_golden_alone(project: Path, text: str):
    path = project / "goldens/text.txt"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    result = pytest_in(project)
    assert result.returncode == 1
    assert "+++ goldens/text.txt (now)" in result.stdout
    assert "make accept" in result.stdout
    assert path.read_bytes() == text.encode()


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
