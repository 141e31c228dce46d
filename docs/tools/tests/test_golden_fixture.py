"""The root conftest: the `golden` fixture compares exactly and rewrites only when told to; what every test finds set up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis.internal.conjecture import providers

import contracts
from oracle.tests.forked_script import Ended, run_in_fork

TEST = "def test_text(golden):\n    golden('text.txt', 'one\\ntwo\\n')\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Returns a project of one test with our conftest."""
    conftest = (contracts.ROOT / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_sample.py").write_text(TEST, encoding="utf-8")
    return tmp_path


def pytest_in(project: Path, *options: str) -> Ended:
    """Runs pytest in the project, in a fork of this process: an interpreter of its own would import all that conftest needs."""

    def work() -> int:
        del sys.modules["conftest"]  # that of this process: the project has a copy
        return int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]))

    return run_in_fork(work, project)


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
    last = result.stdout.splitlines()[-1]  # a fork of a process that has imported much also counts warnings there
    assert last.startswith(f"{len(paths)} failed")
    assert "passed" not in last
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
    set_up = "import logging\nlog = logging.getLogger('torch.__trace')\nlog.handlers.clear()  # torch's own\n"
    test = "def test_it():\n    assert log.handlers == []\n    log.propagate = False\n"
    (project / "test_sample.py").write_text(f"{set_up}log.propagate = False\n{test}", encoding="utf-8")
    (project / "test_second.py").write_text(f"{set_up}{test}", encoding="utf-8")
    result = pytest_in(project)
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout


@pytest.mark.parametrize(
    ("worker", "source", "imported"),
    [
        ("gw1", pytest.Config.ArgsSource.TESTPATHS, ["package.test_c", "package.test_b", "package.test_a"]),
        ("gw0", pytest.Config.ArgsSource.TESTPATHS, []),
        ("gw1", pytest.Config.ArgsSource.ARGS, []),  # a selection of files
    ],
)
def test_every_second_process_imports_the_modules_from_the_end(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, worker: str, source: object, imported
):
    log, package = tmp_path / "log", tmp_path / "package"
    package.mkdir()
    log.touch()
    for name in ("__init__", "test_a", "test_b", "test_c"):
        text = "" if name == "__init__" else f"print(__name__, file=open({str(log)!r}, 'a'))\n"
        (package / f"{name}.py").write_text(text + ("raise OSError" if name == "test_b" else ""), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    conftest = pytestconfig.pluginmanager.get_plugin(str(contracts.ROOT / "conftest.py"))
    assert conftest is not None
    conftest.import_from_the_end(
        SimpleNamespace(
            workerinput={"workerid": worker}, args_source=source, ArgsSource=pytest.Config.ArgsSource,
            rootpath=tmp_path, getini={"testpaths": ["package"]}.__getitem__,
        )
    )  # fmt: skip
    assert log.read_text(encoding="utf-8").split() == imported
    for name in [name for name in sys.modules if name.partition(".")[0] == "package"]:
        del sys.modules[name]


@pytest.mark.skipif("HYPOTHESIS_PROFILE" in os.environ, reason="another profile may draw what it likes")
def test_hypothesis_draws_no_constants_of_loaded_modules():
    """Examples would depend on which modules are loaded: one draw in twenty is such a constant."""
    constants = providers.HypothesisProvider(None)._local_constants
    kinds = ("integer", "float", "bytes", "string")
    assert [list(constants.set_for_type(kind)) for kind in kinds] == [[], [], [], []]
