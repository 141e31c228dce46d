"""The HTML report in a headless Chromium: `make test-report` installs one where there is none.

The driver's log has every error of a script and everything that the page's policy refused; it must stay empty.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from oracle.records import Record
from oracle.verdict import Status
from results.html.contents import Side, contents_of
from results.html.page import write_report
from results.store import Store
from results.tests import fabricate
from results.tests.browser import chromium, missing, visit, wait_for
from results.tests.hostile import hostile_record, hostile_run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]

_PLACES = ("#/", "#/failures", "#/cases", "#/speed", "#/environment")


def _records(run: int) -> list[Record]:
    """Every status on three subjects; some cases are new, fixed, flaky or slower in run 3."""
    found = []
    for subject in ("dynamo", "aot_eager", "inductor"):
        for number, status in enumerate(Status):
            case = fabricate.case(f"{status.value}/float32/{number}", subject=subject, group=status.value)
            found.append(fabricate.record(case, status))
        for number in range(40):
            turns = {1: run == 3, 2: run < 3, 3: run == 2}
            status = Status.FAIL_ACCURACY if turns.get(number, False) else Status.PASS
            slower = 0.5 if number > 36 and run == 3 else 1.0
            case = fabricate.case(f"add/float32/{number}", suite="features", subject=subject)
            symptom = "call 0: output[1][0, 3] is 4.5, but should be 1.5" if status.is_finding else ""
            found.append(fabricate.record(case, status, symptom=symptom, speedup=(1 + number / 40) * slower))
    return [record for record in found if record.verdict.status not in (Status.MISSING, Status.NOT_RUN)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    db = folder / "runs.db"
    with Store.open(db, create=True) as store:
        for run in (1, 2, 3):
            fabricate.write_run(store, _records(run), run_id=f"run-{run}")
    contents = contents_of(Side.read(str(db), "latest"), Side.read(str(db), "run-2"))
    write_report(contents, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


def _is_silent(driver: Any) -> None:
    __tracebackhide__ = True
    log = [entry["message"] for entry in driver.get_log("browser")]
    assert not log, log


def _text(driver: Any, selector: str) -> str:
    return driver.execute_script(f"return document.querySelector({selector!r}).textContent")


def _press(driver: Any, keys: str) -> None:
    driver.switch_to.active_element.send_keys(keys)


# ---------------------------------------------------------------------------------------------------------- hostility


def test_hostile_text_is_shown_and_never_runs(driver: Any, tmp_path: Path):
    db = hostile_run(tmp_path / "runs.db", [hostile_record(i) for i in range(3)])
    write_report(contents_of(Side.read(str(db), "latest"), None), tmp_path / "report.html")
    visit(driver, tmp_path / "report.html")
    ids = driver.execute_script("return Array.from({length: state.cases.rows}, (_, row) => state.cases.id(row))")
    assert len(ids) == 4
    for place in (*_PLACES, *(f"#/case/{quote(case_id, safe='')}" for case_id in ids)):
        visit(driver, tmp_path / "report.html", place)
        for control in driver.execute_script(
            "return [...document.querySelectorAll('main button, summary')].filter((b) => b.offsetParent)"
        ):
            driver.execute_script("arguments[0].click()", control)
        assert driver.execute_script("return window.hacked") is None, place
        assert (
            driver.execute_script(
                "return document.querySelectorAll('img, iframe, main script, [onload], [onerror]').length"
            )
            == 0
        )
        assert not [
            a for a in driver.execute_script("return [...document.links].map((a) => a.protocol)") if a != "file:"
        ]
    shown = _text(driver, "#case")
    for field in (
        "name",
        "symptom",
        "source",
        "traceback",
        "also",
        "explained",
        "witness",
        "repro",
        "where",
        "value",
        "tag",
        "before",
        "issue",
        "observed",
    ):
        assert f"{field}</script><script>window.hacked='{field}'</script>" in shown, field
    _is_silent(driver)


# -------------------------------------------------------------------------------------------------- numbers and links


def test_every_number_of_the_summary_opens_as_many_cases(driver: Any, file: Path):
    visit(driver, file)
    links = driver.execute_script(
        "return [...document.querySelectorAll('.tiles a, .matrix .parts a, .step-title a.dim, table td.right a')].map((a) => "
        "[a.getAttribute('href'), (a.querySelector('strong') ?? a).textContent])"
    )
    assert len(links) > 30
    for href, said in links:
        number = re.match(r"\s*([\d ]+)", said)
        if number is None or "sort=-" in href:  # sums, whose largest parts come first
            continue
        driver.execute_script("location.hash = arguments[0]", href[1:])
        wait_for(driver, "state.page === 'cases'")
        wait_for(driver, f"$('cases-found').textContent.startsWith('{int(number[1].replace(' ', ''))} of ')", seconds=2)
    _is_silent(driver)


def test_a_link_to_a_case_or_a_filtered_list_opens_in_a_fresh_page(driver: Any, file: Path):
    visit(driver, file, "#/cases?change=new%20failure&subject=inductor")
    assert _text(driver, "#cases-found").startswith("1 of ")
    visit(driver, file, f"#/case/{quote('features/add/float32/1@inductor', safe='')}")
    shown = _text(driver, "#case")
    for text in (
        "New failure: it fails",
        "eager 1.5",
        "def program(x)",
        "too far",
        "torch-oracle localise",
        "since run run-3",
    ):
        assert text in shown, text
    assert "return x + 1" in _text(driver, "pre.source .from")
    visit(driver, file, "#/case/no%2Fsuch@case")
    assert "has no case no/such@case" in _text(driver, "#case")
    _is_silent(driver)


def test_the_list_has_rows_only_where_the_reader_looks(driver: Any, file: Path):
    visit(driver, file, "#/cases")
    rows = driver.execute_script("return [state.found.length, document.querySelectorAll('.cases tr.row').length]")
    assert rows[0] > 150
    assert rows[1] < 70
    driver.execute_script("$('list').scrollTop = 1e9")
    last = "state.cases.word('name', state.found.at(-1))"
    wait_for(driver, f"[...document.querySelectorAll('.cases tr.row')].at(-1).textContent.includes({last})")


# ------------------------------------------------------------------------------------------------------------ reading


def test_the_keyboard_reaches_everything(driver: Any, file: Path):
    visit(driver, file)
    _press(driver, "3")
    wait_for(driver, "state.page === 'cases'")
    _press(driver, "/")
    _press(driver, "add/float32/1@inductor")
    wait_for(driver, "state.found.length === 1 && location.hash.includes('q=')")
    _press(driver, "\ue00c")  # Esc leaves the field
    _press(driver, "j")
    _press(driver, "\ue007")  # Enter
    wait_for(driver, "state.page === 'case' && document.querySelector('#case h1')")
    assert "features/add/float32/1" in _text(driver, "#case h1")
    _press(driver, "\ue00c")
    wait_for(driver, "state.page === 'cases' && state.found.length === 1")
    _press(driver, "?")
    assert driver.execute_script("return $('help').open")
    _press(driver, "\ue00c")
    _press(driver, "2")
    wait_for(driver, "state.page === 'failures'")
    _press(driver, "j")
    _press(driver, "\ue007")
    wait_for(driver, "state.page === 'cases' && location.hash.includes('finding=0')")
    _press(driver, "t")
    assert driver.execute_script("return document.documentElement.dataset.theme") == "dark"
    driver.execute_script("setTheme('auto')")
    _is_silent(driver)


# The smallest contrast of any text with what is behind it, and where; text on a tint over the page counts the tint.
_CONTRAST = """
const part = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * part(r / 255) + 0.7152 * part(g / 255) + 0.0722 * part(b / 255);
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const color = parse(getComputedStyle(element).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
  if (element.closest("script, svg, select, noscript")) continue;
  const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
  found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 120)]);
}
return found.sort((x, y) => x[0] - y[0])[0];
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast_and_a_narrow_window_does_not_scroll_sideways(file: Path, dark: bool):
    with chromium(width=480, height=900, dark=dark) as narrow:
        for place in (*_PLACES, f"#/case/{quote('features/add/float32/1@inductor', safe='')}"):
            visit(narrow, file, place)
            ratio, where = narrow.execute_script(_CONTRAST)
            assert ratio >= 4.5, f"{place}: contrast {ratio:.2f}, but should be at least 4.5 [{where}]"
            wide = narrow.execute_script("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{place}: {wide} px wider than the window"
        _is_silent(narrow)


def test_a_printed_list_has_all_its_rows(driver: Any, file: Path):
    visit(driver, file, "#/cases?q=float32%2F1%40")
    visit(driver, file, "#/cases")
    screen = driver.execute_script("return document.querySelectorAll('.cases tr.row').length")
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    printed = driver.execute_script("return [document.querySelectorAll('.cases tr.row').length, state.found.length]")
    assert printed[0] == printed[1] > screen
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script("return document.querySelectorAll('.cases tr.row').length") == screen
    document = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert document.startswith(b"%PDF")


def test_the_page_asks_for_nothing_and_a_damaged_file_says_so(driver: Any, file: Path, tmp_path: Path):
    visit(driver, file)
    assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    text = file.read_text(encoding="utf-8")
    start = text.index('id="data-table">') + len('id="data-table">')
    damaged = tmp_path / "damaged.html"
    damaged.write_text(text[: start + 200] + text[start + 400 :], encoding="utf-8")
    driver.get(damaged.as_uri())
    wait_for(driver, "!$('broken').hidden")
    assert "the file is damaged" in _text(driver, "#broken")
