"""The text of an issue: it says what a maintainer needs, and nothing in a program gets out of its code block."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fuzz.program.parsing import program_of
from fuzz.tests.specs import FLOOR
from fuzz.triage.issue_text import environment_text, fenced, in_cell, in_code, issue_text, title_of
from fuzz.triage.short_script import short_scripts
from oracle.known.ledger import load_ledger
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict, WorstElement

_TEN = Verdict(
    status=Status.FAIL_ACCURACY,
    symptom="call 0: output[0] is 10, but should be 9 (fp64 9.0): error 1, allowed 1e-05; 1 of 1 elements are wrong",
    worst=WorstElement(
        where="call 0: output", index=(0,), subject="10", eager="9", truth="9.0", allowed_error=1e-5,
        subject_error=1.0, eager_error=0.0, ulp=1048576.0,
    ),
)  # fmt: skip
_VERSIONS = "Collecting environment information...\nPyTorch version: 2.13.0+cpu\nGCC version: 12.2 <x86_64>"
_INDUCTOR = resolve("inductor")


def _text(**more: Any) -> str:
    script = short_scripts(FLOOR, _INDUCTOR, _TEN)[0].text
    fields = {
        "script": script,
        "verdict": _TEN,
        "subject": _INDUCTOR,
        "program": FLOOR,
        "environment": _VERSIONS,
        **more,
    }
    return issue_text(**fields)


def test_an_issue_of_a_wrong_number_in_full() -> None:
    issue = load_ledger().of_id("pytorch-197895")
    assert issue is not None
    text = _text(
        title="[inductor] floor division of float32 gives 10.0, eager gives 9.0",
        located=[("first wrong value", "floordiv, in return a // b"), ("part to blame", "lowering: aten.div")],
        ablation=[("lowering of `aten.floor_divide`", "right"), ("vector code | fusion", "wrong")],
        reliability=(10, 10),
        alike=[issue],
    )
    script = short_scripts(FLOOR, _INDUCTOR, _TEN)[0].text
    assert (
        text
        == f"""[inductor] floor division of float32 gives 10.0, eager gives 9.0

### 🐛 Describe the bug

With `torch.compile(program, backend='inductor')`: `output[0] is 10, eager gives 9 (float64: 9.0)`.

It shows in 10 of 10 runs, each in a new process.

The script needs only torch, and exits with 1 while the bug is there.

```python
{script.strip()}
```

| `output[0]` | value | error |
| --- | --- | --- |
| eager | `9` | 0 |
| compiled | `10` | 1 |
| eager in float64 | `9.0` |  |

Rounding explains an error of up to 1e-05. The two differ by 1.05e+06 units in the last place.

### Where it goes wrong

- first wrong value: `floordiv, in return a // b`
- part to blame: `lowering: aten.div`

### Ablation

| change of the compiler | result |
| --- | --- |
| `` lowering of `aten.floor_divide` `` | `right` |
| `vector code \\| fusion` | `wrong` |

### Reports that may be of the same bug

- https://github.com/pytorch/pytorch/issues/197895 (`pytorch-197895`): `{issue.title.replace("`", "")}`

### Versions

<details>
<summary>PyTorch version: 2.13.0+cpu</summary>

```
{_VERSIONS}
```

</details>
"""
    )


def test_what_is_not_known_is_left_out() -> None:
    text = _text(
        verdict=Verdict(status=Status.FAIL_STRIDE, symptom="call 0: output.stride() is (1, 2), but should be (2, 1)")
    )
    assert re.findall(r"^###? .*$", text, re.MULTILINE) == ["### 🐛 Describe the bug", "### Versions"]
    assert "| value |" not in text
    assert "runs" not in text.partition("```")[0]


def test_an_error_is_shown_as_it_is() -> None:
    symptom = "outcome is RuntimeError in call ('shape `[]` is invalid'), but should be a return"
    text = _text(verdict=Verdict(status=Status.FAIL_TO_RUN, symptom=f"call 0: {symptom}"))
    assert f"### Error logs\n\n```\n{symptom}\n```" in text
    assert "``raises RuntimeError, eager returns: shape `[]` is invalid``" in text


def test_a_long_script_is_folded_and_a_missing_one_is_replaced_by_the_program() -> None:
    long = "\n".join(f"line_{number} = 0" for number in range(200))
    folded = _text(script=long)
    assert folded.index("return a // b") < folded.index("<details>") < folded.index("line_0 = 0")
    assert fenced(FLOOR.source) in _text(script="")


def test_options_of_the_program_are_named() -> None:
    program = replace(FLOOR, config={"torch._inductor.config.cpp.simdlen": 1}, dynamic=True)
    text = _text(program=program)
    assert "torch.compile(program, backend='inductor', dynamic=True)" in text
    assert "`torch._inductor.config.cpp.simdlen = 1`" in text


def test_a_program_with_fences_stays_in_its_block() -> None:
    source = 'def program():\n    return """\n```\n# not a heading\n````"""\n'
    text = fenced(source)
    fence = text.partition("python")[0]
    assert fence == "`````"
    assert text.splitlines()[-1] == fence
    assert text.splitlines().count(fence) == 1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("plain @user #1 <b>", "`plain @user #1 <b>`"),
        ("a `b` c", "``a `b` c``"),
        ("`edge`", "`` `edge` ``"),
        ("two\n\nlines", "`two lines`"),
        ("", ""),
    ],
)
def test_text_in_a_code_span(text: str, code: str) -> None:
    assert in_code(text) == code


def test_a_bar_does_not_end_a_cell() -> None:
    assert in_cell("a | b") == "`a \\| b`"


def test_a_title_names_the_operator_and_both_numbers() -> None:
    program = program_of("def program(a, b):\n    r = a // b\n    return r\n", [])
    assert (
        title_of(_TEN, _INDUCTOR, program) == "[inductor] floor_divide: output[0] is 10, eager gives 9 (float64: 9.0)"
    )
    long = replace(_TEN, worst=None, symptom=f"call 0: output is {'x' * 300}, but should be y")
    assert len(title_of(long, _INDUCTOR, program)) == 120


def test_the_environment_says_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pretty = (
        "PyTorch version: 2.13.0\nROCM used to build PyTorch: N/A\n\nClang version: Could not collect\n"
        "Is CUDA available: No\nCPU:\nFlags:  avx avx2\nVulnerability Spectre v1:  Mitigation\n[pip3] numpy==2.1\n"
        "[conda] Could not collect\n"
    )
    monkeypatch.setattr("fuzz.triage.issue_text.get_pretty_env_info", lambda: pretty)
    assert environment_text().splitlines() == ["PyTorch version: 2.13.0", "CPU:", "[pip3] numpy==2.1"]


def test_a_message_notifies_nobody_in_the_body() -> None:
    said = "@user broke #1 <img> *here*"
    text = _text(
        verdict=Verdict(status=Status.FAIL_TO_RUN, symptom=f"call 0: outcome is RuntimeError in call ('{said}')")
    )
    _, _, body = text.partition("\n\n")
    outside = re.sub(r"(?s)```.*?```|`[^`]*`", "", body)
    assert "@user" in body
    assert "@user" not in outside


def test_a_script_says_which_packages_it_needs() -> None:
    script = "import sys\nimport torch\nimport my_backend.compiler\n\nprint(torch.ones(2))\n"
    assert "The script needs only torch and my_backend, and exits" in _text(script=script)
