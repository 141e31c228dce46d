"""Hooks of pytest: options, the mark `oracle`, the fixture `oracle_check`, rows and the summary. docs/pytest.md is the guide.

With pytest-xdist the tests run in worker processes. Their rows travel in the test reports, and the first process writes them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from oracle.errors import UsageError
from results.files import DB_VARIABLE
from suites.pytest_plugin.recording import Recorder

if TYPE_CHECKING:
    from suites.pytest_plugin.judging import TestJudge

_NAME: Final = "torch-oracle-judging"
_ROWS: Final = "torch_oracle_rows"  # the attribute of a test report
_MARK: Final = (
    "oracle(subjects=None, targets=None): with --torch-oracle, judge the calls of modules, or of targets, in this test"
)
_EVERY_MODULE: Final = "torch.nn.Module"
_DEFAULT_SUBJECT: Final = "inductor"
_DEFAULT_DB: Final = "torch-oracle.db"
_MARK_OPTIONS: Final = ("subjects", "targets")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torch-oracle", "compiled PyTorch against eager (torch-oracle)")
    group.addoption(
        "--torch-oracle",
        metavar="SUBJECTS",
        help="compilers to judge, such as inductor, or aot_eager,export (`torch-oracle list subjects`)",
    )
    group.addoption(
        "--torch-oracle-target",
        metavar="NAME",
        action="append",
        default=[],
        help="judge the calls of this function, or of modules of this class, in every test: package.function;"
        " torch.nn.Module for the calls of all modules. Can be given several times",
    )
    group.addoption(
        "--torch-oracle-calls",
        metavar="N",
        type=int,
        default=5,
        help="judge the first N calls that a test makes of each target (default: 5)",
    )
    group.addoption(
        "--torch-oracle-db", metavar="DATABASE", help=f"where the rows go (default: ${DB_VARIABLE}, or {_DEFAULT_DB})"
    )
    group.addoption(
        "--torch-oracle-save", metavar="FOLDER", help="save the arguments and state of the call on which a test differs"
    )
    group.addoption(
        "--torch-oracle-timeout", metavar="SECONDS", type=float, default=300.0, help="limit of one call (default: 300)"
    )
    parser.addini("torch_oracle", "compilers to judge, as --torch-oracle", default="")
    parser.addini("torch_oracle_targets", "as --torch-oracle-target, one a line", type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    try:
        options = Options.of(config)
        if options.subjects:
            _prepare(options, runs_tests=not _leaves_tests_to_workers(config))
    except UsageError as error:
        raise pytest.UsageError(f"torch-oracle: {error}") from error
    config.pluginmanager.register(_Judging(options), _NAME)
    if (options.subjects or options.db is not None) and not hasattr(config, "workerinput"):  # as xdist's workers have
        db = options.db or os.environ.get(DB_VARIABLE) or _DEFAULT_DB
        config.pluginmanager.register(_Writing(Recorder(db, options.to_json()), options))


@pytest.fixture(scope="session")
def oracle_check(pytestconfig: pytest.Config) -> Callable[..., Mapping[str, Any]]:
    """`oracle_check(fn, *inputs, kwargs=None, subjects=None, **options)` judges a call, and fails the test if a subject differs.

    `fn` is a function or an nn.Module, and the options are those of `oracle.check`. It judges with and without `--torch-oracle`:
    on `subjects`, else on those of the mark `oracle`, of `--torch-oracle`, or on inductor. Returns a verdict for each subject.
    """
    judging: Any = pytestconfig.pluginmanager.get_plugin(_NAME)

    def check(fn: Callable[..., Any], *inputs: Any, **options: Any) -> Mapping[str, Any]:
        __tracebackhide__ = True
        if judging.current is None:
            raise UsageError(
                seen="oracle_check called outside of a test", expected="a call in the test itself", do="move it there"
            )
        return judging.current.judge.check(fn, *inputs, **options)

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options from the command line and the ini file."""

    subjects: str  # empty: only `oracle_check` judges
    targets: tuple[str, ...]
    calls: int
    db: str | None
    save_to: Path | None
    timeout_s: float

    @classmethod
    def of(cls, config: pytest.Config) -> Options:
        """Raises UsageError for a value that no run can use."""
        given: str | None = config.getoption("--torch-oracle")
        calls: Any = config.getoption("--torch-oracle-calls")
        timeout_s: Any = config.getoption("--torch-oracle-timeout")
        save_to = config.getoption("--torch-oracle-save")
        options = cls(
            subjects=(config.getini("torch_oracle") if given is None else given).strip(),
            targets=tuple(config.getoption("--torch-oracle-target") or config.getini("torch_oracle_targets")),
            calls=calls,
            db=config.getoption("--torch-oracle-db"),
            save_to=None if save_to is None else Path(save_to).absolute(),
            timeout_s=timeout_s,
        )
        if options.calls < 1:
            raise UsageError(
                seen=f"--torch-oracle-calls {options.calls}", expected="at least 1", do="leave it out for 5"
            )
        if not options.timeout_s > 0:
            raise UsageError(
                seen=f"--torch-oracle-timeout {options.timeout_s}", expected="seconds, more than 0", do="leave it out"
            )
        if config.getoption("--torch-oracle-target") and not options.subjects:
            raise UsageError(
                seen=f"--torch-oracle-target {options.targets[0]} and no compiler",
                expected="a compiler to judge",
                do="add --torch-oracle=inductor",
            )
        return options

    def repro(self, test: str) -> str:
        """The command that runs one test alone with these options."""
        words = ["pytest", test, f"--torch-oracle={self.subjects or _DEFAULT_SUBJECT}"]
        words += [f"--torch-oracle-target={target}" for target in self.targets]
        return shlex.join(words)

    def to_json(self) -> dict[str, Any]:
        return {"subjects": self.subjects, "targets": list(self.targets), "calls": self.calls}


def _prepare(options: Options, *, runs_tests: bool) -> None:
    """Look up all subjects and targets, so that a wrong name ends the run before the first test. Raises UsageError for one.

    With `runs_tests` the compiler is warmed up, too: processes forked from this one need not load it again.
    """
    import hypothesis  # noqa: PLC0415 - only where calls are judged

    from suites.pytest_plugin.judging import load_subjects, warm_up  # noqa: PLC0415 - torch takes seconds
    from suites.pytest_plugin.targets import find_target  # noqa: PLC0415

    subjects = load_subjects(split_subjects(options.subjects))
    for target in options.targets:
        find_target(target)
    if runs_tests:
        warm_up(subjects)
        # Judging an example takes longer than Hypothesis allows by default.
        hypothesis.settings.register_profile("torch-oracle", hypothesis.settings.default, deadline=None)
        hypothesis.settings.load_profile("torch-oracle")


def _leaves_tests_to_workers(config: pytest.Config) -> bool:
    """Whether pytest-xdist runs the tests in other processes."""
    return getattr(config.option, "dist", "no") != "no" and bool(getattr(config.option, "tx", None))


def split_subjects(text: str) -> list[str]:
    from oracle.subjects.registry import split_names  # noqa: PLC0415 - torch takes seconds

    return split_names(text)


class _Judging:
    """The hooks of a process that runs tests."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.current: RunningTest | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        try:
            self.current = test = RunningTest(item, self._options)
            watching = test.watching()
        except UsageError as error:
            pytest.fail(f"torch-oracle: {error}", pytrace=False)
        with watching:
            result = yield
        test.finish()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" and self.current is not None:
            setattr(report, _ROWS, self.current.rows())
            self.current = None
        return report


class RunningTest:
    """A test that runs now."""

    def __init__(self, item: pytest.Item, options: Options) -> None:
        self._item, self._options = item, options
        self._judge: TestJudge | None = None
        mark = item.get_closest_marker("oracle")
        self._is_marked = mark is not None
        self._mark: Mapping[str, Any] = {} if mark is None else mark.kwargs
        unknown = [] if mark is None else [*mark.args, *(set(mark.kwargs) - set(_MARK_OPTIONS))]
        if unknown:
            raise UsageError(
                seen=f"the mark oracle with {unknown[0]!r}",
                expected="subjects=[...] and targets=[...] at most",
                do="give both by name",
            )

    def watching(self) -> AbstractContextManager[None]:
        """While this context is open, calls of the targets are judged."""
        targets = self._targets()
        if not targets:
            return nullcontext()
        return self.judge.watching(targets, getattr(self._item, "funcargs", {}))

    def _targets(self) -> Sequence[Any]:
        if not self._options.subjects:
            return []
        if not self._is_marked:
            return self._options.targets
        return self._mark.get("targets") or self._options.targets or [_EVERY_MODULE]

    @property
    def judge(self) -> TestJudge:
        if self._judge is None:
            from suites.pytest_plugin.judging import TestJudge  # noqa: PLC0415 - torch takes seconds

            given = self._mark.get("subjects") or split_subjects(self._options.subjects) or [_DEFAULT_SUBJECT]
            self._judge = TestJudge(
                self._item.nodeid,
                given,
                calls=self._options.calls,
                timeout_s=self._options.timeout_s,
                save_to=None
                if self._options.save_to is None
                else self._options.save_to / _file_name(self._item.nodeid),
                repro=self._options.repro(self._item.nodeid),
            )
        return self._judge

    def finish(self) -> None:
        """Fail a test that passed, if it caught the error of a difference, or was marked and nothing was judged."""
        __tracebackhide__ = True
        if self._judge is not None and self._judge.difference is not None:
            raise self._judge.difference
        if self._is_marked and self._options.subjects and not self.rows():
            pytest.fail(
                "the mark oracle, but this test called none of its targets: nothing was judged."
                " Name what it calls: @pytest.mark.oracle(targets=[function])",
                pytrace=False,
            )

    def rows(self) -> list[dict[str, Any]]:
        return [] if self._judge is None else [row.to_json() for row in self._judge.rows]


def _file_name(test: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in test)[-150:]


@contextmanager
def _told() -> Iterator[None]:
    """An error of the database ends the run of pytest, with the message alone."""
    try:
        yield
    except UsageError as error:
        pytest.exit(f"torch-oracle: {error}", returncode=pytest.ExitCode.USAGE_ERROR)


class _Writing:
    """The hooks of the process that writes the rows."""

    def __init__(self, recorder: Recorder, options: Options) -> None:
        self._recorder, self._options = recorder, options

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = getattr(report, _ROWS, None)
        if rows:
            with _told():
                self._recorder.add(rows)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        with _told():
            self._recorder.end(
                is_complete=exitstatus not in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
            )
        if self._options.subjects and exitstatus == pytest.ExitCode.OK and not self._recorder.calls:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("torch-oracle")
        for line in self._recorder.summary():
            terminalreporter.write_line(line)
