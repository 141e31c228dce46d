"""What the workers of a campaign share on a machine, and the slots of a cluster that have it too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.builds.server import BUILDS
from fuzz.campaign import workers
from fuzz.campaign.workers import SharedCompilers, folder_of_process
from oracle.cluster import SlotSettings
from oracle.cluster.messages import task_to_json
from oracle.cluster.slot import Slot
from oracle.tests.isolate_tasks import task


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files. Not pytest's, whose path is too long for a socket in it."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


def test_the_folder_is_deleted_at_the_end_and_kept_files_stay_when_it_is_full(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_MOST_FILES", 2)
    with SharedCompilers(1, builds=True) as shared:
        cache = Path(shared.environment["TORCHINDUCTOR_CACHE_DIR"])
        assert Path(shared.environment[BUILDS]).is_socket()
        (cache / "probe").write_text("")
        shared.keep()
        for name in "ab":
            (cache / name).write_text("")
        shared.before_batch()
        assert {path.name for path in cache.iterdir()} == {"probe", "a", "b"}
        (cache / "c").write_text("")
        shared.before_batch()
        assert {path.name for path in cache.iterdir()} == {"probe"}
    assert list(temporary.iterdir()) == []


def test_folders_of_processes_that_were_killed_are_deleted(temporary: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = folder_of_process()
    host = mine.name.partition("-")[0]
    (left := mine.with_name(f"{host}-{ended.pid}-x")).mkdir()
    (elsewhere := mine.with_name(f"another-{ended.pid}-x")).mkdir()  # of another machine that shares this folder
    (running := mine.with_name(f"{host}-{os.getppid()}-x")).mkdir()
    other = folder_of_process()
    assert other != mine
    assert [path.is_dir() for path in (mine, other, left, elsewhere, running)] == [True, True, False, True, True]


def test_a_link_in_the_place_of_the_folder_is_not_followed(temporary: Path) -> None:
    (kept := temporary / "elsewhere").mkdir()
    (temporary / f"torch-oracle-fuzz-{os.getuid()}").symlink_to(kept)
    assert folder_of_process().parent == temporary
    assert list(kept.iterdir()) == []


def test_a_slot_gives_its_workers_what_they_share_and_ends_it(temporary: Path) -> None:
    settings = SlotSettings(workers=1, service="fuzz.campaign.workers:builds_of_slot", environment={"GIVEN": "yes"})
    names = ["GIVEN", BUILDS, "TORCHINDUCTOR_CACHE_DIR"]
    reading = json.dumps([task_to_json(task("read_environment", names=names))])
    slot = Slot(settings.to_json())
    try:
        found = json.loads(slot.work(reading, 60.0))
        (result,) = found["results"]
        variables = result["end"]["value"]["values"]
        assert variables["GIVEN"] == "yes"
        assert Path(variables[BUILDS]).is_socket()
        assert Path(variables["TORCHINDUCTOR_CACHE_DIR"]).is_dir()
    finally:
        slot.stop()
    assert not Path(variables["TORCHINDUCTOR_CACHE_DIR"]).exists()
