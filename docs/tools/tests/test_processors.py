"""Settings that stand for other processors: which tests they are run with, what is skipped, and what is printed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import processors

DEFAULT = "ATEN_CPU_CAPABILITY=default"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a file of tests with this text in the place of those of the repository; gives the exit code and what was printed."""

    def run(text: str, *arguments: str) -> tuple[int, list[str]]:
        file = tmp_path / "test_one.py"
        file.write_text(text)
        monkeypatch.setattr(processors, "chosen_files", lambda: iter([file]))
        monkeypatch.setattr(processors, "ROOT", tmp_path)
        monkeypatch.setattr(processors, "OUTPUT", tmp_path / "build")
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: \n    slow: \n")
        code = processors.main(
            ["--", "-p", "no:cacheprovider", *arguments] if "--" not in arguments else list(arguments)
        )
        return code, capsys.readouterr().out.splitlines()

    return run


def test_each_setting_is_alone_and_has_a_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set outside is not mixed with it."""
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setattr(processors, "SETTINGS", processors.SETTINGS[:4])
    monkeypatch.setattr(processors, "processor_flags", lambda: frozenset({"avx2", "fma", "sse4_1"}))
    names = sorted({setting.variable for setting in processors.SETTINGS})
    text = (
        "import os\ndef test_one():\n"
        f"    set_ones = [f'{{name}}={{os.environ[name]}}' for name in {names} if name in os.environ]\n"
        f"    assert set_ones == [{DEFAULT!r}]\ndef test_other(): pass\n"
    )
    code, lines = run(text)
    assert code == 1
    assert [line.split()[0] for line in lines] == [setting.name for setting in processors.SETTINGS]
    assert lines[0].split(None, 1)[1].startswith("2 passed (")
    assert all("1 failed, 1 passed (" in line and ".log" in line for line in (lines[1], lines[3]))
    assert lines[2].endswith("skipped: this processor has no avx512f, avx512bw, avx512dq, avx512vl")


def test_a_setting_that_does_not_end_is_stopped_and_fails(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "GRACE_S", 5.0)
    text = "import time\ndef test_one(): pass\ndef test_other(): time.sleep(300)\n"
    code, (line,) = run(text, "--setting", DEFAULT, "--minutes", "0.1", "--", "-p", "no:cacheprovider")
    assert code == 1
    assert "not ended within 0.1 min" in line


def test_a_setting_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        processors.main(["--setting", "MKL_CBWR=SSE9"])
    assert error.value.code == 2
    assert f"--setting MKL_CBWR=SSE9: expected one of {DEFAULT}" in capsys.readouterr().err


def test_files_are_chosen_by_what_they_import_also_through_modules_of_tests(tmp_path: Path) -> None:
    files = {
        "direct": "from oracle.reruns.noise import RoundingNoise",
        "below": "from refimpl.trace.decompositions.promotion import cast",
        "member": "from oracle.reruns import overflows",
        "other": "from oracle.noises import one; import torch",
        "through": "from oracle.tests.helper import one",
        "helper": "from oracle.tests.helper_of_helper import one",
        "helper_of_helper": "import oracle.judge.values; from oracle.tests import helper",
    }
    folder = tmp_path / "oracle" / "tests"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name if 'helper' in name else f'test_{name}'}.py").write_text(text)
    chosen = [path.stem for path in processors.chosen_files(tmp_path)]
    assert chosen == ["test_below", "test_direct", "test_member", "test_through"]


def test_modules_that_choose_are_there_and_choose_tests() -> None:
    for module in processors.KNOWS_KERNELS:
        path = processors.ROOT / Path(*module.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), module
    chosen = {str(path.relative_to(processors.ROOT)) for path in processors.chosen_files()}
    assert {"oracle/tests/test_overflows.py", "refimpl/tests/codegen/test_attention.py"} <= chosen
    assert len(chosen) > 40


def test_flags_are_read_from_what_the_system_tells(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0{os.linesep}flags\t\t: fpu avx2 fma{os.linesep}")
    assert processors.processor_flags(file) == {"fpu", "avx2", "fma"}
    assert processors.processor_flags(tmp_path / "none") is None
    avx512 = next(setting for setting in processors.SETTINGS if setting.value == "avx512")
    assert processors.lacking(avx512, frozenset({"fma"})) == ["avx512f", "avx512bw", "avx512dq", "avx512vl"]
    assert processors.lacking(avx512, None) == []
