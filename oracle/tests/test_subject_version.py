"""The version of a subject's own code: its distribution, its commit and what was changed since, without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oracle.subjects.registry import resolve
from oracle.subjects.version import recorded_versions, version_of

BACKEND = "raise SystemExit('imported')\ndef compile_graph(gm, example_inputs):\n    return gm\n"


def git(folder: Path, *words: str) -> str:
    author = (
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@b.c",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    )
    done = subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package that must not be imported, as the working directory."""
    package = tmp_path / "vendor_backend"
    package.mkdir()
    (package / "__init__.py").write_text(BACKEND)
    (tmp_path / ".gitignore").write_text("environment/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def version(name: str = "vendor_backend:compile_graph") -> str:
    return version_of(resolve(name))


def test_a_checkout_has_its_commit_and_a_digest_of_what_was_changed(checkout: Path) -> None:
    clean = version()
    assert clean == f"commit {git(checkout, 'rev-parse', 'HEAD')[:12]}"
    assert version("compile:vendor_backend:compile_graph") == clean
    changed = []
    for text in (BACKEND + "# 1\n", BACKEND + "# 2\n"):
        (checkout / "vendor_backend" / "__init__.py").write_text(text)
        changed.append(version())
    (checkout / "vendor_backend" / "more.py").write_text("x = 1\n")  # that git does not know yet
    changed.append(version())
    assert all(one.startswith(f"{clean}, changes ") for one in changed)
    assert len(set(changed)) == 3
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "second")
    assert version() == f"commit {git(checkout, 'rev-parse', 'HEAD')[:12]}"
    (checkout / "results.db").write_text("a run wrote this")
    assert "changes" not in version()


def test_code_that_git_does_not_know_has_a_digest_of_its_files(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkout / "environment"  # ignored, as a virtual environment is
    (folder / "other_backend").mkdir(parents=True)
    file = folder / "other_backend" / "__init__.py"
    file.write_text(BACKEND)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    first = version("other_backend:compile_graph")
    assert first.startswith("files ")
    file.write_text(BACKEND + "# changed\n")
    assert version("other_backend:compile_graph") not in ("", first)


def test_an_installed_backend_has_the_version_of_its_distribution_and_the_commit_that_pip_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accelerator.py").write_text(BACKEND)
    info = tmp_path / "vendor_accelerator-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor-accelerator\nVersion: 3.1\n")
    (info / "top_level.txt").write_text("accelerator\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\naccelerator = accelerator:compile_graph\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert version("accelerator").startswith("vendor-accelerator 3.1, files ")
    (info / "direct_url.json").write_text('{"url": "u", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}}')
    assert version("accelerator") == "vendor-accelerator 3.1, commit 0123456789ab"
    (info / "direct_url.json").write_text("[]")
    assert version("accelerator").startswith("vendor-accelerator 3.1, files ")


def test_stages_of_torch_have_none_and_those_of_refimpl_have_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("eager", "dynamo", "inductor", "export", "make_fx", "refimpl.aot", "triton", "no_such_module:f")
    assert list(recorded_versions(map(resolve, names))["subjects"]) == ["refimpl.aot", "triton"]
    assert recorded_versions([resolve("inductor")]) == {}


def test_without_git_files_tell_versions_apart(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert version().startswith("files ")
