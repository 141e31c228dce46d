"""The page that says what of torch refimpl rests on: every part is described, and README says what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

import independence
from refimpl.tests import poisoned_kernels
from refimpl.tests.upstream_code import ALL_PARTS, TABLE

HEADER = "part,function,calls,recorded operators\n"
ROWS = "run,trace,3,0\nrun,refused,1,0\nmeta kernels,_meta_registrations.py:meta_mm,5,0\noperators,all,7,0\n"
POISON_ROWS = (
    "part,kernel,operators,way,program,poison,calls,changed,error\n"
    "meta kernels,a.f,aten.f,compile,p,raises,1,refused,E\n"
    "meta kernels,a.f,aten.f,compile,p,shape,1,metadata,\n"
    "meta kernels,a.f,aten.f,export,p,shape,1,nothing,\n"
    "meta kernels,a.g,aten.g,export,q,shape,1,metadata,\n"
    "meta kernels,a.h,aten.h,,,,0,not reached,\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a table and a README, and the page made from them."""
    table = tmp_path / independence.TABLE
    table.parent.mkdir(parents=True)
    table.write_text(HEADER + ROWS, encoding="utf-8")
    (tmp_path / independence.POISON_TABLE).write_text(POISON_ROWS, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    readme = "before <!-- independence -->old<!-- /independence --> after\n"
    (tmp_path / independence.README).write_text(readme, encoding="utf-8")
    assert independence.main(["--write"], root=tmp_path) == 0
    return tmp_path


def test_every_part_that_is_measured_is_described():
    assert tuple(independence.PARTS) == ALL_PARTS
    assert TABLE == independence.ROOT / independence.TABLE
    assert poisoned_kernels.TABLE == independence.ROOT / independence.POISON_TABLE
    assert tuple(independence.CHANGES) == poisoned_kernels.CHANGES
    assert tuple(independence.POISONS) == poisoned_kernels.POISONS
    assert independence.NOT_REACHED == poisoned_kernels.NOT_REACHED


def test_the_page_and_readme_say_the_same(tree: Path):
    page, readme = (
        " ".join((tree / name).read_text(encoding="utf-8").split()) for name in (independence.PAGE, independence.README)
    )
    said = independence.summary(independence.read_table(tree / independence.TABLE))
    assert said in page
    assert said in readme
    assert "No operator of a graph came from a Python kernel of PyTorch in 3 traces" in said
    assert "old" not in readme
    assert readme.startswith("before ")
    assert readme.endswith(" after")
    assert "| meta kernels | `torch._meta_registrations` | shapes, strides, dtypes | 1 | 5 | 0 |" in page


def test_an_operator_that_a_python_kernel_recorded_is_told(tree: Path):
    table = tree / independence.TABLE
    table.write_text(HEADER + ROWS + "Python references,_refs/__init__.py:square,1,2\n", encoding="utf-8")
    assert "2 operators of a graph came from" in independence.summary(independence.read_table(table))
    assert independence.main(["--check"], root=tree) == 1


@pytest.mark.parametrize("name", [independence.PAGE, independence.README])
def test_what_was_edited_by_hand_is_out_of_date(tree: Path, name: str, capsys: pytest.CaptureFixture[str]):
    assert independence.main(["--check"], root=tree) == 0
    path = tree / name
    path.write_text(path.read_text(encoding="utf-8").replace("derivatives", "nothing"), encoding="utf-8")
    assert independence.main(["--check"], root=tree) == 1
    assert name in capsys.readouterr().err


def test_the_page_counts_what_changes_with_each_poison(tree: Path):
    page = (tree / independence.PAGE).read_text(encoding="utf-8")
    text = " ".join(page.split())
    assert "torch registers 3 Python functions" in text
    assert "each of the 2 that the corpus and OpInfo reach wrong" in text
    assert "4 runs. None of these runs gave values other than eager's" in text
    assert "| meta kernels | raises | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in page
    assert "| meta kernels | gives another shape | 2 | 1 | 2 | 0 | 0 | 0 | 0 |" in page


def test_values_that_a_poison_changes_are_told(tree: Path):
    table = tree / independence.POISON_TABLE
    table.write_text(POISON_ROWS + "meta kernels,a.g,aten.g,export,q,dtype,1,values,\n", encoding="utf-8")
    told = " ".join(independence.poison_section(independence.read_poison_table(table)))
    assert "1 of these runs gave values other than eager's" in told.replace("\n", " ")
    assert independence.main(["--check"], root=tree) == 1
    table.write_text(POISON_ROWS + "meta kernels,a.g,aten.g,export,q,moon,1,values,\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'moon'"):
        independence.read_poison_table(table)


def test_no_value_changes_in_the_real_table():
    assert independence.read_poison_table(independence.ROOT / independence.POISON_TABLE).wrong_values == 0


def test_an_unknown_part_and_a_readme_without_marks_are_errors(tree: Path):
    table = tree / independence.TABLE
    table.write_text(HEADER + "moon,f,1,0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a part 'moon'"):
        independence.read_table(table)
    with pytest.raises(ValueError, match="no <!-- independence --> marks"):
        independence.with_sentences("nothing", independence.Measured(runs={}, parts={}))


def test_the_real_page_is_that_of_the_real_table():
    assert independence.main(["--check"]) == 0
