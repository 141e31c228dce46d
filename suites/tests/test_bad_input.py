"""Bad input: one clear message with what to do, exit code 2, nothing written."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from oracle import environment
from oracle.cli import run
from oracle.errors import UsageError
from oracle.isolate import Pool
from oracle.subjects.registry import resolve
from oracle.subjects.usability import check_usable
from oracle.sweep import Limits
from results.store import Store
from results.tests import fabricate
from suites.base import Selection
from suites.planning import Shard
from suites.request import SweepRequest

DRILL = "suites.tests.drill_subjects"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    __tracebackhide__ = True
    code = run(list(arguments))
    said = capsys.readouterr().err
    assert code == 2, f"exit code is {code}, but should be 2: {said}"
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--suite", "opinfos"), ("'opinfos'", "did you mean 'opinfo'")),
        (("--suite", "mutations"), ("which was removed", "`torch-oracle fuzz --focus views`")),
        (("--subject", "inducter"), ("'inducter'", "inductor")),
        (("--subject", "inductor[mood=x]"), ("mood",)),
        (("--subject", "inductor[mode=fastest]"), ("fastest", "max-autotune")),
        (("--subject", "not a path:x"), ("module:function",)),
        (("--subject", "dynamo,aot_eager,dynamo"), ("'dynamo' 2 times",)),
        (("--subject", f"{DRILL}:right,eager, {DRILL}:right"), (f"'{DRILL}:right' 2 times",)),
        (("--dtype", "float23"), ("float23", "bfloat16")),
        (("--tag", "nosuchtag"), ("nosuchtag", "sample")),
        (("--direction", "sideways"), ("sideways", "backward")),
        (("--shard", "3/2"), ("3/2", "i/n")),
        (("--shard", "one"), ("one",)),
        (("--device", "tpu"), ("tpu", "cuda")),
        (("--time", "soon"), ("soon", "10m")),
        (("--workers", "0"), ("0",)),
        (("--case-timeout", "-1"), ("-1",)),
        (("--memory", "0"), ("--memory",)),
        (("--max-samples", "0"), ("--max-samples",)),
        (("--speed-precision", "2"), ("--speed-precision 2 without --speed",)),
        (("--speed", "--speed-precision", "0"), ("--speed-precision 0", "above 0")),
        (("--speed", "--speed-precision", "nan"), ("--speed-precision nan", "above 0")),
        (("--speed", "--speed-precision", "2", "--speed-processes", "1"), ("--speed-processes 1", "2 <= processes")),
        (("--speed", "--speed-precision", "2", "--speed-most-processes", "2"), ("--speed-most-processes 2",)),
        (("--no-such-option",), ("--no-such-option",)),
        (("--max-samples", "many"), ("--max-samples", "integer")),
        (("--subjects-file", "/no/such.toml", "--subject", "mine"), ("/no/such.toml",)),
    ],
)
def test_a_wrong_option_is_named_with_what_is_expected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    database = tmp_path / "x.db"
    said = refused(capsys, "sweep", *arguments, "--db", str(database))
    assert all(word in said for word in words), said
    assert not database.exists()


def test_two_subjects_of_one_name_do_not_become_one() -> None:
    """What a run was asked for may come from a database: its suites' subjects are put together by name."""
    request = SweepRequest(
        suites=("features", "models"), selection=Selection(),
        subjects={"features": (resolve("dynamo"),), "models": (resolve("dynamo"),)}, shard=Shard(index=1, count=1),
        limits=Limits(), options={}, workers=1, threads=1,
    )  # fmt: skip
    assert request.spec_by_name() == {"dynamo": resolve("dynamo")}
    other = replace(resolve("dynamo"), options={"dynamic": True})
    with pytest.raises(UsageError, match="'dynamo' of suite models with other options"):
        replace(request, subjects={**request.subjects, "models": (other,)}).spec_by_name()


def test_a_match_without_a_program_is_refused_before_anything_is_planned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = refused(capsys, "sweep", "--suite", "features", "--match", "no_such_*", "--db", str(tmp_path / "x.db"))
    assert "no_such_*" in said
    assert "torch-oracle list features" in said


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(workers=1, preload=("torch",)) as made:
        yield made


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("no_such_module_at_all:backend", ("no_such_module_at_all",)),
        (f"{DRILL}:no_such_backend", ("no_such_backend",)),
        (f"{DRILL}:not_callable", ("not_callable", "callable")),
        (f"{DRILL}:returns_a_number", ("returns_a_number", "callable")),
        (f"compile:{DRILL}:not_callable", ("callable",)),
    ],
)
def test_a_backend_that_cannot_be_used_is_named(pool: Pool, subject: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        check_usable([resolve(subject)], pool)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_backend_that_cannot_be_used_is_refused_once_and_not_per_row(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    database = tmp_path / "x.db"
    subject = f"{DRILL}:returns_a_number"
    said = refused(
        capsys, "sweep", "--suite", "features", "--match", "recursion", "--subject", subject, "--db", str(database)
    )
    assert "callable" in said
    assert said.count("returns_a_number") == 1
    with Store.open(database, create=False) as store:
        assert store.runs() == []


def test_no_compiler_is_said_before_inductor_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = refused(capsys, "sweep", "--suite", "features", "--subject", "inductor", "--db", str(tmp_path / "x.db"))
    assert "no-such-compiler" in said
    assert "install" in said


@pytest.mark.parametrize(
    ("version", "is_supported"), [("2.10.1", False), ("2.11.0", True), ("2.13.0+cpu", True), ("2.14.0", False)]
)
def test_torch_outside_the_supported_range_is_refused(version: str, is_supported: bool) -> None:
    if is_supported:
        environment.check_supported(torch_version=version)
        return
    with pytest.raises(UsageError, match=r"2\.11"):
        environment.check_supported(torch_version=version)


def test_resume_without_an_interrupted_run_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "x.db" in refused(capsys, "sweep", "--resume", "--db", str(tmp_path / "x.db"))


def test_a_database_of_a_newer_schema_is_left_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    database = tmp_path / "x.db"
    fabricate.database(database, [fabricate.record(fabricate.case("recursion"))])
    with sqlite3.connect(database) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        (meta,) = [name for name in tables if "meta" in name]
        columns = [row[1] for row in connection.execute(f"pragma table_info({meta})")]
        connection.execute(f"update {meta} set {columns[-1]} = 999")
    connection.close()
    before = database.read_bytes()
    capsys.readouterr()
    said = refused(
        capsys, "sweep", "--suite", "features", "--match", "recursion", "--subject", "eager", "--db", str(database)
    )
    assert "999" in said
    assert database.read_bytes() == before


def test_a_full_disk_is_said_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists() or shutil.which("true") is None:
        pytest.skip("this system has no /dev/full")
    assert "/dev/full" in refused(capsys, "sweep", "--suite", "features", "--subject", "eager", "--db", "/dev/full")


def test_a_directory_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capsys, "sweep", "--suite", "features", "--subject", "eager", "--db", str(tmp_path / "no" / "x.db"))
    assert str(tmp_path / "no") in said
