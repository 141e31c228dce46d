"""The command line of a shared build, without what costs time and changes no instruction. Torch-free.

Line tables for a debugger are left out. And the linker reads the symbols of torch's libraries, some 500 MB, for nothing but their
names in the result: it gets empty libraries of these names. Symbols are looked up in torch's when a kernel is loaded, as always.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SONAME = re.compile(r"\(SONAME\)[^\[]*\[([^\]]+)\]")
_LARGE_BYTES = 1 << 16  # smaller ones are read as fast as an empty one
_TOOL_S = 60.0


def quicker(words: Sequence[str], stubs: Path | None) -> list[str]:
    """The command with `-g0` for `-g1`, and with the libraries of `stubs` in front of those they stand for.

    `stubs` is a directory to make them in. The real ones stay in the command, for those that could not be made.
    """
    changed = ["-g0" if word == "-g1" else word for word in words]
    first = next((at for at, word in enumerate(changed) if word.startswith("-l")), None)
    if stubs is None or first is None or not _have_stubs(changed, stubs):
        return changed
    # An empty library gives no symbol, and linkers of some systems leave out what gives none.
    return [*changed[:first], f"-L{stubs}", "-Wl,--no-as-needed", *changed[first:]]


def _have_stubs(words: Sequence[str], stubs: Path) -> bool:
    """Make what is missing; whether there is any."""
    folders = [Path(word[2:]) for word in words if word.startswith("-L")]
    for name in (f"lib{word[2:]}.so" for word in words if word.startswith("-l")):
        library = next((folder / name for folder in folders if (folder / name).exists()), None)
        if library is not None and not (stubs / name).exists() and library.stat().st_size > _LARGE_BYTES:
            _make_stub(words[0], library, stubs)
    return stubs.exists()


def _make_stub(compiler: str, library: Path, stubs: Path) -> None:
    """An empty library that says of itself what the real one does; none where that is not known."""
    reader = shutil.which("readelf")
    if reader is None:
        return
    said = subprocess.run([reader, "-d", library], capture_output=True, text=True, check=False, timeout=_TOOL_S)
    soname = _SONAME.search(said.stdout)
    if soname is None:
        return
    stubs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stubs) as folder:
        source, stub = Path(folder) / "empty.c", Path(folder) / library.name
        source.write_text("")
        words = [compiler, "-shared", f"-Wl,-soname,{soname[1]}", "-nostdlib", str(source), "-o", str(stub)]
        if subprocess.run(words, capture_output=True, check=False, timeout=_TOOL_S).returncode == 0:
            os.replace(stub, stubs / library.name)
