"""Files of the cache: written atomically, checked when read, removed when there are too many.

A file is one line `refimpl.compile_cache VERSION KEY HASH`, then a compressed JSON text whose SHA-256 is HASH. Its name is the
key.

Counterpart: torch/_inductor/codecache.py FxGraphCache._write_to_local_cache, write_atomic; AOTAutogradCache._lookup
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

from refimpl.aot.options import AOTSettings

MAGIC = "refimpl.compile_cache"
LARGEST_RECORD = 2**28  # bytes of JSON, checked while unpacking
_SUFFIX, _UNFINISHED = ".program", ".part"
_OLD_S = 3600.0  # unfinished files that are older were left behind by a process that ended
_KEPT_SHARE = 0.75  # of the allowed bytes, after files were removed


class Unusable(Exception):
    """A file that exists and is not used. The message says why."""


def folder_of(settings: AOTSettings) -> Path:
    """The folder of the settings: the one that is set, TORCH_ORACLE_AUTOGRAD_CACHE, or one in the user's cache.

    Raises OSError if none is set, and the user has no home.
    """
    chosen = settings.autograd_cache_folder or os.environ.get("TORCH_ORACLE_AUTOGRAD_CACHE")
    if chosen:
        return Path(chosen)
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError(f"no folder is set, and there is no home for one: {error}") from error
    return base / "torch-oracle" / "autograd"


def read(folder: Path, key: str, version: int) -> Any:
    """The JSON value of a file; None if there is no such file. Raises Unusable for one that is damaged or not ours."""
    path = folder / f"{key}{_SUFFIX}"
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            _check_owner(os.fstat(file.fileno()))
            head, _, packed = file.read().partition(b"\n")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a path that the system cannot have
        raise Unusable(f"it cannot be read: {error}") from error
    expected = f"{MAGIC} {version} {key} {hashlib.sha256(packed).hexdigest()}".encode()
    if head != expected:
        raise Unusable(_difference(head, expected))
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, LARGEST_RECORD)
        if not unpacker.eof:
            raise Unusable(f"its content has more than {LARGEST_RECORD} bytes, or ends early")
        found = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise Unusable(f"its content cannot be unpacked: {error}") from error
    with contextlib.suppress(OSError):
        os.utime(path)  # files used last are kept longest
    return found


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe in its place is opened at once, without a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_owner(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Unusable("it is no regular file")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise Unusable(f"it belongs to another user ({found.st_uid})")


def _difference(head: bytes, expected: bytes) -> str:
    parts, ours = head[:200].split(b" "), expected.split(b" ")
    if len(parts) != len(ours) or parts[0] != ours[0]:
        return f"it begins with {head[:40]!r}, not with {MAGIC!r}"
    for name, part, own in zip(("name", "version", "key"), parts, ours, strict=False):
        if part != own:
            return f"its {name} is {part[:80].decode(errors='replace')!r}, not {own.decode()!r}"
    return "its content does not have the hash that it was written with: it is damaged or truncated"


def write(folder: Path, key: str, version: int, record: Any, most_bytes: int) -> None:
    """Write a file, then remove the files used longest ago if all together have more bytes. Raises OSError.

    The file appears whole or not at all: of two writers of a key, the later one replaces the file of the other.
    """
    packed = zlib.compress(json.dumps(record, allow_nan=False, separators=(",", ":")).encode(), 1)
    head = f"{MAGIC} {version} {key} {hashlib.sha256(packed).hexdigest()}\n".encode()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = folder / f"{uuid.uuid4().hex}{_UNFINISHED}"
    try:
        with unfinished.open("xb") as file:
            file.write(head + packed)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, folder / f"{key}{_SUFFIX}")
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    clean(folder, most_bytes)


def clean(folder: Path, most_bytes: int) -> None:
    """Remove the files used longest ago until the others have at most `most_bytes`, and unfinished files of earlier hours."""
    files: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        try:
            found = path.lstat()
        except OSError:  # another process has removed it
            continue
        if path.suffix == _UNFINISHED and time.time() - found.st_mtime > _OLD_S:
            _remove(path)
        elif path.suffix == _SUFFIX:
            files.append((found.st_mtime, found.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= most_bytes:
        return
    for _, size, path in sorted(files):
        if total <= most_bytes * _KEPT_SHARE:
            return
        _remove(path)
        total -= size


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
