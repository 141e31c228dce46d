"""Exported programs as bytes in memory, by the names that upstream's own callers use.

Counterpart: torch/_export/serde/serialize.py serialize, deserialize, SerializedArtifact
Differs: the bytes are an archive of `refimpl.export.save`, not upstream's schema. Nothing is pickled, and upstream's options for
versions of operators and for pickle have no effect.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

from refimpl.export.archive.files import load, save
from refimpl.export.exported_program import ExportedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializedArtifact:
    """`exported_program` is the archive. The other parts, which upstream keeps apart, are in it, and empty here."""

    exported_program: bytes
    state_dict: bytes = b""
    constants: bytes = b""
    example_inputs: bytes = b""


def serialize(
    exported_program: ExportedProgram,
    opset_version: Mapping[str, int] | None = None,
    pickle_protocol: int | None = None,
) -> SerializedArtifact:
    """The program as bytes. Raises the errors of `save`."""
    buffer = io.BytesIO()
    save(exported_program, buffer)
    return SerializedArtifact(exported_program=buffer.getvalue())


def deserialize(
    artifact: SerializedArtifact,
    expected_opset_version: Mapping[str, int] | None = None,
    *,
    _unsafe_skip_version_check: bool = False,
) -> ExportedProgram:
    """The program that `serialize` was given, with new tensors. Raises the errors of `load`."""
    return load(io.BytesIO(artifact.exported_program))
