"""Fixtures and options of all test suites: goldens that one command rewrites, tests that need a GPU."""

from __future__ import annotations

import difflib
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from oracle.isolate import keep_starters

# Threads of torch that wait for work use a whole processor unless they are told to sleep. That was half of the time of tests that
# compile: there are as many threads as processors in each test process, and two such processes. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# The same examples in every run: a test that fails here and there is a bug. HYPOTHESIS_PROFILE=default looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile(PROFILE := os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
if PROFILE == "repeatable":
    # Hypothesis also draws numbers and texts that it reads in the source of every loaded module of ours. Examples would depend on
    # which other tests are collected, and each process would parse a thousand files.
    providers._get_local_constants = lambda: providers._local_constants

# A shell starts background jobs with Ctrl-C ignored, and that is inherited; what tests start is to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--accept`, which `make accept` uses."""
    parser.addoption("--accept", action="store_true", default=False, help="rewrite goldens from what the code does now")


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the slow cases of fractional tests, and skips the tests marked gpu where there is no GPU.

    torch is loaded only if there are tests marked gpu.
    """
    matrices: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("fractional"):
            matrices.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, matrix in matrices.items():
        thin_out(name, matrix)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not has_cuda():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))


def thin_out(name: str, matrix: list[pytest.Function]) -> None:
    """Of the cases of a fractional test, leaves one in `step` as it is and marks the others slow: a fractional factorial design.

    A case is quick if the sum of its places on the axes, one for each `parametrize`, is a multiple of `step`. With the usual step
    of 2 every value of every axis stays, and every pair of values if there are three axes or more.
    """
    marker = matrix[0].get_closest_marker("fractional")
    assert marker is not None
    step = int(marker.args[0]) if marker.args else 2
    places: dict[tuple[object, ...], dict[tuple[int, ...], int]] = {}
    kept: set[tuple[object, int]] = set()
    for case in matrix:
        where: list[tuple[tuple[object, ...], int]] = []
        for axis in case.iter_markers("parametrize"):
            names = (
                tuple(map(str.strip, axis.args[0].split(","))) if isinstance(axis.args[0], str) else tuple(axis.args[0])
            )
            rows = places.setdefault(names, {})
            where.append((names, rows.setdefault(tuple(id(case.callspec.params[each]) for each in names), len(rows))))
        if sum(place for _, place in where) % step:
            case.add_marker(pytest.mark.slow)
        else:
            kept.update(where)
    if lost := [names for names, rows in places.items() for place in rows.values() if (names, place) not in kept]:
        raise pytest.UsageError(f"{name}: fractional({step}) leaves no quick case of some values of {lost[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Imports the test modules without garbage collections, which were a quarter of the time of that.

    Imports make many objects and few cycles.
    """
    gc.disable()
    try:
        import_from_the_end(session.config)
        return (yield)
    finally:
        gc.enable()


def import_from_the_end(config: pytest.Config) -> None:
    """Has every second process of pytest-xdist import all test modules in reverse order before it collects them.

    In a fresh checkout pytest rewrites the assertions of each module, which takes two fifths of the time to collect. It keeps the
    result in a file: processes that come from both ends rewrite half of the modules each.
    """
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if int(worker[2:]) % 2 == 0 or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    names = [
        ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
        for folder in config.getini("testpaths")
        for path in sorted((config.rootpath / folder).rglob("test_*.py"))
        if (path.parent / "__init__.py").is_file()
    ]
    for name in reversed(names):
        with suppress(Exception):  # the collection tells of it
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """Prepares the process for tests, after every test module is imported.

    torch's own test helpers, which some modules import, make assignments to torch.backends.* raise; that is undone, because other
    tests check that such assignments are seen.
    """
    torch = sys.modules.get("torch")
    if torch is not None and "torch.testing._internal.common_utils" in sys.modules:
        # torch.backends is a wrapper of its module; its functions see the module's own names.
        torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True
    spare_the_traces()
    spare_the_stacks()
    # A compiler makes many objects and few cycles: with the default of 700 objects, collections were a tenth of the time.
    gc.set_threshold(20_000, 10, 10)
    # The modules of all tests stay until the process ends. A collection that walks them takes most of a second, and the
    # children that tests fork would copy each page that it writes to.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _what_stays_is_walked_once() -> Iterator[None]:
    """Whatever a module's tests leave in the process is not walked by the collections that come after.

    Compilers keep much for the life of the process. After some thousand tests a full collection, with which a benchmark begins,
    took 18 seconds on a busy machine.
    """
    spare_the_traces()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _pools_share_starters() -> Iterator[None]:
    """A pool of a test goes on with the starter of an earlier one with the same settings, which has imported torch already."""
    with keep_starters(2, ignored=frozenset({"PYTEST_CURRENT_TEST"})):
        yield


def spare_the_traces() -> None:
    """Keeps pytest's handlers away from the logger of torch's structured traces.

    That logger does not propagate, and pytest 9.2 gives each such logger its handlers. torch takes a logger with handlers for one
    that somebody reads: it then prints every graph and table of guards, a tenth of the time of a test that compiles.
    A logger that propagates gets none. torch makes it one that does not whenever its logs are set up, so this is said again.
    """
    logging.getLogger("torch.__trace").propagate = True


def spare_the_stacks() -> None:
    """Keeps `torch.manual_seed` from formatting the stack three times, which takes more than a millisecond below a test.

    Where a kind of device is missing, torch keeps the seed for later, with a stack for the message of an error.
    """
    for device in ("cuda", "xpu", "mtia"):
        module = sys.modules.get(f"torch.{device}")
        if module is not None:
            vars(module)["traceback"] = SimpleNamespace(format_stack=list)


def has_cuda() -> bool:
    """Says whether torch sees a CUDA device."""
    import torch  # noqa: PLC0415  optional heavy: most selections have no GPU test, and torch takes seconds to load

    return torch.cuda.is_available()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Returns `golden(name, text)`: fails unless `goldens/<name>` beside the test file holds exactly `text`.

    Under `--accept` the file is written instead. Nothing is normalised: what varies must not be in the text.
    """
    directory = request.path.parent / "goldens"
    is_accepting = bool(request.config.option.accept)

    def compare(name: str, text: str) -> None:
        __tracebackhide__ = True
        path = directory / name
        if is_accepting:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            return
        if not path.is_file():
            pytest.fail(f"there is no golden {shown(path, request)}; `make accept` writes it", pytrace=False)
        expected = path.read_bytes().decode()
        if expected != text:
            pytest.fail(difference(expected, text, shown(path, request)), pytrace=False)

    return compare


@pytest.fixture
def run_forked(tmp_path: Path) -> Callable[[str], object]:
    """Returns `run_forked(script)`: how the script ends and what it prints, as a main program in a fork of the test process."""
    from oracle.tests import forked_script  # noqa: PLC0415  optional heavy: it loads torch

    return lambda script: forked_script.run_forked(script, tmp_path)


@pytest.fixture
def run_fresh(tmp_path: Path) -> Callable[..., Any]:
    """Returns `run_fresh(script, *arguments)`: the same in a fork of a process that has imported nothing but torch."""
    from oracle.tests import forked_script  # noqa: PLC0415  optional heavy: it loads torch

    return lambda script, *arguments: forked_script.run_fresh(script, tmp_path, *arguments)


def shown(path: Path, request: pytest.FixtureRequest) -> str:
    """Returns the path as a reader of the message would type it."""
    root = request.config.rootpath
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def difference(expected: str, actual: str, name: str) -> str:
    """Returns the message for a golden that is not what it was."""
    lines = difflib.unified_diff(
        expected.splitlines(keepends=True), actual.splitlines(keepends=True), f"{name} (golden)", f"{name} (now)"
    )
    body = "".join(line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n" for line in lines)
    return f"{body}\nIf the change is meant: make accept, and read the diff before committing it."
