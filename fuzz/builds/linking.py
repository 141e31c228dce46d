"""Makes the compiler's command line faster without changing any instruction. Does not import torch.

It leaves out the debugger's line tables. The linker reads some 500 MB of symbols in torch's libraries, and only needs the names
of the libraries, so it gets empty libraries with these names. Symbols are resolved when a kernel is loaded, as always.
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
    """The command with `-g0` instead of `-g1`, and with empty libraries before the real ones.

    The empty libraries are made in the directory `stubs`. The real ones stay in the command in case a stub could not be made.
    """
    changed = ["-g0" if word == "-g1" else word for word in words]
    first = next((at for at, word in enumerate(changed) if word.startswith("-l")), None)
    if stubs is None or first is None or not _have_stubs(changed, stubs):
        return changed
    # An empty library provides no symbol, and some systems' linkers drop libraries that provide none.
    return [*changed[:first], f"-L{stubs}", "-Wl,--no-as-needed", *changed[first:]]


def _have_stubs(words: Sequence[str], stubs: Path) -> bool:
    """Make the missing stubs. Returns whether there are any."""
    folders = [Path(word[2:]) for word in words if word.startswith("-L")]
    for name in (f"lib{word[2:]}.so" for word in words if word.startswith("-l")):
        library = next((folder / name for folder in folders if (folder / name).exists()), None)
        if library is not None and not (stubs / name).exists() and library.stat().st_size > _LARGE_BYTES:
            _make_stub(words[0], library, stubs)
    return stubs.exists()


def _make_stub(compiler: str, library: Path, stubs: Path) -> None:
    """Make an empty library with the real one's soname; none if the soname is not known."""
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
