"""Write the report: the summary as HTML by jinja2, the cases as packed data that the page's scripts unpack.

The file is one page without links to other files. Its policy (Content-Security-Policy) allows exactly its own script and style,
by their hashes, and no connection, so text of a program cannot run even if it were not escaped.

Plots are small SVG, drawn by the page from the same data as its tables. A plotting library would be most of the file: the one
bundle in the package plotly 7.1 has 4.8 MB, and altair needs vega's scripts beside it.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from oracle.verdict import Status
from results.changes import ChangeKind
from results.engine import Location
from results.files import write_atomically
from results.html import contents as reading
from results.html.contents import Contents, columns_of, details_of
from results.html.payload import blocks, pack
from results.html.summary import summary_of
from results.html.words import CHANGE_SENTENCES, NOT_PLANNED, STATUS_SENTENCES, WITNESS_SENTENCES
from results.ladder import rung_of
from results.outcomes import outcome_of
from results.render import one_line

_SCRIPTS: Final = ("payload.js", "charts.js", "table.js", "case.js", "speed.js", "app.js")


def write_report(contents: Contents, path: Path) -> int:
    """Write the file and return its size in bytes. Raises UsageError if the path cannot be written."""
    text = page(contents)
    write_atomically(path, text)
    return len(text.encode("utf-8", "backslashreplace"))


def page(contents: Contents) -> str:
    """The whole file as text."""
    style, script = _asset("report.css"), "\n".join(map(_asset, _SCRIPTS))
    if "</" in script or "<!--" in script or "</" in style:
        raise ValueError(
            "a script or style of the report contains a tag, but should contain none: it would end its element"
        )
    details, programs = details_of(contents)
    data = [("data-table", pack(columns_of(contents) | {"meta": _meta(contents)}))]
    data += [(f"data-cases-{i}", block) for i, block in enumerate(blocks(details, reading._CASES_IN_BLOCK))]
    data += [(f"data-programs-{i}", block) for i, block in enumerate(blocks(programs, reading._PROGRAMS_IN_BLOCK))]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html.j2")).render(
        page=summary_of(contents),
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        blocks=[(name, Markup(block)) for name, block in data],
    )


def _asset(name: str) -> str:
    return resources.files("results.html").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _meta(contents: Contents) -> dict[str, Any]:
    """Words and facts that the scripts need."""
    head, base = contents.head, contents.base
    subjects = sorted({subject for side in (head, base) if side for subject in side.columns["subject"]})
    return {
        "run": one_line(head.run.run_id),
        "place": one_line(str(Location.parse(head.place))),
        "base_run": one_line(base.run.run_id) if base else "",
        "base_place": one_line(str(Location.parse(base.place))) if base else "",
        "in_all": contents.rows_in_all,
        "statuses": STATUS_SENTENCES,
        "changes": CHANGE_SENTENCES,
        "witnesses": WITNESS_SENTENCES,
        "outcomes": {status.value: outcome_of(status) for status in Status} | {NOT_PLANNED: "not_run"},
        "findings": [status.value for status in Status if status.is_finding],
        "rungs": {one_line(subject): rung for subject in subjects if (rung := rung_of(subject)) is not None},
        "flags": {
            "flaky": reading.FLAKY,
            "slower": reading.SLOWER,
            "faster": reading.FASTER,
            "compiles slower": reading.COMPILE_SLOWER,
            "compiles faster": reading.COMPILE_FASTER,
        },
        "regressions": [kind.value for kind in ChangeKind if kind.is_regression],
    }
