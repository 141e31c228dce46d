"""In a worker process: loads the test files of a suite once, then runs single tests.

`loaded` loads the files on its first call. `warm.py` calls it before workers are forked, so that a pass loads them only once (the
operator database takes seconds).
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import functorch.compile
import torch
from torch._functorch import compilers
from torch.fx.experimental.sym_node import SymNode

from oracle.hygiene import differences, snapshot
from suites.conformance.guard import IndependenceGuard
from suites.conformance.job import JOB_VARIABLE, STAND_IN, STOCK, Job
from suites.conformance.outcomes import Ending, TestOutcome
from suites.conformance.source import Names, TestFiles, original_of
from suites.conformance.stand_in import Phase, raising
from suites.conformance.table import SUITES, ConformanceSuite

_MESSAGE_LENGTH = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    tests: dict[str, unittest.TestCase]
    names: tuple[str, ...]
    guard: IndependenceGuard | None
    subject_folder: str


@functools.lru_cache(maxsize=1)
def loaded() -> _Loaded | str:
    """The tests of this process's job by id, in the order of the files; or the traceback of what prevented loading."""
    try:
        return _load(Job.from_variable(os.environ[JOB_VARIABLE]))
    except (Exception, SystemExit):  # the top level of a test file may raise anything
        return traceback.format_exc()


def _load(job: Job) -> _Loaded:
    suite = SUITES[job.suite]
    substitutes, places, subject_folder = _substitutes_for(job.subject, suite)
    root = Path(job.tests_folder)
    # A file's own folder comes first on the path, as when it is run directly: two folders may have files with the same name.
    folders = dict.fromkeys([*((root / file).parent for file in suite.files), root])
    files = TestFiles(tuple(folders), Names(substitutes, places), harness=suite.harness)
    files.install()
    tests: dict[str, unittest.TestCase] = {}
    for file in suite.files:
        for test in _tests_of(files.load(file)):
            if not suite.classes or any(fnmatch(type(test).__name__, glob) for glob in suite.classes):
                tests[test.id()] = test
    guard = None
    if job.is_guarded:
        guard = IndependenceGuard(
            torch_folder=Path(torch.__file__).parent,
            refimpl_folder=Path(subject_folder),
            forbidden_functions=(torch.compile,),
            allowed_functions=_given_by_tests(),
            allowed_files=tuple(str(sys.modules[name].__file__) for name in suite.harness if name in sys.modules),
            public_classes=(torch.SymInt, torch.SymFloat, torch.SymBool, SymNode, torch.nn.Module),
        )
    Phase.is_testing = True
    return _Loaded(tests=tests, names=tuple(substitutes), guard=guard, subject_folder=subject_folder)


_COMPILERS = ("nop", "debug_nop", "ts_compile", "simple_ts_compile", "print_compile")


def _given_by_tests() -> tuple[Any, ...]:
    """Functions of upstream that refimpl may call: a public one, the one that registers eager's batching rules at the first
    vmap, and compilers that tests pass as arguments."""
    boxed = functorch.compile.make_boxed_func(len)  # each wrapper that it makes has this code
    named = [getattr(compilers, name) for name in _COMPILERS]
    load = vars(sys.modules["torch._functorch.vmap"])["lazy_load_decompositions"]
    return torch.func.functional_call, load, boxed, *named, *map(inspect.unwrap, named)


def _substitutes_for(subject: str, suite: ConformanceSuite) -> tuple[dict[str, object], dict[str, str], str]:
    """Upstream name -> its substitute; upstream name -> the substitute's dotted name; the folder of the subject's source."""
    if subject == STOCK:
        return {}, {}, ""
    from oracle.subjects import refimpl  # noqa: PLC0415 - a pass with stock torch must not depend on refimpl

    if subject == STAND_IN:
        return {name: raising(name, original_of(name)) for name in refimpl.substituted_names(suite.parts)}, {}, ""
    parts = (*suite.parts, *suite.companions)
    return refimpl.substitutes(parts), refimpl.substitute_places(parts), str(refimpl.SOURCE_FOLDER)


def _tests_of(module: types.ModuleType) -> Iterator[unittest.TestCase]:
    loader = unittest.TestLoader()
    for value in list(vars(module).values()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == module.__name__:
            for name in loader.getTestCaseNames(value):
                yield value(name)


def collect(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """The ids of all tests in order, torch's version, the substituted names, a hash of refimpl's source; or why the files do not
    load.
    """
    state = loaded()
    if isinstance(state, str):
        return {"error": state}
    return {
        "tests": list(state.tests),
        "torch": torch.__version__,
        "names": list(state.names),
        "source": _source_digest(),
    }


def _source_digest() -> str:
    """Hash of refimpl's source: kept outcomes are valid for this source only."""
    from oracle.subjects import refimpl  # noqa: PLC0415 - as above

    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(refimpl.SOURCE_FOLDER.rglob("*.py")):
        if "tests" not in path.relative_to(refimpl.SOURCE_FOLDER).parts:
            digest.update(str(path.relative_to(refimpl.SOURCE_FOLDER)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run_test(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Run one test, with its class and module fixtures. `replace_worker` is set if it changed the process."""
    state = loaded()
    assert not isinstance(state, str), state  # collect has reported this before
    test = state.tests.get(payload["test"])
    if test is None:
        return TestOutcome(test=payload["test"], ending=Ending.ERROR, error="the file has no such test here").to_json()
    before = snapshot()
    result = _Result(state.subject_folder, test_file=type(test).__module__)
    began = time.perf_counter()
    with state.guard.watch() if state.guard is not None else nullcontext():
        unittest.TestSuite([test]).run(result)
    seconds = time.perf_counter() - began
    ending, error, where = result.ending, result.error, result.where
    if state.guard is not None and state.guard.breaches:
        ending, error = Ending.BREACH, state.guard.breaches[0]
    outcome = TestOutcome(test=payload["test"], ending=ending, seconds=seconds, error=error, where=where)
    return {**outcome.to_json(), "replace_worker": bool(differences(before, snapshot()))}


class _Result(unittest.TestResult):
    """Keeps how a test ended, and the first thing that went wrong."""

    def __init__(self, subject_folder: str, *, test_file: str) -> None:
        super().__init__()
        self._subject_folder = subject_folder
        self._test_file = f"{test_file}.py"
        self.ending = Ending.PASS
        self.error = ""
        self.where = ""

    def _failed(self, ending: Ending, error: Any) -> None:
        if self.ending in (Ending.FAIL, Ending.ERROR):
            return
        kind, value, trace = error
        self.ending = ending
        self.error = f"{kind.__name__}: {_first_line(value)}"
        self.where = self._innermost(trace)

    def _innermost(self, trace: types.TracebackType | None) -> str:
        frames = traceback.extract_tb(trace)
        for is_relevant in (self._is_subject, lambda name: Path(name).name == self._test_file):
            for frame in reversed(frames):
                if is_relevant(frame.filename):
                    return f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}"
        return ""

    def _is_subject(self, name: str) -> bool:
        return bool(self._subject_folder) and name.startswith(self._subject_folder)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802 - unittest's names
        super().addFailure(test, err)
        self._failed(Ending.FAIL, err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._failed(Ending.ERROR, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._failed(Ending.FAIL if issubclass(err[0], test.failureException) else Ending.ERROR, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.ending, self.error = Ending.SKIP, reason

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self.ending, self.error = Ending.XFAIL, f"{err[0].__name__}: {_first_line(err[1])}"

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self.ending = Ending.XPASS


def _first_line(error: BaseException) -> str:
    """The first line with text; the first two for an assertion that compares texts."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:_MESSAGE_LENGTH]
