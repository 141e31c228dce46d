"""`make steady`: recordings of the same code are the same, and every difference is listed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.errors import InternalError, UsageError
from oracle.isolate import START_UP, Failed, Pool, Task, TaskResult
from oracle.program import Program
from oracle.subjects.base import CompileRequest
from oracle.tests.forked_script import Ended
from suites.steady import __main__ as command
from suites.steady import worker
from suites.steady.recording import compare, opened
from suites.steady.worker import normalised, run_case

_PROGRAM = Program(
    name="one",
    source="import torch\n\ndef program(x):\n    return x.sin() * 2\n\ndef inputs(call):\n    return (torch.ones(4),), {}\n",
)


def _texts(subject: str, program: Program = _PROGRAM) -> dict[str, str]:
    return run_case({"program": program.to_json(), "subject": subject}, lambda stage: None)["texts"]


def _changed_kinds(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    """The kinds of text in which two recordings of one case differ."""
    before, after = ({("case", kind): text for kind, text in texts.items()} for texts in (old, new))
    return {change.kind for change in compare(before, after)}


def test_a_case_gives_graphs_guards_kernels_and_a_verdict() -> None:
    texts = _texts("triton")
    assert texts["verdict"] == "pass"
    assert "torch.ops.aten.sin.default" in texts["graphs"]
    assert "f32[4][1]" in texts["graphs"]
    assert "L['x']" in texts["guards"]
    assert "tl.sin" in texts["kernels"] or "libdevice.sin" in texts["kernels"]


@pytest.mark.parametrize(
    ("subject", "kind"),
    [("refimpl.export", "programs"), ("refimpl.partitioned", "graphs"), ("refimpl.make_fx[mode=symbolic]", "guards")],
)
def test_every_stage_of_refimpl_is_recorded(subject: str, kind: str) -> None:
    assert kind in _texts(subject)


def test_a_case_says_its_stages_and_loads_a_subject_once() -> None:
    case = {"program": replace(_PROGRAM, name="stages").to_json(), "subject": "refimpl.joint"}
    first: list[str] = []
    run_case(case, first.append)
    assert first[:2] == [START_UP, "load"]
    assert {"eager", "subject", "judge"} <= set(first)
    second: list[str] = []
    run_case(case, second.append)
    assert START_UP not in second


def test_a_case_is_recorded_the_same_way_again() -> None:
    assert _texts("triton") == _texts("triton")


_SIN, _INPUT = "x.sin() * 2", "torch.ones(4)"


@pytest.mark.parametrize(
    ("subject", "right", "wrong", "kinds"),
    [
        ("triton", _SIN, "x.cos() * 2", {"graphs", "kernels"}),
        ("triton", _SIN, "x.sin() * 2.0000000000000004", {"graphs", "kernels"}),
        ("triton", _SIN, "(x.sin() * 2).detach()", {"graphs", "kernels"}),
        ("triton", _INPUT, "torch.ones(5)", {"graphs", "guards", "kernels"}),
        ("triton", _INPUT, "torch.ones(8)[::2]", {"graphs", "guards", "kernels"}),
        ("triton", _INPUT, "torch.ones(4, dtype=torch.float64)", {"graphs", "guards", "kernels"}),
        ("triton", _SIN, "x.sin() * (2 if x.sum() > 0 else 3)", {"graphs", "guards", "kernels"}),
        ("refimpl.partitioned", _SIN, "x.cos() * 2", {"graphs"}),
        ("refimpl.make_fx[mode=symbolic]", _SIN, "x.cos() * 2", {"graphs"}),
        ("refimpl.make_fx[mode=symbolic]", _SIN, "x.sin() * (2 if x.numel() > 3 else 3)", {"guards"}),
        ("refimpl.export", _SIN, "x.cos() * 2", {"programs"}),
        ("refimpl.export", _SIN, "x.sin() * (2 if x.sum() > 0 else 3)", {"programs", "verdict"}),
        ("refimpl.export[strict=false]", _SIN, "x.cos() * 2", {"programs"}),
    ],
)
def test_a_program_with_another_meaning_differs(subject: str, right: str, wrong: str, kinds: set[str]) -> None:
    other = replace(_PROGRAM, source=_PROGRAM.source.replace(right, wrong))
    assert _changed_kinds(_texts(subject), _texts(subject, other)) == kinds


def _refuse(result: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"a result of {result.dim()} dimensions")


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [(torch.Tensor.cos, "fail_accuracy"), (torch.Tensor.double, "fail_metadata"), (_refuse, "fail_to_run")],
)
def test_a_compiler_that_is_wrong_differs(
    spoil: Callable[[torch.Tensor], torch.Tensor], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = _texts("triton")
    subject = worker._SUBJECTS["triton"]
    compile_rightly = subject.compile

    def compile_wrongly(request: CompileRequest) -> Callable[..., Any]:
        compiled = compile_rightly(request)
        return lambda *args, **kwargs: spoil(compiled(*args, **kwargs))

    monkeypatch.setattr(subject, "compile", compile_wrongly)
    wrong = _texts("triton")
    assert wrong["verdict"].startswith(verdict)
    assert _changed_kinds(right, wrong) == {"verdict"}


def test_addresses_and_numbers_of_instances_are_no_differences() -> None:
    one = "ID <f at 0x7f0012345678> torch_oracle_program_12 hooks[3] 140123456789012"
    other = "ID <f at 0x7f00abcdef12> torch_oracle_program_7 hooks[41] 140000000000000"
    assert normalised(one, "guards") == normalised(other, "guards")
    assert normalised("f32[3, 4]", "graphs") == "f32[3, 4]"


@pytest.mark.parametrize(
    "text",
    [
        "mul.Tensor(div, 6.283185307179586)",
        "mul.Tensor(div, 6.28318530717958)",
        "mul.Tensor(div, 12345678901234.5)",
        "t8 = t7 ^ 0x9e3779b9",
        "EQUALS L['n'] 0xdeadbeef",
        f"def forward(self, {', '.join(f'arg{number}_1' for number in range(500))}):",
    ],
)
@pytest.mark.parametrize("kind", ["graphs", "kernels", "programs", "verdict"])
def test_constants_and_long_lines_are_kept(text: str, kind: str) -> None:
    assert normalised(text, kind) == text


def test_a_line_of_guards_is_cut() -> None:
    assert normalised(f"ID {'x' * 2000}\nnext", "guards") == f"ID {'x' * 997}\nnext"


def test_places_in_the_files_of_this_project_are_no_differences() -> None:
    root = Path(__file__).parents[2]
    assert normalised(f'File "{root}/oracle/case.py", line 12, in f', "guards") == "File <torch-oracle>, in f"
    assert normalised(f"File: {root}/suites/opinfo/calls.py:87 in f", "graphs") == "File: <torch-oracle> in f"
    assert normalised('File "<program one>", line 12, in f', "guards") == 'File "<program one>", line 12, in f'


def test_the_same_texts_do_not_differ() -> None:
    texts = {("a", "graphs"): "x = 1\ny = 2"}
    assert compare(texts, dict(texts)) == []


def test_cases_with_the_same_change_are_listed_together() -> None:
    old = {(f"case{n}", "graphs"): f"keep\nold_{n} = f()" for n in range(3)}
    new = {(f"case{n}", "graphs"): f"keep\nnew_{n} = f()" for n in range(3)}
    old["other", "verdict"] = "pass"
    new["other", "verdict"] = "fail_accuracy"
    first, second = compare(old, new)
    assert first.cases == ("case0", "case1", "case2")
    assert first.lines == ("-old_0 = f()", "+new_0 = f()")
    assert (second.kind, second.cases) == ("verdict", ("other",))
    assert str(second) == "verdict: 1 case, such as other\n  -pass\n  +fail_accuracy"


def test_all_cases_of_a_change_are_named_on_request() -> None:
    old = {(f"case{n}", "verdict"): "pass" for n in range(2)}
    (change,) = compare(old, dict.fromkeys(old, "crash"))
    assert str(change) == "verdict: 2 cases, such as case0\n  -pass\n  +crash"
    assert change.text(names=True) == f"{change}\n  in case0\n  in case1"


def test_a_change_of_blanks_is_shown() -> None:
    (change,) = compare({("a", "kernels"): "if x:\n    y"}, {("a", "kernels"): "if x:\n  y"})
    assert str(change) == "kernels: 1 case, such as a\n  -    y\n  +  y"


def test_a_changed_line_that_begins_like_the_head_of_a_diff_is_a_difference() -> None:
    (change,) = compare({("a", "verdict"): "-- x"}, {("a", "verdict"): "++ x"})
    assert change.lines == ("--- x", "+++ x")


def test_a_long_line_is_cut_where_it_is_shown() -> None:
    (change,) = compare({("a", "graphs"): "x"}, {("a", "graphs"): "y" * 1000})
    assert str(change).splitlines()[-1] == f"  +{'y' * 299}..."


def test_a_text_or_a_case_that_is_gone_is_a_difference() -> None:
    old = {("a", "verdict"): "pass", ("a", "kernels"): "k", ("b", "verdict"): "pass"}
    kinds = [(change.kind, change.lines) for change in compare(old, {("a", "verdict"): "pass"})]
    assert kinds == [("corpus", ("- case",)), ("kernels", ("-k",))]


def test_a_recording_keeps_texts_and_drawn_programs(tmp_path: Path) -> None:
    with opened(tmp_path / "r.db") as recording:
        recording.add("case", {"verdict": "pass", "graphs": "é"})
        recording.add_drawn("drawn/0", {"name": "drawn/0"})
    with opened(tmp_path / "r.db") as recording:
        assert list(recording.texts()) == [("case", "graphs", "é"), ("case", "verdict", "pass")]
        assert recording.drawn() == {"drawn/0": {"name": "drawn/0"}}


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.db").write_text("text " * 1000)
    with pytest.raises(UsageError, match="expected: a recording"), opened(tmp_path / "r.db"):
        pass


def test_a_recording_of_a_commit_is_kept_for_one_torch_and_python(monkeypatch: pytest.MonkeyPatch) -> None:
    one = command.recording_of("0123456789ab")
    assert one.name.startswith("0123456789ab-torch-")
    monkeypatch.setattr(command, "version", lambda package: "9.9")
    another = command.recording_of("0123456789ab")
    monkeypatch.setattr(command.platform, "python_version", lambda: "3.99")
    assert len({one, another, command.recording_of("0123456789ab")}) == 3


def test_workers_have_one_order_of_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    def pool(**options: Any) -> Pool:
        given.update(options)
        raise InternalError("no workers are started here")

    monkeypatch.setattr(command, "Pool", pool)
    assert command.main(["record", str(tmp_path / "r.db")]) == 3
    assert given["environment"] == {"PYTHONHASHSEED": "0"}


@pytest.fixture
def commit_that_ends_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the working directory a repository whose one commit ends with this exit code when it is to record itself."""

    def make(code: int) -> None:
        package = tmp_path / "suites/steady"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package.parent / "__init__.py").touch()
        (package / "__main__.py").write_text(f"raise SystemExit({code})\n")
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
            subprocess.run([*git, *words], check=True)
        monkeypatch.chdir(tmp_path)

    return make


@pytest.mark.parametrize(("code", "expected"), [(1, 3), (2, 2), (3, 3)])
def test_a_commit_that_cannot_be_recorded_is_no_difference(
    code: int, expected: int, commit_that_ends_with: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    commit_that_ends_with(code)
    assert command.main(["against", "HEAD"]) == expected
    told = capsys.readouterr().err
    assert "steady: " in told
    assert "message" in told
    assert "Traceback" not in told


def test_a_program_that_cannot_be_drawn_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(pool: Pool, tasks: Sequence[Task]) -> Iterator[TaskResult]:
        for task in tasks:
            yield TaskResult(task=task, end=Failed(error="ValueError: no operators"), worker_pid=0, tasks_before=0)

    monkeypatch.setattr(Pool, "run", run)
    assert command.main(["record", str(tmp_path / "r.db"), "--match", "drawn/*", "--drawn", "1", "--workers", "1"]) == 3
    assert "steady: programs are not drawn: draw 0: internal error: ValueError: no operators" in capsys.readouterr().err
    assert not (tmp_path / "r.db").exists()


def test_an_error_nobody_foresaw_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "compare", lambda old, new: 1 // 0)
    opened_once = tmp_path / "r.db"
    with opened(opened_once):
        pass
    assert command.main(["compare", str(opened_once), str(opened_once)]) == 3
    assert "ZeroDivisionError" in capsys.readouterr().err


def _steady(capsys: pytest.CaptureFixture[str], *words: str) -> Ended:
    """The command in this process: its pool goes on with the starter of an earlier one."""
    capsys.readouterr()
    code = command.main(list(words))
    told = capsys.readouterr()
    return Ended(code, told.out, told.err)


def test_the_command_records_compares_and_names_the_case_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    made = _steady(
        capsys, "record", str(old), "--match", "features/closure_cell/*@refimpl.partitioned", "--workers", "1"
    )
    assert made.returncode == 0, made.stderr
    shutil.copy(old, new)
    same = _steady(capsys, "compare", str(old), str(new))
    assert same.returncode == 0, same.stdout
    assert "1 cases, 2 texts: 0 cases differ" in same.stdout
    with opened(new) as recording:
        recording.add("features/another@triton", {"verdict": "crash"})
    other = _steady(capsys, "compare", str(old), str(new))
    assert other.returncode == 1
    assert "corpus: 1 case, such as features/another@triton" in other.stdout
    assert "  in features/another@triton" not in other.stdout
    assert "  in features/another@triton" in _steady(capsys, "compare", "--names", str(old), str(new)).stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("compare", "none.db", "none.db"), "expected: a recording"),
        (("record", "none.db", "--match", "nothing/*"), "expected: a glob on suite/program@subject"),
        (("record", "new.db", "--like", "none.db"), "expected: a recording"),
        (("record", "none.db", "--no-such-option"), "No such option"),
        (("against", "no-such-commit"), "expected: a commit"),
    ],
)
def test_bad_input_is_told(
    words: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = _steady(capsys, *(str(tmp_path / word) if word.endswith(".db") else word for word in words))
    assert told.returncode == 2
    assert expected in told.stderr
    assert not list(tmp_path.glob("*.db"))


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "suites.steady", "compare", "none.db", "none.db"]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "expected: a recording" in told.stderr
