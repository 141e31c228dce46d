"""The corpus directory: locked, versioned, never half-written; what is wrong with it is said, and nothing of it is lost."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fuzz.campaign import corpus as corpus_module
from fuzz.campaign.corpus import Corpus, read_json, write_json
from fuzz.campaign.settings import CampaignSettings
from fuzz.campaign.state import CampaignState, new_state
from oracle.errors import UsageError
from oracle.subjects.registry import resolve

IDENTITY = {"subject": "eager", "seed": 0, "focus": "all"}


def test_a_new_corpus_is_continued_by_the_same_campaign(tmp_path: Path) -> None:
    with Corpus(tmp_path / "new" / "corpus", IDENTITY) as corpus:
        assert corpus.state() is None
        corpus.save_state({"format": 1, "x": [1, 2]})
        corpus.save_finding("abc", {"kind": "k"})
        corpus.save_interesting(7, {"p": 1}, ["aten:aten.add.Tensor"])
    with Corpus(tmp_path / "new" / "corpus", IDENTITY) as again:
        assert again.state() == {"format": 1, "x": [1, 2]}
    assert read_json(tmp_path / "new" / "corpus" / "findings" / "abc.json") == {"format": 1, "kind": "k"}
    assert read_json(tmp_path / "new" / "corpus" / "interesting" / "7.json")["features"] == ["aten:aten.add.Tensor"]


def test_two_campaigns_on_one_directory_are_refused(tmp_path: Path) -> None:
    with Corpus(tmp_path, IDENTITY), pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
        Corpus(tmp_path, IDENTITY)
    Corpus(tmp_path, IDENTITY).close()  # free again


def test_a_corpus_of_another_campaign_is_refused(tmp_path: Path) -> None:
    Corpus(tmp_path, IDENTITY).close()
    with pytest.raises(UsageError, match="belongs to a campaign with seed 0") as refused:
        Corpus(tmp_path, {**IDENTITY, "seed": 3})
    assert "seed 3" in refused.value.expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "corpus.json"),
        ("[]", "holds a JSON list"),
        ('{"format": 99}', "format 99"),
        ('{"format": 1}', "without a campaign"),
        ("\x00\xff", "corpus.json"),
    ],
)
def test_a_damaged_or_newer_corpus_is_refused_and_left_alone(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "corpus.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=said):
        Corpus(tmp_path, IDENTITY)
    assert path.read_bytes() == text.encode("latin-1")


def test_a_directory_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(UsageError, match=r"holds thesis\.tex"):
        Corpus(tmp_path, IDENTITY)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        Corpus(tmp_path / "file", IDENTITY)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"programs": 1})

    def full(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(corpus_module.os, "fsync", full)
    with pytest.raises(UsageError, match="No space left") as refused:
        write_json(path, {"programs": 2})
    assert "room on the disk" in refused.value.expected
    assert read_json(path) == {"programs": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["state.json"]


def test_what_is_not_json_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(tmp_path / "state.json", {"x": float("nan")})
    assert not (tmp_path / "state.json").exists()


@pytest.mark.parametrize("damage", ["truncated", "newer", "fields", "types"])
def test_a_damaged_state_is_refused(tmp_path: Path, damage: str) -> None:
    settings = CampaignSettings(subject=resolve("eager"))
    with Corpus(tmp_path, settings.identity()) as corpus:
        corpus.save_state(new_state(settings).to_json())
        path = tmp_path / "state.json"
        text = path.read_text()
        data = json.loads(text)
        match damage:
            case "truncated":
                path.write_text(text[: len(text) // 2])
            case "newer":
                path.write_text(json.dumps({**data, "format": 2}))
            case "fields":
                del data["work"]
                path.write_text(json.dumps(data))
            case _:
                path.write_text(json.dumps({**data, "buckets": 3}))
        with pytest.raises(UsageError):
            CampaignState.from_json(corpus.state() or {})


def test_a_state_comes_back_as_it_was() -> None:
    settings = CampaignSettings(subject=resolve("eager"))
    state = new_state(settings)
    state.statuses["pass"] += 3
    state.factors[2] = {"op:torch.add": 1.5}
    assert CampaignState.from_json(json.loads(json.dumps(state.to_json()))).to_json() == state.to_json()
    assert CampaignSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_the_long_script_is_beside_a_short_one_only(tmp_path: Path) -> None:
    with Corpus(tmp_path, IDENTITY) as corpus:
        corpus.save_scripts("key", "short", "long")
        assert _scripts(tmp_path) == {"key.py": "short", "key_long.py": "long"}
        corpus.save_scripts("key", "", "longer")  # of a smaller program, which no short script shows
        assert _scripts(tmp_path) == {"key.py": "longer"}
        corpus.save_scripts("other", "", "")  # of a subject that torch does not have
        assert _scripts(tmp_path) == {"key.py": "longer"}


def _scripts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (directory / "findings").glob("*.py")}


def test_a_missing_file_and_a_damaged_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="check the path"):
        read_json(tmp_path / "none.json")
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(UsageError, match="restore it from a backup"):
        read_json(tmp_path / "damaged.json")
