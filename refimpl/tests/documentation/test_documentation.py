"""refimpl does what the examples of PyTorch's public documentation show."""

from __future__ import annotations

import pytest

from refimpl.tests.documentation.example import Ending, Example, ending_of, of_refimpl, raising
from refimpl.tests.documentation.examples import EXAMPLES, FAILING


def _case(example: Example) -> object:
    reason = FAILING.get(str(example))
    marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True, raises=_NotYet)]
    return pytest.param(example, id=str(example), marks=marks)


class _NotYet(AssertionError):
    """An example that does not end right."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", [_case(example) for example in EXAMPLES])
def test_an_example_of_the_documentation_runs_right(example: Example) -> None:
    ending, why = ending_of(example, of_refimpl())
    if ending is not Ending.RIGHT:
        raise _NotYet(f"{ending.value}: {why} [{example.page}, {example.path}]")


def test_every_expected_failure_is_an_example() -> None:
    names = [str(example) for example in EXAMPLES]
    assert len(set(names)) == len(names)
    assert set(FAILING) <= set(names)


def _example(run: object) -> Example:
    return Example(name="one", area="", page="", path="", entry="", run=run)  # type: ignore[arg-type]


def test_a_wrong_value_is_wrong_and_another_error_refused() -> None:
    def wrong(api: object) -> None:
        raise AssertionError("1, but should be 2")

    def refused(api: object) -> None:
        raise NotImplementedError("not this")

    api = of_refimpl()
    assert ending_of(_example(wrong), api) == (Ending.WRONG, "AssertionError: 1, but should be 2")
    assert ending_of(_example(refused), api) == (Ending.REFUSED, "NotImplementedError: not this")
    assert ending_of(_example(lambda api: None), api) == (Ending.RIGHT, "")


def test_an_error_that_must_come_is_asked_for() -> None:
    with pytest.raises(AssertionError, match="nothing was raised"), raising(ValueError):
        pass
    with pytest.raises(AssertionError, match="should say 'seven'"), raising(ValueError, text="seven"):
        raise ValueError("eight")


def test_a_name_without_counterpart_is_refused() -> None:
    ending, why = ending_of(_example(lambda api: api.nothing.of_the_kind), of_refimpl())
    assert ending is Ending.REFUSED
    assert "torch.nothing" in why
