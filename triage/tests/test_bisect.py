"""Since when a bug exists: versions of torch, and commits of a backend."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer

from oracle.cli import run_app
from oracle.errors import UsageError
from oracle.program import Program, default_plan
from oracle.program.input_text import parse_call
from oracle.subjects.registry import resolve
from oracle.subjects.spec import SubjectSpec
from oracle.verdict import Status, Verdict, WorstElement
from triage.bisect import NEW, Findings, Question, Row, question_about, rows_of_versions
from triage.bisect_commits import CommitFindings, Commits, bisect_commits
from triage.commands import bisect
from triage.environments import environment_folder, parse_versions
from triage.interpreters import Ran, Result, Script, run_script
from triage.target import Target
from triage.tests.stand_ins import interpreter

# A torch that is there at once. Real scripts are run in `test_the_command_...` below.
_TORCH = "import os\n__version__ = os.environ.get('FAKE_TORCH', '2.12.0+cpu')\n"
_SEES_BUG = """
import sys
print("eager:")
print("compiled:")
print("call 0: layout of output\\n    eager:    [1]\\n    compiled: [2]")
print("call 0: value of output\\n    eager:    tensor([1,\\n  2])\\n    compiled: tensor([3])")
print("DIFFERENT")
sys.exit(1)
"""


@pytest.fixture
def torch_folder(tmp_path: Path) -> str:
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "torch.py").write_text(_TORCH)
    return str(folder)


def _ran(text: str, torch_folder: str, *, timeout_s: float = 60.0, **more: int) -> Ran:
    script = Script(text=text, asked=("value of output",))
    return run_script(sys.executable, replace(script, **more), folders=[torch_folder], timeout_s=timeout_s)


# ------------------------------------------------------------------------------------------------------------- one run


def test_an_exit_code_tells_and_an_exception_does_not(torch_folder: str) -> None:
    seen = _ran(_SEES_BUG, torch_folder)
    assert (seen.result, seen.torch) == (Result.BUG, "2.12.0+cpu")
    assert seen.what == "call 0: value of output: tensor([3]), eager gives tensor([1, 2])"
    raises = _SEES_BUG.replace('"compiled:"', "\"compiled:\\n    raises OSError: ['no disk']\"")
    exception = "call 0: exception\\n    eager:    nothing\\n    compiled: OSError\\nDIFFERENT"
    script = Script(text=raises.replace("DIFFERENT", exception), asked=("value", "exception"))
    assert (
        run_script(sys.executable, script, folders=[torch_folder], timeout_s=60).what
        == "call 0: raises OSError: no disk"
    )
    another = run_script(sys.executable, replace(script, asked=("value",)), folders=[torch_folder], timeout_s=60)
    assert another.result is Result.CANNOT_RUN  # another bug than the one that is asked about
    assert another.what == "the compiled program raises OSError: no disk"
    assert _ran("import sys\nsys.exit(0)", torch_folder).result is Result.GONE
    assert _ran("", torch_folder).result is Result.GONE
    for text, why in (
        ("raise ValueError('no\\nsuch thing')", "ValueError: no"),
        ("import missing_module", "ModuleNotFoundError: No module named 'missing_module'"),
        ("import sys\nsys.exit(4)", "exit: 4"),
        ("import sys\nsys.exit('sorry')", "exit: sorry"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "died of signal 11"),
        ("print('eager:\\n    raises TypeError: [\\'no cat\\']\\ncompiled:')", "eager raises TypeError: no cat"),
    ):
        ran = _ran(text, torch_folder)
        assert ran.result is Result.CANNOT_RUN
        assert why in ran.what
    known = _ran("print('eager:\\n    raises TypeError: [\\'no cat\\']\\ncompiled:')", torch_folder, eager_raises=1)
    assert known.result is Result.GONE


def test_long_values_are_shown_from_where_they_differ(torch_folder: str) -> None:
    head = ", ".join(f"{number}." for number in range(30))
    text = _SEES_BUG.replace("[1,\\n  2]", f"[{head}, 3.]").replace("tensor([3])", f"tensor([{head}, 77., 8.])")
    what = _ran(text, torch_folder).what
    assert what == "call 0: value of output: ... 27., 28., 29., 77., 8.]), eager gives ... 27., 28., 29., 3.])"
    same = _SEES_BUG.replace("[1,\\n  2]", f"[{head}]").replace("tensor([3])", f"tensor([{head}])")
    assert _ran(same, torch_folder).what.endswith(
        "11. ..., eager gives tensor([0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11. ..."
    )


def test_a_script_that_hangs_is_stopped_with_all_that_it_started(torch_folder: str, tmp_path: Path) -> None:
    left = tmp_path / "left"
    child = f"import time, pathlib; time.sleep(2); pathlib.Path({str(left)!r}).touch()"
    text = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\nwhile True: pass"
    ran = _ran(text, torch_folder, timeout_s=1.0)
    assert (ran.result, ran.what) == (Result.TIMEOUT, "no end within 1 s")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", "import time; time.sleep(9)"], timeout=1.5)
    assert not left.exists()


def test_several_runs_end_at_the_first_that_shows_the_bug(torch_folder: str, tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    text = f"import sys\nopen({str(counts)!r}, 'a').write('x')\nsys.exit(len(open({str(counts)!r}).read()) == 2)"
    script = Script(text=text, asked=())
    ran = run_script(sys.executable, script, folders=[torch_folder], timeout_s=60, runs=4)
    assert ran.result is Result.BUG
    assert counts.read_text() == "xx"


def test_without_torch_the_row_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open')\n")
    ran = _ran("", str(tmp_path))
    assert (ran.result, ran.what) == (Result.CANNOT_RUN, "no torch: ImportError: libcudart.so.13: cannot open")


# ------------------------------------------------------------------------------------------------------------ question


class _Judge:
    """Stands for the judge: says what it was told to say, one verdict after the other."""

    def __init__(self, *verdicts: Verdict) -> None:
        self._left = list(verdicts)

    def about(self, make: Callable[[], object]) -> _Judge:
        return self

    def verdict(self, spec: SubjectSpec) -> Verdict:
        return self._left.pop(0)


_WORST = WorstElement(where="call 1: output[0]", index=(0,), eager="1.0", subject="3.0", allowed_error=1e-6)
_WRONG = Verdict(status=Status.FAIL_ACCURACY, symptom="call 1: output[0] is 3, but should be 1", call=1, worst=_WORST)
_SMALL = replace(_WRONG, worst=replace(_WORST, subject="1.001"))
_PASS = Verdict(status=Status.PASS)


def _asked(
    monkeypatch: pytest.MonkeyPatch, verdicts: Sequence[Verdict], results: Sequence[str], *, runs: int = 1
) -> tuple[Question, list[Script]]:
    """The question about a program of three calls, and the scripts that were tried, which end as `results` say."""
    tried: list[Script] = []

    def run(python: str, script: Script, **options: object) -> Ran:
        tried.append(script)
        return Ran(result=Result(results[len(tried) - 1]), what="as told", eager_raises=("TypeError: no",))

    monkeypatch.setattr("triage.bisect.Questions", _Judge(*verdicts))
    monkeypatch.setattr("triage.bisect.run_script", run)
    plan = default_plan(parse_call("f32[4]"), key=None)
    program = Program(name="p", source="import torch\n\ndef program(a):\n    return a * 2\n", calls=plan)
    target = Target(name="p", program=program, subject=resolve("aot_eager"), words=("issue:1",))
    return question_about(target, timeout_s=60, runs=runs), tried


def test_the_script_makes_the_calls_up_to_the_wrong_one(monkeypatch: pytest.MonkeyPatch) -> None:
    question, tried = _asked(monkeypatch, [_WRONG], ["bug"])
    assert len(tried) == 1
    assert "(inputs_1, {})" in tried[0].text
    assert "inputs_2" not in tried[0].text
    assert tried[0].asked == ("value of output",)
    assert question.script.text == tried[0].text
    assert question.script.eager_raises == 1  # as eager does here


def test_floats_may_differ_by_rounding_unless_the_bug_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, plain = "LIMITS = {'rtol': 0.01, 'atol': 0.01}", "LIMITS = {}"
    _, tried = _asked(monkeypatch, [_WRONG], ["no bug", "bug"])
    assert [text in script.text for script, text in zip(tried, (wide, plain), strict=True)] == [True, True]
    _, tried = _asked(monkeypatch, [_SMALL], ["bug"])
    assert "LIMITS = {'rtol': 5e-07, 'atol': 5e-07}" in tried[0].text
    _, tried = _asked(monkeypatch, [_PASS], ["no bug"])
    assert wide in tried[0].text
    assert "inputs_2" in tried[0].text


def test_several_judgements_end_at_the_first_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    question, _ = _asked(monkeypatch, [_PASS, _WRONG, _PASS], ["bug"], runs=3)
    assert question.verdict is _WRONG
    question, _ = _asked(monkeypatch, [_PASS, _WRONG], ["no bug"])
    assert question.verdict is _PASS


@pytest.mark.parametrize(
    ("verdict", "results", "message"),
    [
        (
            _WRONG,
            ["no bug", "no bug"],
            "the judge says fail_accuracy .* and a script that needs only torch says: no bug",
        ),
        (_WRONG, ["cannot run", "cannot run"], "says: cannot run as told"),
        (_PASS, ["bug"], "the judge says pass .* says: bug"),
        (Verdict(status=Status.EAGER_FAIL_TO_RUN, symptom="KeyError: 3"), [], "p: eager_fail_to_run: KeyError: 3"),
    ],
)
def test_a_script_that_does_not_agree_with_the_judge_is_not_used(
    verdict: Verdict, results: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=message):
        _asked(monkeypatch, [verdict], results)


# ------------------------------------------------------------------------------------------------------------ versions


def _question(text: str, torch_folder: str, *more: str, module: str = "") -> Question:
    script = Script(text=text, asked=("value of output",), module=module)
    here = Ran(result=Result.GONE, torch="2.13.0+cpu", python="3.11.7")
    return Question(script=script, folders=(torch_folder, *more), verdict=Verdict(status=Status.PASS), here=here)


def test_versions_are_ordered_and_the_change_is_named(torch_folder: str, tmp_path: Path) -> None:
    pythons = [
        interpreter(tmp_path, "new", FAKE_TORCH="2.14.0.dev20261101+cpu", PLANTED="1"),
        interpreter(tmp_path, "old", FAKE_TORCH="2.9.1"),
        interpreter(tmp_path, "broken", FAKE_TORCH="2.12.0", BROKEN="1"),
    ]
    text = "import os, sys\nassert 'BROKEN' not in os.environ, 'broken'\nsys.exit('PLANTED' in os.environ)"
    question = _question(text, torch_folder)
    found = rows_of_versions(question, versions=["2.13.0"], pythons=pythons, timeout_s=60)
    assert [(row.name, row.ran.result.value) for row in found.rows] == [
        ("2.9.1", "no bug"), ("2.12.0", "cannot run"), ("2.13.0", "no bug"), ("2.14.0.dev20261101", "bug"),
    ]  # fmt: skip
    assert found.rows[2].ran is question.here  # this torch was asked already
    assert found.rows[1].ran.what == "AssertionError: broken"
    assert found.conclusion == "first bad: 2.14.0.dev20261101 (good: 2.13.0)"
    assert found.exit_code == 1


def _rows(*results: str) -> Findings:
    named = [Row(name=f"2.{number}", ran=Ran(result=Result(result))) for number, result in enumerate(results)]
    return Findings(rows=tuple(named))


@pytest.mark.parametrize(
    ("results", "conclusion", "code"),
    [
        (["bug", "cannot run", "no bug"], "first fixed: 2.2 (bad: 2.0; no answer: 2.1)", 0),
        (["no bug", "bug", "no bug"], "first bad: 2.1 (good: 2.0); first fixed: 2.2 (bad: 2.1)", 0),
        (["bug", "bug"], "the bug is in all of them", 1),
        (["no bug", "no bug"], "the bug is in none of them", 0),
        (["bug", "bug", "timeout"], "the bug is in all of those that could run it", 1),
        (["cannot run", "bug"], "the bug is in 2.1", 1),
        (["no bug"], "the bug is not in 2.0", 0),
        (["timeout"], "no answer: none of them could run the program", 2),
    ],
)
def test_the_conclusion_says_where_the_answer_changes(results: list[str], conclusion: str, code: int) -> None:
    found = _rows(*results)
    assert (found.conclusion, found.exit_code) == (conclusion, code)


def test_interpreters_of_one_version_are_told_apart(torch_folder: str, tmp_path: Path) -> None:
    pythons = [interpreter(tmp_path, "a"), interpreter(tmp_path, "b", PLANTED="1")]
    text = "import os, sys\nsys.exit('PLANTED' in os.environ)"
    found = rows_of_versions(_question(text, torch_folder), pythons=pythons, timeout_s=60)
    assert found.conclusion == f"first bad: {pythons[1]} (good: {pythons[0]})"


# In the place of `python -m venv FOLDER`: it makes an interpreter whose pip finds every torch but 0.0.1.
_MAKES_ENVIRONMENTS = f"""#!/bin/sh
mkdir -p "$3/bin"
cat > "$3/bin/python" <<'END'
#!/bin/sh
case "$*" in
  *torch==0.0.1*) echo "ERROR: no torch 0.0.1" >&2; echo "[notice] a new pip" >&2; exit 1;;
  "-m pip"*) echo "$*" >> "$(dirname "$0")/installed"; exit 0;;
esac
FAKE_TORCH=2.12.0 exec {sys.executable} "$@"
END
chmod +x "$3/bin/python"
"""


def test_an_environment_is_made_once_and_a_failure_is_a_row(
    torch_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = tmp_path / "maker"
    maker.write_text(_MAKES_ENVIRONMENTS)
    maker.chmod(0o755)
    monkeypatch.setattr("triage.environments.sys.executable", str(maker))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    half = environment_folder("2.12.0", "--pre --index-url there")
    (half / "bin").mkdir(parents=True)
    (half / "left").touch()
    question, pip = _question("", torch_folder), "--pre --index-url there"
    for made in (["0.0.1", "2.12.0"], ["0.0.1"]):
        stages: list[str] = []
        found = rows_of_versions(question, versions=["0.0.1", "2.12.0"], pip=pip, timeout_s=60, progress=stages.append)
        told = [f"{NEW}{environment_folder(version, pip)}, once: this takes minutes" for version in made]
        assert [stage for stage in stages if stage.startswith(NEW)] == told
        assert [row.ran.result.value for row in found.rows] == ["cannot run", "no bug"]
        assert found.rows[0].ran.what == "no environment: ERROR: no torch 0.0.1"
    assert not (half / "left").exists()
    assert not environment_folder("0.0.1", pip).exists()
    installed = (half / "bin" / "installed").read_text().splitlines()
    assert installed == [
        "-m pip --disable-pip-version-check install --quiet --pre --index-url there torch==2.12.0 numpy"
    ]
    assert environment_folder("2.12.0") != half


def test_texts_that_are_no_versions_are_refused() -> None:
    assert parse_versions("2.11.0, 2.13.0,2.11.0,2.14.0.dev20261101+cpu") == [
        "2.11.0",
        "2.13.0",
        "2.14.0.dev20261101+cpu",
    ]
    with pytest.raises(UsageError, match="nightly"):
        parse_versions("2.13.0,nightly")


# ------------------------------------------------------------------------------------------------------------- commits

_BACKEND = "def value():\n    return {}  # {}\n"


def _git(repo: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *words], cwd=repo, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _repository(folder: Path, values: Sequence[str]) -> tuple[Path, list[str]]:
    """A repository with a commit for each value that the backend has."""
    repo = folder / "repo"
    repo.mkdir()
    _git(repo, "init", "-q", "-b", "main")
    hashes = []
    for number, value in enumerate(values):
        (repo / "tiny_backend.py").write_text(_BACKEND.format(value, number))
        _git(repo, "add", ".")
        _git(repo, "commit", "-q", "-m", f"change {number}")
        hashes.append(_git(repo, "rev-parse", "HEAD"))
    return repo, hashes


_ASKS_BACKEND = "import sys, tiny_backend\nsys.exit(tiny_backend.value() != 1)"


def _searched(repo: Path, torch_folder: str, good: str, *, bad: str = "HEAD", build: str = "") -> CommitFindings:
    question = _question(_ASKS_BACKEND, torch_folder, str(repo), module="tiny_backend")
    commits = Commits(repo=repo, good=good, bad=bad, build=build)
    return bisect_commits(question, commits, python=sys.executable, timeout_s=60)


def test_the_commit_that_breaks_a_backend_is_found(torch_folder: str, tmp_path: Path) -> None:
    repo, hashes = _repository(tmp_path, ["1", "1", "2", "2", "2"])
    (repo / "tiny_backend.py").write_text("my work")
    before = (_git(repo, "status", "--porcelain"), _git(repo, "for-each-ref"), _git(repo, "rev-parse", "HEAD"))
    found = _searched(repo, torch_folder, hashes[0])
    assert found.conclusion == f"first bad: {hashes[2][:10]} change 2"
    assert [row.ran.result.value for row in found.rows][:2] == ["no bug", "bug"]
    assert len(found.rows) <= 5
    assert found.exit_code == 1
    assert (repo / "tiny_backend.py").read_text() == "my work"
    assert (_git(repo, "status", "--porcelain"), _git(repo, "for-each-ref"), _git(repo, "rev-parse", "HEAD")) == before
    assert len(_git(repo, "worktree", "list").splitlines()) == 1


def test_the_commit_that_repairs_a_backend_is_found(torch_folder: str, tmp_path: Path) -> None:
    repo, hashes = _repository(tmp_path, ["2", "2", "2", "1", "1"])
    found = _searched(repo, torch_folder, hashes[0])
    assert found.conclusion == f"first fixed: {hashes[3][:10]} change 3"
    assert found.exit_code == 0
    same = _searched(repo, torch_folder, hashes[0], bad=hashes[2])
    assert same.conclusion == f"the bug is in both of {hashes[0][:10]} and {hashes[2][:10]}"
    assert same.exit_code == 1


def test_commits_that_do_not_build_are_skipped(torch_folder: str, tmp_path: Path) -> None:
    repo, hashes = _repository(tmp_path, ["1", "no such name", "2", "2"])
    found = _searched(repo, torch_folder, hashes[0], build=f"{sys.executable} -m py_compile tiny_backend.py")
    assert found.first is None
    assert set(found.candidates) == {hashes[1][:10], hashes[2][:10]}
    assert "some of them cannot be run" in found.conclusion
    assert any("not built" in row.ran.what for row in found.rows)


def test_an_end_that_cannot_be_run_is_told(torch_folder: str, tmp_path: Path) -> None:
    repo, hashes = _repository(tmp_path, ["1", "2"])
    _git(repo, "mv", "tiny_backend.py", "other.py")
    _git(repo, "commit", "-q", "-m", "rename")
    with pytest.raises(UsageError, match="No module named 'tiny_backend'"):
        _searched(repo, torch_folder, hashes[0])
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "tiny_backend.py").write_text(_BACKEND.format(1, 0))
    question = _question(_ASKS_BACKEND, torch_folder, str(installed), module="tiny_backend")
    commits = Commits(repo=repo, good=hashes[0])
    with pytest.raises(UsageError, match=r"tiny_backend is not in this commit; Python finds .*installed"):
        bisect_commits(question, commits, python=sys.executable, timeout_s=60)
    assert len(_git(repo, "worktree", "list").splitlines()) == 1
    assert list((repo / ".git" / "worktrees").glob("*")) == []


# ------------------------------------------------------------------------------------------------------------- command


def _run(*words: str) -> int:
    app = typer.Typer(add_completion=False)
    app.command("bisect")(bisect)
    return run_app(lambda: typer.main.get_command(app), [*words], name="torch-oracle")


def test_the_command_runs_a_program_by_this_torch_and_another_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "planted_backend.py").write_text(
        "import os\nimport torch\n\ndef wrong(gm, inputs):\n"
        "    def call(*args):\n        return [x + ('PLANTED' in os.environ) for x in gm(*args)]\n    return call\n"
    )
    (tmp_path / "model.py").write_text("import torch\n\ndef mix(a):\n    return torch.sin(a) * 2\n")
    wrong, here = interpreter(tmp_path, "wrong", PLANTED="1"), torch.__version__.partition("+")[0]
    words = [f"{tmp_path}/model.py:mix", "--inputs", "f32[3]", "--subject", "planted_backend:wrong", "--json"]
    assert _run(*words, "--torch", here, "--python", wrong) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"]["status"] == "pass"
    assert [row["result"] for row in told["rows"]] == ["no bug", "bug"]
    assert told["rows"][1]["what"].startswith("call 0: value of output: tensor([")
    assert told["conclusion"] == f"first bad: {wrong} (good: {sys.executable})"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "bisect without --torch, --python or --repo"),
        (["--python", "no-such-python"], "no interpreter 'no-such-python'"),
        (["--torch", "new"], "--torch 'new'"),
        (["--pip", "--pre", "--python", sys.executable], "--pip without --torch"),
        (["--good", "main"], "--good without --repo"),
        (["--repo", "REPO"], "--repo without --good"),
        (["--repo", "/nowhere", "--good", "main"], "--repo /nowhere: no git repository"),
        (["--repo", "REPO", "--good", "main", "--torch", "2.12.0"], "--repo with several versions"),
    ],
)
def test_bad_input_is_told_with_exit_code_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], restored_path: None
) -> None:
    repo, _ = _repository(tmp_path, ["1"])
    assert _run("m.py:f", *[word.replace("REPO", str(repo)) for word in words]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.fixture
def restored_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back what the command sets for this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)


def test_a_revision_that_is_none_is_refused(torch_folder: str, tmp_path: Path) -> None:
    repo, hashes = _repository(tmp_path, ["1", "2"])
    with pytest.raises(UsageError, match="no commit 'v9'"):
        _searched(repo, torch_folder, "v9")
    with pytest.raises(UsageError, match=r"git bisect start: .*ancestor"):
        _searched(repo, torch_folder, "HEAD", bad=hashes[0])  # the newer one is called the older one
