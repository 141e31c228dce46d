"""Task functions of `make steady`: one case, from its program to its texts. Runs in a worker."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuzz.draw.choices import RandomDraw
from fuzz.draw.settings import Settings
from fuzz.program.render import to_program
from fuzz.vocabulary.programs import draw_program
from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.isolate import START_UP
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.subjects.refimpl import RefimplCapture
from oracle.subjects.registry import resolve
from oracle.subjects.start_up import load_warm
from oracle.verdict import Verdict
from suites.steady import DRAWN_OF_ALL

Progress = Callable[[str], None]
_GUARD_WIDTH = 1000  # characters of a line of guards; guards on modules print the whole module
_ROOT = Path(__file__).parents[2]

# Text that says nothing about the program: addresses, counters of instances, hooks and code files, line numbers of this project's
# files, and names of loaded modules. Constants of the program stay: hexadecimal ones, decimals of floats.
_PASSING = (
    (re.compile(r"\b(at )0x[0-9a-f]+"), r"\g<1>0x..."),
    (re.compile(r"(torch_oracle_program)_\d+"), r"\1"),
    (re.compile(r"(<eval_with_key>\.)\d+"), r"\1"),
    (re.compile(r"(?<![\w.])\d{14,15}(?!\w|\.\d)"), "<id>"),
    (re.compile(r"(ac_graph_id: |hooks\[?)\d+"), r"\1<number>"),
    (re.compile(r"(hooks \[)[\d, ]+"), r"\1<numbers>"),
    (
        re.compile(
            rf'"?{re.escape(str(_ROOT))}/(refimpl|oracle|fuzz|triage|suites|results)/[\w./]*"?(, line \d+|:\d+)?'
        ),
        "<torch-oracle>",
    ),
    (re.compile(r"^KEYS G\['sys'\]\.modules .*", re.MULTILINE), "KEYS G['sys'].modules <all>"),
)


def run_case(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: {"program": Program, "subject": name} -> {"texts": kind -> text, "replace_worker": bool}."""
    subject = _subject(payload["subject"], progress)
    progress("load")
    eager = _eager(json.dumps(payload["program"]))
    result = judge_subject(eager=eager, subject=subject, options=CaseOptions(), progress=progress)
    if isinstance(subject, RefimplCapture):
        subject.note_segments()
    texts = {"verdict": _verdict_text(result.verdict), **subject.transcript.by_kind()}
    subject.reset()
    return {
        "texts": {kind: normalised(text, kind) for kind, text in texts.items()},
        "replace_worker": bool(result.leaked),
    }


def draw(payload: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Task function: {"seed": n, "numbers": [n, ...]} -> {"programs": [Program, ...]}."""
    drawn = []
    for number in payload["numbers"]:
        settings = Settings(focus="all" if number < DRAWN_OF_ALL else "views")
        program = draw_program(RandomDraw(f"{payload['seed']}/{number}"), settings)
        drawn.append(to_program(program, name=f"drawn/{number}"))
    return {"programs": [program.to_json() for program in drawn]}


def normalised(text: str, kind: str) -> str:
    """The text with parts replaced that differ between two runs of the same code."""
    for pattern, replacement in _PASSING:
        text = pattern.sub(replacement, text)
    return "\n".join(line[:_GUARD_WIDTH] if kind == "guards" else line for line in text.splitlines())


_SUBJECTS: dict[str, Any] = {}


def _subject(name: str, progress: Progress) -> Any:
    """The subject, loaded and warmed up by the process's first case in a stage without a time limit."""
    if name not in _SUBJECTS:
        progress(START_UP)
        subject: Any = load_warm(resolve(name))
        subject.transcript.is_kept = True
        _SUBJECTS[name] = subject
    return _SUBJECTS[name]


@functools.lru_cache(maxsize=1)
def _eager(program: str) -> EagerState:
    """Eager's results, kept for the next subject of the same program."""
    fields = json.loads(program)
    return EagerState(make=lambda: instantiate(Program.from_json(fields)))


def _verdict_text(verdict: Verdict) -> str:
    return "\n".join([verdict.status.value, verdict.symptom, *verdict.also, *verdict.explained]).strip()
