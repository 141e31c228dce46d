"""What documents say of figures, programs and answers is what the files that hold them say."""

from __future__ import annotations

import ast
import re

import pytest

from figures import documents, figures, filled, program_block
from oracle.known.ledger import load_ledger

LEDGER = load_ledger()


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_the_documents_are_up_to_date(path) -> None:
    text = path.read_text(encoding="utf-8")
    assert filled(text, LEDGER) == text


def test_a_stale_figure_is_replaced() -> None:
    text = "<!-- figure: issues.programs -->12345<!-- /figure --> programs"
    assert filled(text, LEDGER) == f"<!-- figure: issues.programs -->{len(LEDGER.issues)}<!-- /figure --> programs"


@pytest.mark.parametrize("kind", ["figure", "table", "program", "answer"])
def test_a_key_that_there_is_not_is_an_error(kind: str) -> None:
    with pytest.raises(ValueError, match=f"there is no {kind} 'nothing'"):
        filled(f"<!-- {kind}: nothing -->x<!-- /{kind} -->", LEDGER)


@pytest.mark.parametrize("key", sorted(figures(LEDGER)))
def test_every_figure_is_computed_from_a_file_that_is_there(key: str) -> None:
    assert re.fullmatch(r"[\d.]+( \d{3})*", figures(LEDGER)[key]())


@pytest.mark.parametrize(
    "key", [key for path in documents() for key in re.findall(r"<!-- program: (\S+) -->", path.read_text())]
)
def test_a_program_is_shown_without_what_only_suites_need(key: str) -> None:
    (issue,) = [issue for issue in LEDGER.issues if issue.id == key]
    source = program_block(issue).removeprefix("\n```python\n").removesuffix("```\n")
    names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert names.isdisjoint({"PROGRAM", "DEVICE"})
    assert "program" in source
    assert "def inputs(call)" in source
