"""The corpus: a directory that keeps a campaign's findings and state, so that it can be continued. Does not import torch.

    corpus.json     format and what the campaign is (subject, seed, focus ...)
    state.json      everything a campaign knows (`fuzz.campaign.state`)
    findings/       per bucket KEY.json (the reduced program, its source, the verdict) and, where torch alone can show it,
                    KEY.py, a script for a bug report; if that has a few lines only, KEY_long.py compares all that can be seen
    interesting/    programs that reached a part of the compiler that no earlier one had reached
    lock            held by the campaign that is running

Every file is written under another name and then renamed: after a full disk or a killed process it is either the old or the new
one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from oracle.errors import UsageError

FORMAT_VERSION = 1
_MOST_INTERESTING = 5000  # files; a campaign keeps no more than this


class Corpus:
    """A directory, locked while it is open. Use as a context manager."""

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        """Open or begin the corpus of the campaign that `identity` describes.

        Raises UsageError for a directory that another campaign is using, that is of a newer format or damaged, that belongs to
        another campaign, that holds something else, or that cannot be written.
        """
        self.directory = directory
        self._interesting = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = open(directory / "lock", "a+", encoding="utf-8")  # noqa: SIM115 - held while the corpus is open
        except OSError as error:
            raise UsageError(
                seen=f"--corpus {directory}: {error}", expected="a directory that can be written", do="name another one"
            ) from error
        try:
            self._take_lock()
            self._check_or_begin(identity)
            for name in ("findings", "interesting"):
                (directory / name).mkdir(exist_ok=True)
            self._interesting = sum(1 for _ in (directory / "interesting").iterdir())
        except OSError as error:
            self._lock.close()
            raise UsageError(
                seen=f"--corpus {directory}: {error}", expected="a directory that can be written", do="name another one"
            ) from error
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory for another campaign."""
        self._lock.close()

    def state(self) -> dict[str, Any] | None:
        """The state that an earlier campaign saved, as JSON; None if there was none. Raises UsageError if it is damaged."""
        path = self.directory / "state.json"
        return read_json(path) if path.exists() else None

    def save_state(self, data: Mapping[str, Any]) -> None:
        """Raises UsageError if it cannot be written (a full disk); the old state is kept then."""
        self._write("state.json", data)

    def save_finding(self, key: str, data: Mapping[str, Any]) -> Path:
        return self._write(f"findings/{key}.json", {"format": FORMAT_VERSION, **data})

    def save_scripts(self, key: str, short: str, long: str) -> None:
        """Write the shortest one as `KEY.py`, and the long one beside it. Raises UsageError where they cannot be written."""
        if short or long:
            self.save_script(key, short or long)
        if short and long:
            self.save_script(f"{key}_long", long)
        else:  # of an earlier, larger program
            (self.directory / f"findings/{key}_long.py").unlink(missing_ok=True)

    def save_script(self, key: str, text: str) -> Path:
        """Raises UsageError where it cannot be written."""
        path = self.directory / f"findings/{key}.py"
        write_text(path, text)
        return path

    def save_interesting(self, number: int, program: Mapping[str, Any], features: list[str]) -> None:
        if self._interesting >= _MOST_INTERESTING:
            return
        self._interesting += 1
        data = {"format": FORMAT_VERSION, "features": features, "program": dict(program)}
        write_json(self.directory / f"interesting/{number}.json", data, durable=False)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            raise UsageError(
                seen=f"--corpus {self.directory} is in use by process {owner}",
                expected="a corpus that no campaign is running on",
                do="wait for it, stop it, or give this campaign another directory",
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def _check_or_begin(self, identity: Mapping[str, Any]) -> None:
        path = self.directory / "corpus.json"
        if not path.exists():
            others = sorted(item.name for item in self.directory.iterdir() if item.name != "lock")
            if others:
                raise UsageError(
                    seen=f"--corpus {self.directory} holds {', '.join(others[:3])} but no corpus.json",
                    expected="a corpus, or an empty or new directory",
                    do="name another directory, or restore corpus.json",
                )
            self._write("corpus.json", {"format": FORMAT_VERSION, "campaign": dict(identity)})
            return
        data = read_json(path)
        version = data.get("format")
        if version != FORMAT_VERSION:
            raise UsageError(
                seen=f"{path} has format {version!r}",
                expected=f"format {FORMAT_VERSION}",
                do="use the torch-oracle version that wrote it, or name another directory",
            )
        own = data.get("campaign")
        if not isinstance(own, Mapping):
            raise UsageError(
                seen=f"{path} without a campaign",
                expected="a corpus.json that a campaign wrote",
                do="name another directory",
            )
        different = [f"{key} {own.get(key)!r}" for key in identity if own.get(key) != identity[key]]
        if different:
            raise UsageError(
                seen=f"--corpus {self.directory} belongs to a campaign with {', '.join(different)}",
                expected=", ".join(f"{key} {identity[key]!r}" for key in identity if own.get(key) != identity[key]),
                do="continue it with its own options, or name another directory",
            )

    def _write(self, name: str, data: Mapping[str, Any]) -> Path:
        path = self.directory / name
        write_json(path, data)
        return path


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises UsageError if the file cannot be read or holds anything else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            seen=f"{path}: {error}",
            expected="a JSON file as torch-oracle wrote it",
            do="restore it from a backup, or use another directory" if path.exists() else "check the path",
        ) from error
    if not isinstance(data, dict):
        raise UsageError(
            seen=f"{path} holds a JSON {type(data).__name__}", expected="a JSON object", do="restore it from a backup"
        )
    return data


def write_json(path: Path, data: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write under another name, then rename. Raises UsageError if that fails; the old file is untouched then.

    `durable` waits for the disk, so that the file survives a power failure.
    """
    write_text(path, json.dumps(data, allow_nan=False, separators=(",", ":")), durable=durable)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Like `write_json`, for text."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise UsageError(
            seen=f"{path} cannot be written: {error}",
            expected="room on the disk" if full else "a directory that can be written",
            do="make room and run the same command again: it continues from what was saved before",
        ) from error
