"""`torch-oracle fuzz` from outside: what it refuses, what it prints, what an interruption leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from fuzz.campaign import workers as campaign_workers
from fuzz.campaign.corpus import Corpus, read_json
from fuzz.campaign.settings import CampaignSettings
from oracle.cli import run
from oracle.errors import UsageError
from oracle.isolate import Pool
from oracle.subjects.registry import resolve
from oracle.tests.command_here import run_here
from results.store import Store

FAULTY = "compile:fuzz.tests.planted:wrong_for_rank_two"


@pytest.fixture(scope="module")
def workers() -> Iterator[Pool]:
    with campaign_workers._pool_here(CampaignSettings(subject=resolve(FAULTY)), {}) as pool:
        yield pool


@pytest.fixture
def kept_workers(workers: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process use the same workers: starting them takes longer than the few programs they judge."""
    monkeypatch.setattr(campaign_workers, "_pool_here", lambda settings, environment: nullcontext(workers))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--subject", "inductr"], "did you mean inductor"),
        (["--subject", "eager", "--focus", "everything"], "--focus everything"),
        (["--subject", "eager", "--time", "soon"], "--time soon"),
        (["--subject", "eager", "--count", "0"], "--count 0"),
        (["--subject", "eager", "--seed", "-1"], "--seed -1"),
        (["--subject", "eager", "--workers", "0"], "--workers 0"),
        (["--subject", "eager", "--number", "1", "--replay", "x.json"], "--number and --replay"),
        (["--subject", "eager", "--replay", "no/such/file.json"], "no/such/file.json"),
        (["--subject", "eager", "--db", "no/such/folder/x.db", "--count", "1"], "no/such/folder"),
    ],
)
def test_bad_options_are_said_and_exit_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fuzz", *arguments]) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_a_corpus_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = CampaignSettings(subject=resolve("eager"))
    with Corpus(tmp_path, settings.identity()):
        assert run(["fuzz", "--subject", "eager", "--count", "5", "--corpus", str(tmp_path)]) == 2
    assert "in use by process" in capsys.readouterr().err


def test_a_damaged_corpus_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = CampaignSettings(subject=resolve("eager"))
    Corpus(tmp_path, settings.identity()).close()
    (tmp_path / "state.json").write_text('{"format": 1, "work": [')
    assert run(["fuzz", "--subject", "eager", "--count", "5", "--corpus", str(tmp_path)]) == 2
    assert "state.json" in capsys.readouterr().err
    assert (tmp_path / "state.json").read_text() == '{"format": 1, "work": ['


@pytest.mark.usefixtures("kept_workers")
def test_findings_exit_with_1_and_are_in_the_corpus_the_database_and_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "fuzz",
        "--subject",
        FAULTY,
        "--count",
        "15",
        "--focus",
        "ops",
        "--no-reduce",
        "--json",
        "--workers",
        "1",
    ]
    arguments += ["--corpus", str(tmp_path / "corpus"), "--db", str(tmp_path / "fuzz.db")]
    assert run(arguments) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    findings = [row["finding"] for row in rows if "finding" in row]
    summary = rows[-1]["summary"]
    assert summary["programs"] == 15
    assert {row["key"] for row in findings} == {row["key"] for row in summary["buckets"]}
    files = sorted(path.stem for path in (tmp_path / "corpus" / "findings").iterdir())
    assert files == sorted(row["key"] for row in findings)
    with Store.open(tmp_path / "fuzz.db", create=False) as store:
        info = store.run()
        assert info.is_complete
        records = list(store.records())
    assert sorted(record.name for record in records) == sorted([*files, "seed-0-ops"])
    assert {record.verdict.status.value for record in records if record.name in files} == {
        row["status"] for row in findings
    }
    # and one of them alone
    replayed = ["fuzz", "--subject", FAULTY, "--workers", "1"]
    assert run([*replayed, "--replay", str(tmp_path / "corpus" / "findings" / f"{files[0]}.json")]) == 1
    out = capsys.readouterr().out
    assert "def program(" in out
    found = next(row for row in findings if row["key"] == files[0])
    (tmp_path / "own.toml").write_text(
        f'[[issue]]\nid = "own"\ntitle = "t"\nlink = "https://example.org/1"\nseverity = "wrong value"\nexpires = 2099-01-01\n'
        f'rung = "{found["rung"] or found["subject"]}"\nstatuses = ["{found["status"]}"]\n'
        f'source = "def program(x): return x\\ndef inputs(call): return (1,), {{}}"\n'
        f"finding = {{ operators = {json.dumps(found['operators'])} }}\n"
    )
    again = [*replayed, "--replay", str(tmp_path / "corpus" / "findings" / f"{files[0]}.json")]
    assert run([*again, "--known", str(tmp_path / "own.toml")]) == 0
    assert "known own (" in capsys.readouterr().out
    number = next(row["numbers"][0] for row in findings if row["key"] == files[0])
    assert run([*replayed, "--seed", "0", "--number", str(number), "--focus", "ops", "--json"]) == 1
    alone = json.loads(capsys.readouterr().out)
    stored = read_json(tmp_path / "corpus" / "findings" / f"{files[0]}.json")
    assert alone["program"] == stored["program"]


@pytest.mark.usefixtures("kept_workers")
def test_a_full_disk_is_said_after_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Corpus, data: object) -> None:
        raise UsageError(seen="state.json: No space left on device", expected="room on the disk", do="make room")

    monkeypatch.setattr(Corpus, "save_state", full)
    arguments = ["fuzz", "--subject", FAULTY, "--count", "12", "--focus", "ops", "--no-reduce", "--workers", "1"]
    assert run([*arguments, "--corpus", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "No space left on device" in told.err
    assert "programs of seed 0" in told.out


@pytest.mark.usefixtures("kept_workers")
def test_an_interruption_shows_the_findings_that_wait_and_promises_nothing() -> None:
    """The campaign has no corpus. Each finding waits until the one worker has judged all programs."""
    arguments = ["fuzz", "--subject", FAULTY, "--focus", "ops", "--workers", "1", "--count", "40"]
    done = run_here(*arguments, interrupted_at="fail_accuracy")
    said, out = done.stderr, done.stdout
    assert done.returncode == 1, said
    assert "interrupted after" in said
    assert "nothing is kept without --corpus DIR" in said
    assert "the same command goes on with them" not in out
    assert "the same command continues" not in said
    found, _, waiting = out.partition("findings were not confirmed or reduced before the end")
    # of the finding that was confirmed and reduced, and of one that waits: the program, what it gets, how to repeat it
    for part in (found, waiting):
        assert "def program(" in part
        assert "# call 0: x0 = torch." in part
        assert "  repeat: torch-oracle fuzz --subject " in part
    assert "with --corpus DIR the same command would go on:" in waiting
    assert "seen again in another process" in waiting


@pytest.mark.usefixtures("kept_workers")
def test_an_interruption_gives_the_summary_and_the_same_command_goes_on(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    arguments = ["fuzz", "--subject", "compile:fuzz.tests.planted:honest", "--focus", "ops"]
    arguments += ["--corpus", str(corpus), "--workers", "1"]
    deadline = time.monotonic() + 120

    def has_seen_some() -> bool:
        return len(list(corpus.glob("interesting/*"))) > 10 or time.monotonic() > deadline

    done = run_here(*arguments, "--count", "60", interrupted_when=has_seen_some)
    assert done.returncode == 2, done.stderr
    assert "interrupted after" in done.stderr
    assert "programs of seed 0" in done.stdout
    state = read_json(corpus / "state.json")
    assert 10 < sum(state["statuses"].values()) < 60
    assert run([*arguments, "--count", "70"]) == 0
    after = read_json(corpus / "state.json")
    assert sum(after["statuses"].values()) >= 70
    assert not after["work"]
