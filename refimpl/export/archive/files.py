"""`save` and `load` of exported programs: zip files with JSON and safetensors.

Counterpart: torch/export/__init__.py save, load; torch/export/pt2_archive
Differs: no pickle, and files are written atomically.
"""

from __future__ import annotations

import io
import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from refimpl._torch import without_fake_mode
from refimpl.errors import RefimplError
from refimpl.export.archive.errors import ArchiveError, field
from refimpl.export.archive.program import program_record, to_program
from refimpl.export.exported_program import ExportedProgram

FORMAT = "refimpl.export"
VERSION = 1  # docs/export_archive.md says when to increase it
LARGEST_JSON = 2**30  # bytes, checked before unpacking

_MARKER, _PROGRAM, _TENSORS, _EXTRA = "archive.json", "program.json", "tensors.safetensors", "extra/"

File = str | os.PathLike[str] | IO[bytes]
# Errors that malformed content may cause besides ArchiveError; they become ArchiveErrors.
_MALFORMED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, RefimplError, RuntimeError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


def save(ep: ExportedProgram, f: File, *, extra_files: Mapping[str, str | bytes] | None = None) -> None:
    """Write a program to a file that `load` reads.

    f: a path, whose file is only replaced when all is written, or a binary file open for writing.
    extra_files: further contents by name (strings as UTF-8), which `load` can return.

    Raises ArchiveError for script objects, tensors that are not dense or have no data, and containers and functions that cannot
    be found by name; TypeError if `ep` is no ExportedProgram, or `f` no file.
    """
    if not isinstance(ep, ExportedProgram):
        raise TypeError(f"save got a {type(ep).__name__}\n  expected: an ExportedProgram of refimpl.export")
    with without_fake_mode(), torch.no_grad():
        record, data = program_record(ep)
        content = _zipped(record, data, _extra(extra_files))
    if isinstance(f, (str, os.PathLike)):
        _replace(Path(f), content)
    elif hasattr(f, "write"):
        f.write(content)
    else:
        raise TypeError(f"save got {f!r} for a file\n  expected: a path, or a binary file open for writing")


def load(f: File, *, extra_files: dict[str, Any] | None = None) -> ExportedProgram:
    """The program that `save` has written: equal graph, signature, state and ranges, with new tensors.

    f: a path, or a seekable binary file open for reading.
    extra_files: its keys are names of extra files to read; its values are set to strings, or to bytes if they are no UTF-8.

    Nothing in the file is run or imported: operators and containers must be registered before.
    Raises ArchiveError for other files, a damaged archive, one of a newer version, and for operators, containers and devices that
    this process does not have; FileNotFoundError; TypeError if `f` is no file.
    """
    if not isinstance(f, (str, os.PathLike)) and not (hasattr(f, "read") and hasattr(f, "seek")):
        raise TypeError(f"load got {f!r} for a file\n  expected: a path, or a binary file open for reading")
    name = str(getattr(f, "name", "the file")) if hasattr(f, "read") else str(f)
    record, data, extra = _unzipped(f, name, list(extra_files or ()))
    try:
        with without_fake_mode():
            program = to_program(record, data)
    except ArchiveError as error:
        raise _damaged(name, error) from error
    except _MALFORMED as error:
        raise _damaged(name, f"{type(error).__name__}: {error}") from error
    if extra_files is not None:
        extra_files.update(extra)
    return program


def _damaged(name: str, error: object) -> ArchiveError:
    if isinstance(error, ArchiveError):
        found = ArchiveError.__new__(ArchiveError)
        Exception.__init__(found, f"{name}: {error}")
        return found
    return ArchiveError(seen=f"{name} contains no valid program: {error}", expected="an archive as it was saved")


# ------------------------------------------------------------------------------------------------------------ writing


def _extra(extra_files: Mapping[str, str | bytes] | None) -> dict[str, bytes]:
    found = {}
    for name, content in (extra_files or {}).items():
        if not isinstance(name, str) or not name or not isinstance(content, (str, bytes)):
            raise TypeError(
                f"extra_files has {name!r} with a {type(content).__name__}\n  expected: names with strings or bytes"
            )
        found[name] = content.encode() if isinstance(content, str) else content
    return found


def _zipped(record: Mapping[str, Any], data: bytes, extra: Mapping[str, bytes]) -> bytes:
    marker = {"format": FORMAT, "version": VERSION, "torch": str(torch.__version__)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(_entry(_MARKER), json.dumps(marker))
        program = json.dumps(record, allow_nan=False, separators=(",", ":"))
        archive.writestr(_entry(_PROGRAM), program, zipfile.ZIP_DEFLATED, 1)
        archive.writestr(_entry(_TENSORS), data)
        for name, content in extra.items():
            archive.writestr(_entry(_EXTRA + name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    """A zip entry with a fixed time, so that equal programs have equal archives."""
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))


def _replace(path: Path, content: bytes) -> None:
    path = Path(os.path.realpath(path))  # a symbolic link remains one
    if path.exists() and not path.is_file():  # a device or pipe; for a directory this raises
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# ------------------------------------------------------------------------------------------------------------ reading


def _unzipped(f: File, name: str, wanted: list[str]) -> tuple[Any, bytes, dict[str, str | bytes]]:
    try:
        with zipfile.ZipFile(f) as archive:
            _check_marker(archive, name)
            record = _json(archive, _PROGRAM, name)
            data = archive.read(_TENSORS)
            return record, data, {key: _text(_extra_content(archive, key, name)) for key in wanted}
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        EOFError,
        OSError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        if isinstance(error, (ArchiveError, FileNotFoundError, PermissionError, IsADirectoryError)):
            raise
        raise _no_archive(f, name, error) from error
    except KeyError as error:
        raise ArchiveError(
            seen=f"{name} is incomplete: {error.args[0]}", expected=f"{_PROGRAM} and {_TENSORS}"
        ) from error


def _no_archive(f: File, name: str, error: Exception) -> ArchiveError:
    start = _start(f)
    if start[:2] == b"PK":
        return ArchiveError(seen=f"{name} is a damaged or truncated zip: {error}", expected="an archive as it was saved",
                            do="copy it again, or save the program again")  # fmt: skip
    return ArchiveError(
        seen=f"{name} is no zip; it begins with {start!r}",
        expected="an archive of refimpl.export.save",
        do="check which file it is; pickled programs are not loaded",
    )


def _start(f: File) -> bytes:
    if isinstance(f, (str, os.PathLike)):
        with open(f, "rb") as file:
            return file.read(16)
    f.seek(0)
    return f.read(16)


def _check_marker(archive: zipfile.ZipFile, name: str) -> None:
    names = archive.namelist()
    if _MARKER not in names:
        raise _foreign(names, name)
    if len(set(names)) != len(names):
        raise ArchiveError(seen=f"{name} has two files of one name", expected="an archive as it was saved")
    marker = _json(archive, _MARKER, name)
    if not isinstance(marker, dict) or marker.get("format") != FORMAT:
        raise ArchiveError(seen=f"{name} has an {_MARKER} of another format", expected=f"format {FORMAT!r}")
    version = field(marker, "version", int, _MARKER)
    if not 1 <= version <= VERSION:
        raise ArchiveError(
            seen=f"{name} is an archive of version {version}, saved with torch {marker.get('torch')}",
            expected=f"a version from 1 to {VERSION}",
            do="load it with the torch-oracle that saved it, or a later one"
            if version > VERSION
            else "save the program again",
        )


def _foreign(names: list[str], name: str) -> ArchiveError:
    last = {each.rsplit("/", 1)[-1] for each in names}
    if "archive_format" in last or "serialized_exported_program.json" in last:
        return ArchiveError(seen=f"{name} is an archive of torch.export (.pt2)", expected="an archive of refimpl.export.save",
                            do="load it with torch.export.load")  # fmt: skip
    if "data.pkl" in last:
        return ArchiveError(seen=f"{name} is a file of torch.save or torch.jit", expected="an archive of refimpl.export.save",
                            do="load it with torch.load or torch.jit.load; refimpl unpickles nothing")  # fmt: skip
    return ArchiveError(seen=f"{name} is a zip of {names[:5]}", expected=f"an archive of refimpl.export.save, with {_MARKER}",
                        do="check which file it is")  # fmt: skip


def _json(archive: zipfile.ZipFile, member: str, name: str) -> Any:
    size = archive.getinfo(member).file_size
    if size > LARGEST_JSON:
        raise ArchiveError(seen=f"{name}: {member} has {size} bytes", expected=f"at most {LARGEST_JSON}")
    try:
        return json.loads(archive.read(member))
    except (ValueError, RecursionError) as error:
        raise ArchiveError(
            seen=f"{name}: {member} is no JSON: {error}", expected="an archive as it was saved"
        ) from error


def _extra_content(archive: zipfile.ZipFile, key: str, name: str) -> bytes:
    if _EXTRA + key not in archive.namelist():
        saved = [each[len(_EXTRA) :] for each in archive.namelist() if each.startswith(_EXTRA)]
        raise ArchiveError(
            seen=f"{name} has no extra file {key!r}", expected=f"one of {saved}", do="ask for those that were saved"
        )
    return archive.read(_EXTRA + key)


def _text(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
