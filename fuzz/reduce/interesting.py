"""For reducers of any text, such as shrinkray and C-Reduce: a script that says whether a file still shows a finding.

Such a reducer knows nothing of Python or torch. It changes a file, runs the script, and keeps the change if that exits with 0. So
it is the last resort for programs that `fuzz.reduce.minimise` cannot take apart.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

import oracle
from fuzz.reduce.trials import TrialProcess
from oracle.program import Program
from oracle.subjects.spec import SubjectSpec
from oracle.symptom import Symptom, matches, symptom_of

_SCRIPT = Template('''#!$python
"""Exits with 0 if a file still shows: $shown

Called with the path of the file, or without in the folder of $file:
    shrinkray THIS_SCRIPT $file
    creduce THIS_SCRIPT $file
"""

import json
import sys

PATHS = json.loads($paths)
CASE = json.loads($case)

with open(sys.argv[1] if len(sys.argv) > 1 else $file_text, encoding="utf-8", errors="replace") as file:
    text = file.read()
try:
    compile(text, $file_text, "exec")  # most candidates are no Python at all, and torch takes seconds to import
except (SyntaxError, ValueError):
    sys.exit(1)

sys.path[:0] = PATHS

from fuzz.reduce.interesting import is_interesting  # noqa: E402

sys.exit(0 if is_interesting(text, CASE) else 1)
''')


def interestingness_script(
    program: Program, subject: SubjectSpec, symptom: Symptom, *, file_name: str = "target.py", timeout_s: float = 60.0
) -> str:
    """The text of the script, for files that begin as `program.source`; save it, and make it executable.

    Inputs stay those of the program: its specs, or what `inputs(call)` of the file makes. A candidate that takes longer than
    `timeout_s` seconds is not interesting, unless the symptom is a timeout.
    """
    case = {
        "program": replace(program, source="").to_json(), "subject": subject.to_json(), "symptom": symptom.to_json(),
        "timeout_s": timeout_s,
    }  # fmt: skip
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [str(Path(oracle.__file__).parent.parent), os.getcwd(), *map(os.path.abspath, given)]
    shown = f"{subject.name}: {symptom.status}: {symptom.kind}".replace("\\", "").replace('"""', "'''")
    return _SCRIPT.substitute(
        python=sys.executable,
        shown=shown,
        file=file_name,
        file_text=repr(file_name),
        paths=repr(json.dumps([*dict.fromkeys(paths)])),
        case=repr(json.dumps(case)),
    )


def is_interesting(text: str, case: Mapping[str, Any]) -> bool:
    """Whether a program with this source shows the symptom of the case that the script carries."""
    program = replace(Program.from_json(case["program"]), source=text)
    with TrialProcess(timeout_s=case["timeout_s"]) as trials:
        verdict = trials.judge_source(program, SubjectSpec.from_json(case["subject"]))
    return verdict.status.is_finding and matches(Symptom.from_json(case["symptom"]), symptom_of(verdict))
