"""The conformance command on a made-up source tree: every way a test can end, the denominator, bad input."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from oracle.cli import run

# With stock torch `make_fx` is torch's, with the subject refimpl's: a test that looks which one it has can be made to
# pass with the first and to end in any way with the second.
TEST_FILE = """
import os
import signal
import sys
import time
import unittest

import torch
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import a_name_of_the_past, sym_float
from torch.a_module_of_the_past import something
from torch.testing._internal import optests

try:
    from torch.fx.experimental.proxy_tensor import another_name_of_the_past as guarded
except ImportError:
    guarded = None

IS_REFIMPL = make_fx.__module__.startswith("refimpl")


def traced(trace):
    return trace(lambda x: x.sin() + 1)(torch.ones(2))


class TestMadeUp(unittest.TestCase):
    def test_traces(self):
        self.assertTrue(torch.equal(traced(make_fx)(torch.zeros(2)), torch.ones(2)))

    def test_traces_by_the_module_and_inside_a_function(self):
        from torch.fx.experimental.proxy_tensor import make_fx as inner

        self.assertIs(inner, make_fx)
        self.assertIs(proxy_tensor.make_fx, make_fx)
        self.assertTrue(torch.equal(traced(proxy_tensor.make_fx)(torch.zeros(2)), torch.ones(2)))

    def test_traces_by_the_harness(self):
        optests.make_fx_check(torch.sin, (torch.ones(2),), {}, "real")

    def test_torch_itself_keeps_its_own(self):
        traced(make_fx)
        own = sys.modules["torch.fx.experimental.proxy_tensor"].__dict__["make_fx"]
        self.assertTrue(own.__module__.startswith("torch."))

    def test_is_wrong(self):
        traced(make_fx)
        self.assertFalse(IS_REFIMPL)

    def test_raises(self):
        traced(make_fx)
        if IS_REFIMPL:
            raise KeyError("first line\\nsecond line")

    def test_hangs(self):
        traced(make_fx)
        if IS_REFIMPL:
            time.sleep(1000)

    def test_dies(self):
        traced(make_fx)
        if IS_REFIMPL:
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_swallows_a_breach(self):
        traced(make_fx)
        if IS_REFIMPL:
            file = os.path.join(os.path.dirname(sys.modules["refimpl"].__file__), "made_up.py")
            scope = {}
            exec(compile("def call(function): return function(abs)", file, "exec"), scope)
            try:
                scope["call"](getattr(proxy_tensor, "make_" + "fx"))
            except Exception:
                pass

    def test_never_traces(self):
        self.assertIsNone(guarded)
        self.assertEqual(sym_float(1), 1.0)

    def test_is_wrong_with_stock_too(self):
        traced(make_fx)
        self.fail("always")

    def test_is_skipped(self):
        traced(make_fx)
        self.skipTest("not here")

    def test_uses_a_missing_name(self):
        a_name_of_the_past(1)

    def test_uses_a_missing_module(self):
        something.more()

    @unittest.expectedFailure
    def test_is_expected_to_fail(self):
        traced(make_fx)
        self.fail("as expected")

    @unittest.expectedFailure
    def test_is_expected_to_fail_in_vain(self):
        traced(make_fx)

    @a_name_of_the_past(2)
    def test_is_decorated_by_a_missing_name(self):
        pass
"""
# test -> how it ends with stock torch, with the stand-in, with refimpl; "" where it does not run
EXPECTED = {
    "test_traces": ("pass", "error", "pass"),
    "test_traces_by_the_module_and_inside_a_function": ("pass", "error", "pass"),
    "test_traces_by_the_harness": ("pass", "error", "pass"),
    "test_torch_itself_keeps_its_own": ("pass", "error", "pass"),
    "test_is_wrong": ("pass", "error", "fail"),
    "test_raises": ("pass", "error", "error"),
    "test_hangs": ("pass", "error", "timeout"),
    "test_dies": ("pass", "error", "crash"),
    "test_swallows_a_breach": ("pass", "error", "breach"),
    "test_never_traces": ("pass", "pass", ""),
    "test_is_wrong_with_stock_too": ("fail", "", ""),
    "test_is_skipped": ("skip", "", ""),
    "test_uses_a_missing_name": ("error", "", ""),
    "test_uses_a_missing_module": ("error", "", ""),
    "test_is_expected_to_fail": ("xfail", "xfail", ""),
    "test_is_expected_to_fail_in_vain": ("xpass", "", ""),
    "test_is_decorated_by_a_missing_name": ("error", "", ""),
}


def made_up_tree(folder: Path, text: str = TEST_FILE) -> Path:
    (folder / "test").mkdir(parents=True)
    (folder / "test" / "test_proxy_tensor.py").write_text(text, encoding="utf-8")
    (folder / "version.txt").write_text("2.1.0a0\n", encoding="utf-8")
    return folder


class FirstRun:
    """One run over the made-up tree, for all tests that look at what it gave."""

    def __init__(self, folder: Path) -> None:
        self.tree = made_up_tree(folder / "pytorch")
        self.cache = folder / "cache"
        self.output = folder / "rows.csv"
        self.code = run(self.arguments("--output", str(self.output)))
        with self.output.open(encoding="utf-8") as file:
            self.rows = {row["test"].rpartition(".")[2]: row for row in csv.DictReader(file)}

    def arguments(self, *more: str) -> list[str]:
        fixed = ["conformance", "--pytorch-src", str(self.tree), "--suite", "proxy_tensor"]
        return [*fixed, "--workers", "2", "--timeout", "5", "--cache", str(self.cache), *more]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    return FirstRun(tmp_path_factory.mktemp("conformance"))


@pytest.mark.parametrize("test", EXPECTED)
def test_every_ending_has_its_word(first_run: FirstRun, test: str) -> None:
    row = first_run.rows[test]
    assert (row["stock"], row["stand_in"], row["subject"]) == EXPECTED[test], row["error"]


def test_the_denominator_is_what_passes_with_stock_and_not_without_the_entry_points(first_run: FirstRun) -> None:
    inside = {test for test, row in first_run.rows.items() if row["in_denominator"] == "True"}
    assert inside == {test for test, (stock, stand_in, _) in EXPECTED.items() if (stock, stand_in) == ("pass", "error")}
    passed = {test for test, row in first_run.rows.items() if row["passed"] == "True"}
    assert passed == {test for test, endings in EXPECTED.items() if endings[2] == "pass"}


def test_rows_are_in_the_order_of_the_file_as_unittest_sorts_it(first_run: FirstRun) -> None:
    assert list(first_run.rows) == sorted(EXPECTED)


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("test_is_wrong", "AssertionError: True is not false"),
        ("test_raises", "KeyError: 'first line\\nsecond line'"),
        ("test_hangs", "still running after 5 s"),
        ("test_dies", "signal 11"),
        ("test_swallows_a_breach", "refimpl calls make_fx in fx/experimental/proxy_tensor.py, from call in"),
        ("test_uses_a_missing_name", "MissingName: torch.fx.experimental.symbolic_shapes.a_name_of_the_past"),
        ("test_uses_a_missing_module", "MissingName: torch.a_module_of_the_past"),
        ("test_is_skipped", "not here"),
    ],
)
def test_a_row_says_what_went_wrong(first_run: FirstRun, test: str, says: str) -> None:
    assert says in first_run.rows[test]["error"]


def test_failures_that_no_table_names_make_the_exit_code_1(first_run: FirstRun) -> None:
    assert first_run.code == 1


def test_a_second_run_of_the_same_code_takes_all_passes_from_the_cache(
    first_run: FirstRun, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_text(encoding="utf-8") for path in first_run.cache.iterdir()}
    assert sorted(path.name.rsplit("-", 2)[-2] for path in before) == ["in", "refimpl", "stock"], "one file a pass"
    assert run(first_run.arguments("-k", "test_never", "-k", "*expected_to_fail")) == 0
    said = capsys.readouterr()
    assert "refimpl passes 0 of 0 (nothing to pass)" in said.out
    assert "tests," not in said.err, "nothing ran"
    assert {path: path.read_text(encoding="utf-8") for path in first_run.cache.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pytorch-src", "/no/such/folder"), ("/no/such/folder", "source tree")),
        (("--pytorch-src", "{empty}"), ("no folder `test`", "source tree")),
        (("--suite", "proxy_tensors"), ("proxy_tensors", "dynamic_shapes")),
        (("--suite", "dynamic_shapes"), ("test/test_dynamic_shapes.py",)),
        (("--subject", "inductor"), ("inductor", "refimpl, torch")),
        (("--timeout", "0"), ("--timeout",)),
        (("--workers", "0"), ("--workers",)),
        (("--memory", "-1"), ("--memory",)),
        (("--output", "rows.xlsx"), ("rows.xlsx", ".csv or .jsonl")),
        (("--output", "no/such/folder/rows.csv"), ("no/such/folder",)),
        (("-k", "test_that_is_nowhere"), ("test_that_is_nowhere", "-k")),
    ],
)
def test_bad_input_is_named_with_what_is_expected(
    first_run: FirstRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:  # fmt: skip
    given = [argument.format(empty=tmp_path) for argument in arguments]
    assert run([*first_run.arguments(), *given]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert all(word in said for word in words), said


def test_a_file_that_does_not_load_is_refused_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = made_up_tree(tmp_path / "pytorch", "import a_library_that_nobody_has\n")
    cache = tmp_path / "cache"
    code = run(["conformance", "--pytorch-src", str(tree), "--suite", "proxy_tensor", "--cache", str(cache)])
    said = capsys.readouterr().err
    assert code == 2
    assert "No module named 'a_library_that_nobody_has'" in said
    assert "shims.py" in said
    assert not cache.exists()


CAPTURE_FILE = """
import torch
import torch._dynamo.testing
from torch._dynamo.testing import CompileCounter, EagerAndRecordGraphs

from unittest import TestCase


class TestCaptured(TestCase):
    def test_compiles_by_the_harness(self):
        torch._dynamo.testing.standard_test(self, fn=lambda x, y: x + y, nargs=2)

    def test_compiles(self):
        counter = CompileCounter()
        self.assertTrue(torch.equal(torch.compile(torch.neg, backend=counter)(torch.ones(2)), -torch.ones(2)))
        self.assertEqual(counter.frame_count, 1)
"""


def test_a_suite_of_capture_uses_the_harness_of_the_installed_torch(tmp_path: Path) -> None:
    """Its modules go through the substitutes too, though one of the substituted names lives in a module that imports them."""
    (tmp_path / "test" / "dynamo").mkdir(parents=True)
    (tmp_path / "test" / "dynamo" / "test_ctx_manager.py").write_text(CAPTURE_FILE, encoding="utf-8")
    (tmp_path / "version.txt").write_text("2.1.0a0\n", encoding="utf-8")
    output = tmp_path / "rows.csv"
    named = ["--pytorch-src", str(tmp_path), "--suite", "dynamo_ctx_manager", "--output", str(output)]
    assert run(["conformance", *named, "--workers", "1", "--timeout", "60"]) == 0
    with output.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["stock"], row["stand_in"], row["subject"]) for row in rows] == [("pass", "error", "pass")] * 2
