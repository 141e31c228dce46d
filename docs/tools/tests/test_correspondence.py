"""The keeper of docs/correspondence.md reads docstrings as their writers meant them."""

from __future__ import annotations

from pathlib import Path

import pytest

import correspondence

MODULE = '''"""Proxies: tensors that record operations.

Counterpart: torch/fx/experimental/proxy_tensor.py
Differs: names are
    given in order | and kept

Nothing of this paragraph belongs to it.
"""

class Proxy:
    """A tensor that records.

    Counterpart: ProxyTensor
    """

    def unwrap(self):
        """Says nothing of upstream."""
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a small refimpl with a documented module and a test that must not be listed."""
    for directory in ("docs", "refimpl/trace", "refimpl/tests"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "refimpl/trace/proxy.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "refimpl/trace/__init__.py").write_text('"""Counterpart: torch/fx\n"""\n', encoding="utf-8")
    (tmp_path / "refimpl/tests/test_proxy.py").write_text('"""Counterpart: none\n"""\n', encoding="utf-8")
    return tmp_path


def test_modules_and_classes_are_listed_in_order(tree: Path):
    assert correspondence.entries(tree) == [
        correspondence.Entry(name="refimpl.trace", counterpart="torch/fx", differs=""),
        correspondence.Entry(
            name="refimpl.trace.proxy",
            counterpart="torch/fx/experimental/proxy_tensor.py",
            differs="names are given in order | and kept",
        ),
        correspondence.Entry(name="refimpl.trace.proxy.Proxy", counterpart="ProxyTensor", differs=""),
    ]


def test_check_fails_until_written(tree: Path, capsys: pytest.CaptureFixture[str]):
    assert correspondence.main(["--check"], root=tree) == 1
    assert "run `make fix`" in capsys.readouterr().err
    assert correspondence.main(["--write"], root=tree) == 0
    assert correspondence.main(["--check"], root=tree) == 0
    assert "in order \\| and kept" in (tree / "docs/correspondence.md").read_text(encoding="utf-8")


def test_a_difference_from_nothing_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]):
    (tree / "refimpl/trace/odd.py").write_text('"""Odd.\n\nDiffers: from what?\n"""\n', encoding="utf-8")
    assert correspondence.main(["--write"], root=tree) == 1
    assert "refimpl.trace.odd has Differs: but no Counterpart:" in capsys.readouterr().err
