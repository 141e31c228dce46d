"""The fingerprint says what ran where, tells no secrets, and needs no torch in the parent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oracle import environment
from oracle.environment import check_supported, find_compiler, fingerprint, recorded_variables, torch_fingerprint
from oracle.errors import UsageError


def test_the_fingerprint_is_json_and_names_the_machine() -> None:
    data = json.loads(json.dumps(fingerprint()))
    # Packages leave the build out.
    assert data["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert data["versions"]["numpy"]
    assert data["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert data["cores"] >= data["usable_cores"] >= 1
    assert data["memory_bytes"] > 1 << 28
    assert set(data["cpu_flags"]) <= set(environment._ISA_FLAGS)


def test_the_parent_needs_no_torch() -> None:
    program = (
        "import sys; from oracle.environment import fingerprint, check_supported, find_compiler; "
        "fingerprint(); check_supported(); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"


def test_torch_tells_its_build_and_threads() -> None:
    data = json.loads(json.dumps(torch_fingerprint()))
    assert data["torch"] == torch.__version__
    assert data["torch_git"] == torch.version.git_version
    assert data["threads"] == torch.get_num_threads()
    assert isinstance(data["devices"], list)


def test_variables_are_recorded_by_list_and_secrets_never() -> None:
    variables = {
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_CACHE_DIR": "/x",
        "CUDA_VISIBLE_DEVICES": "0",
        "HOME": "/home/me",
        "AWS_SECRET_ACCESS_KEY": "s",
        "TORCH_HUB_TOKEN": "s",
        "PYTORCH_API_KEY": "s",
        "MKL_password": "s",
    }
    assert recorded_variables(variables) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_CACHE_DIR": "/x",
    }


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cu128", "2.13.0+cpu", "2.13.0a0+git123"])
@pytest.mark.parametrize("python", [(3, 10), (3, 13)])
def test_supported_versions_pass(version: str, python: tuple[int, int]) -> None:
    check_supported(python=python, torch_version=version)


@pytest.mark.parametrize("version", ["2.10.9", "2.14.0", "1.13.1", "3.0", "unknown"])
def test_another_torch_is_refused_with_its_version(version: str) -> None:
    with pytest.raises(UsageError, match=rf"torch {version}") as caught:
        check_supported(python=(3, 11), torch_version=version)
    assert ">= 2.11" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("python", [(3, 9), (3, 14), (2, 7)])
def test_another_python_is_refused(python: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=r"Python 3\.10 to 3\.13"):
        check_supported(python=python, torch_version="2.13.0")


def test_no_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "package_version", lambda name: None)
    with pytest.raises(UsageError, match="no torch installed"):
        check_supported(python=(3, 11))


def test_the_compiler_is_found_by_cxx_then_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("g++", "my-clang"):
        (tmp_path / name).write_text("#!/bin/sh\necho version\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert find_compiler() == str(tmp_path / "g++")
    monkeypatch.setenv("CXX", "my-clang -std=c++20")
    assert find_compiler() == str(tmp_path / "my-clang")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"'no-such-compiler' named by \$CXX"):
        find_compiler()


def test_no_compiler_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UsageError, match="apt-get install"):
        find_compiler()
    assert fingerprint()["compiler"] is None
