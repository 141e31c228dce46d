"""The interpreter on other versions of Python, where there are any on this machine. They need no torch."""

from __future__ import annotations

import functools
import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VERSIONS = ((3, 10), (3, 11), (3, 12), (3, 13))


@functools.cache
def other_python(version: tuple[int, int]) -> str | None:
    """Another interpreter on this machine."""
    name = f"python{version[0]}.{version[1]}"
    candidates = [
        shutil.which(name),
        *sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{name[6:]}.*/bin/python"))),
    ]
    for candidate in candidates:
        if candidate is not None:
            probe = [candidate, "-c", "import sys; print(*sys.version_info[:2])"]
            done = subprocess.run(probe, capture_output=True, text=True, check=False)
            if done.stdout.split() == [str(number) for number in version]:
                return candidate
    return None


@pytest.mark.parametrize("version", [v for v in VERSIONS if v != sys.version_info[:2]], ids=str)
def test_programs_do_what_they_do_in_other_versions_of_cpython(version: tuple[int, int]) -> None:
    python = other_python(version)
    if python is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine")
    script = Path(__file__).with_name("without_torch.py")
    done = subprocess.run([python, str(script), "15"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["version"] == list(version)
    assert report["compared"] > 250
    assert report["differences"] == []
    assert report["torch"] is False
