"""The pytest plugin, on small test suites that are written here and run in a process forked from this one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from oracle.background import Judgement
from oracle.errors import UsageError
from oracle.saved_call import load_call
from oracle.tests.forked_script import run_in_fork
from oracle.verdict import Status, Verdict
from results.files import DB_VARIABLE
from results.store import Store
from suites.pytest_plugin.judging import verdict_of
from suites.pytest_plugin.plugin import Options, RunningTest
from suites.pytest_plugin.recording import Recorder
from suites.pytest_plugin.targets import find_target

pytest_plugins = ["pytester"]

LIBRARY = """
import os
import torch

def right(gm, inputs):
    return gm.forward

def wrong(gm, inputs):
    def run(*args):
        return tuple(out + 1 if out.numel() > 3 else out for out in gm(*args))
    return run

def dies(gm, inputs):
    os.abort()

def double(x):
    return x * 2
"""

TESTS = """
import hypothesis
import numpy
import pytest
import torch
import torch
from hypothesis import strategies
import library
from library import double
from torch import nn

@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())

@pytest.mark.oracle
def test_model_of_a_fixture(model):
    assert model(torch.ones(2, 4)).shape == (2, 4)

@pytest.mark.oracle(targets=[double])
@pytest.mark.parametrize("function", [double])
def test_function_among_the_parameters(function):
    assert [float(function(torch.tensor(float(n)))) for n in range(7)] == [2.0 * n for n in range(7)]
    function(numpy.ones(2))

@pytest.mark.oracle(targets=["library.double"], subjects="library:wrong")
@hypothesis.given(strategies.integers(1, 20))
def test_smallest_that_differs(n):
    double(torch.ones(n))

@pytest.mark.oracle(subjects=["library:wrong"])
def test_that_catches(model):
    try:
        model(torch.ones(4, 4))
    except AssertionError:
        pass

@pytest.mark.oracle(subjects=["library:dies"])
def test_that_crashes(model):
    model(torch.ones(4, 4))

@pytest.mark.oracle
def test_without_a_call():
    double(torch.ones(3))

def test_unmarked(model):
    model(torch.ones(4, 4))

@pytest.mark.oracle(subjects=[library.right])
def test_that_checks(oracle_check):
    assert list(oracle_check(double, torch.ones(9), calls=1)) == ["library.right"]
"""
_FAIL = ("test_smallest_that_differs", "test_that_catches", "test_that_crashes", "test_without_a_call")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(library=LIBRARY, test_it=TESTS)
    pytester.syspathinsert()
    return pytester


def run_pytest(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """What `runpytest_subprocess` gives, from a fork of this process, which has loaded torch and the compilers already."""
    began = time.perf_counter()
    ended = run_in_fork(lambda: int(pytest.main(["-p", "no:cacheprovider", *arguments])), pytester.path)
    lines, errors = ended.stdout.splitlines(), ended.stderr.splitlines()
    return pytest.RunResult(ended.returncode, lines, errors, time.perf_counter() - began)


def records_of(database: Path) -> dict[str, tuple[Status, str]]:
    with Store.open(database, create=False) as store:
        (run,) = store.runs()
        assert run.state == "complete"
        return {record.case_id: (record.verdict.status, record.repro) for record in store.records(run.run_id)}


DOUBLE, MODEL = "library.double", "torch.nn.modules.container.Sequential"
ROWS = {
    f"pytest/test_it.py::test_model_of_a_fixture::{MODEL}@library:right": Status.PASS,
    f"pytest/test_it.py::test_function_among_the_parameters[double]::{DOUBLE}@library:right": Status.PASS,
    f"pytest/test_it.py::test_smallest_that_differs::{DOUBLE}@library:wrong": Status.FAIL_ACCURACY,
    f"pytest/test_it.py::test_that_catches::{MODEL}@library:wrong": Status.FAIL_ACCURACY,
    f"pytest/test_it.py::test_that_crashes::{MODEL}@library:dies": Status.CRASH,
    f"pytest/test_it.py::test_that_checks::{DOUBLE}@library.right": Status.PASS,
}


def test_what_a_call_prints_is_printed_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        library=LIBRARY,
        test_it="""
            import pytest, torch

            def loud(x):
                print("a line of the function")
                return x * 2

            @pytest.mark.oracle(targets=[loud], subjects=["library:wrong"])
            def test_loud():
                loud(torch.ones(9))
        """,
    )
    pytester.syspathinsert()
    result = run_pytest(pytester, "--torch-oracle=library:wrong", "--torch-oracle-db=rows.db")
    result.assert_outcomes(failed=1)
    assert result.stdout.lines.count("a line of the function") == 0  # the call of the test itself is never made


def test_marked_tests_are_judged_and_rows_are_written(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DB_VARIABLE, "rows.db")
    options = ("--torch-oracle=library:right", "--torch-oracle-save=found")
    result = run_pytest(suite, *options)
    result.assert_outcomes(passed=4, failed=4)
    output = result.stdout.str()
    assert all(f"FAILED test_it.py::{name}" in output for name in _FAIL)
    assert "    n=4,\n" in output  # the smallest example
    assert "nothing was judged" in output
    result.stdout.fnmatch_lines(["* 3 agree*, 3 differ, 0 not compared*", "2 further calls were not judged*"])
    assert {case: status for case, (status, _) in records_of(suite.path / "rows.db").items()} == ROWS
    assert (suite.path / "found" / "test_it.py__test_that_catches" / "call-0" / "call.json").is_file()


def test_what_oracle_check_found_is_saved_too(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_check="""
        import torch
        import library

        def test_differs(oracle_check):
            oracle_check(torch.add, torch.ones(9), kwargs={"other": torch.ones(9)}, subjects=["library:wrong"], calls=1)
        """
    )
    result = run_pytest(suite, "test_check.py", "--torch-oracle-save=found")
    result.assert_outcomes(failed=1)
    call = load_call(suite.path / "found" / "test_check.py__test_differs" / "call-0")
    assert call.facts["subject"] == "library:wrong"
    assert torch.equal(call.args[0], torch.ones(9))
    assert list(call.kwargs) == ["other"]


def test_workers_of_xdist_give_the_same_rows(suite: pytest.Pytester) -> None:
    options = ("--torch-oracle=library:right", "--torch-oracle-calls=1", "--torch-oracle-db=rows.db")
    result = run_pytest(suite, *options, "-k", "parameters or catches", "-n", "1")  # each loads torch
    result.assert_outcomes(passed=1, failed=1)
    rows = {case: status for case, (status, _) in records_of(suite.path / "rows.db").items()}
    assert rows == {case: status for case, status in ROWS.items() if "parameters" in case or "catches" in case}


def test_without_the_option_only_the_fixture_judges(suite: pytest.Pytester) -> None:
    result = run_pytest(suite, "-k", "not without_a_call")
    result.assert_outcomes(passed=7)
    assert not list(suite.path.glob("*.db"))
    assert "judged" not in result.stdout.str()


def test_a_database_that_cannot_be_written_ends_the_run_with_its_reason(suite: pytest.Pytester) -> None:
    options = ("--torch-oracle=eager", "--torch-oracle-target=library.double", "--torch-oracle-db=no/folder/rows.db")
    result = run_pytest(suite, *options, "-k", "without_a_call")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["*torch-oracle: *no/folder*"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_a_subject_that_does_not_end_is_a_finding() -> None:
    late = Judgement(number=0, error="no end within 1 s, in stage 'subject'", is_late=True)
    assert verdict_of(late).status is Status.TIMEOUT
    elsewhere = verdict_of(Judgement(number=0, error="no end within 1 s, in stage 'eager'\nmore"))
    assert elsewhere.status is Status.PASS_DUE_TO_SKIP
    assert elsewhere.symptom == "not compared: no end within 1 s, in stage 'eager'"


def test_a_test_that_is_run_again_counts_once(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "rows.db"), {"subjects": "eager"})
    row = {
        "test": "test_it.py::test_it",
        "target": "library.double",
        "subject": "eager",
        "dtype": "float32",
        "direction": "forward",
        "device": "cpu",
        "wall_s": 0.5,
        "left_out": 2,
        "calls": 3,
        "repro": "",
        "started_at": "",
        "verdict": Verdict(status=Status.CRASH, symptom="the process died of signal 6").to_json(),
    }
    recorder.add([row])
    recorder.add([{**row, "verdict": Verdict(status=Status.PASS).to_json()}])
    recorder.end(is_complete=True)
    assert recorder.summary()[0].startswith("3 calls judged in 1 rows")
    assert "0 agree, 1 differ" in recorder.summary()[0]
    assert [status for status, _ in records_of(tmp_path / "rows.db").values()] == [Status.CRASH]


def test_every_module_of_an_unmarked_suite(suite: pytest.Pytester) -> None:
    options = ("--torch-oracle=library:wrong", "--torch-oracle-target=torch.nn.Module")
    result = run_pytest(suite, *options, "--torch-oracle-db=rows.db", "-k", "unmarked")
    result.assert_outcomes(failed=1)
    ((status, repro),) = records_of(suite.path / "rows.db").values()
    assert status is Status.FAIL_ACCURACY
    assert repro == " ".join(["pytest test_it.py::test_unmarked", *options])


def test_a_run_that_judged_nothing_is_no_success(suite: pytest.Pytester) -> None:
    result = run_pytest(suite, "--torch-oracle=eager", "-k", "unmarked")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["no call was judged*"])
    assert not list(suite.path.glob("*.db"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--torch-oracle-target=a.b"], "a compiler to judge"),
        (["--torch-oracle=eager", "--torch-oracle-calls=0"], "at least 1"),
        (["--torch-oracle=eager", "--torch-oracle-timeout=nan"], "more than 0"),
    ],
)
def test_wrong_options_end_the_run_before_the_first_test(
    pytester: pytest.Pytester, options: list[str], message: str
) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        pytester.parseconfigure(*options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.nn.nothing", "torch.nn has no nothing"),
        ("not_there.at_all", "no such module"),
        ("builtins.int", r"no torch\.nn\.Module"),
        ("math.pi", "of type float"),
    ],
)
def test_what_is_no_target_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_target(name)


def test_a_mark_with_an_unknown_option_fails_its_test(pytester: pytest.Pytester) -> None:
    item = pytester.getitem("import pytest\n@pytest.mark.oracle(subject='eager')\ndef test_it(): pass", "test_it")
    with pytest.raises(UsageError, match="the mark oracle with 'subject'"):
        RunningTest(item, Options.of(item.config))
