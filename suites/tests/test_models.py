"""The models suite: what it lists, and that its programs run in eager and repeat themselves."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from oracle.errors import UsageError
from suites.base import Selection, SuiteProgram
from suites.models import DTYPES, TAGS
from suites.models.catalog import ARCHITECTURES
from suites.models.suite import ModelsSuite
from suites.tests.plain_runner import run, same

FAST = ("mlp", "lenet", "lstm-cell-loop", "gcn", "dlrm", "unet")
SUITE = ModelsSuite()


def _programs(selection: Selection) -> list[SuiteProgram]:
    return [found for group in SUITE.groups(selection) for found in SUITE.programs(selection, group)]


def _assert_runs_twice_alike(found: SuiteProgram) -> None:
    first = run(found.program)
    assert len(first) == len(found.program.calls)
    assert not any(isinstance(call, str) for call in first), f"{found.program.name} raised {first[-1]}"
    assert same(first, run(found.program)), f"{found.program.name} does not repeat itself"


def test_names_are_unique_and_spell_out_dtype_and_direction() -> None:
    names = [found.program.name for found in _programs(Selection(dtypes=DTYPES))]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {"bert/float32/forward/eval", "bert/float32/backward/train"} <= set(names)


def test_at_least_24_architectures_of_every_kind_come_from_transformers() -> None:
    from_transformers = [a for a in ARCHITECTURES.values() if "transformers" in a.tags]
    assert len(from_transformers) >= 24
    kinds = {tag for architecture in from_transformers for tag in architecture.tags}
    assert {"encoder", "decoder", "encdec", "moe", "ssm", "vision", "speech", "multimodal"} <= kinds
    assert "diffusion" in ARCHITECTURES["unet"].tags


def test_every_tag_is_explained_and_used() -> None:
    used = {tag for architecture in ARCHITECTURES.values() for tag in architecture.tags}
    assert used == set(TAGS)


def test_float32_is_the_default_dtype_and_others_come_when_asked() -> None:
    assert {found.dtype for found in _programs(Selection(match=("mlp",)))} == {"float32"}
    assert {found.dtype for found in _programs(Selection(match=("mlp",), dtypes=("bfloat16",)))} == {"bfloat16"}
    assert _programs(Selection(match=("fnet",), dtypes=("bfloat16",))) == []


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(match=("bert",)), ["bert/float32/forward/eval", "bert/float32/backward/train"]),
        (Selection(match=("bert/*/train",)), ["bert/float32/backward/train"]),
        (Selection(match=("bert",), directions=("forward",)), ["bert/float32/forward/eval"]),
        (Selection(match=("bert",), tags=("vision",)), []),
    ],
)
def test_a_selection_is_honoured(selection: Selection, expected: list[str]) -> None:
    assert [found.program.name for found in _programs(selection)] == expected


def test_a_device_stands_in_the_source() -> None:
    (found,) = _programs(Selection(match=("mlp/*/eval",), device="cuda:0"))
    assert "device='cuda:0'" in found.program.source


def test_an_unknown_model_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no-such-model"):
        list(SUITE.programs(Selection(), "no-such-model"))


def test_without_transformers_a_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # makes the import fail
    (found,) = _programs(Selection(match=("bert/*/eval",)))
    with pytest.raises(UsageError, match=r"torch-oracle\[models\]"):
        run(found.program)


@pytest.mark.parametrize("group", FAST)
def test_fast_models_run_in_eager_and_repeat_themselves(group: str) -> None:
    for found in _programs(Selection(match=(group,))):
        _assert_runs_twice_alike(found)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_every_call_has_other_inputs_and_outputs(mode: str) -> None:
    (found,) = _programs(Selection(match=(f"mlp/*/{mode}",)))
    first, second, third = (outputs for outputs, *_ in run(found.program))
    assert not any(same(*pair) for pair in ((first, second), (first, third), (second, third)))


@pytest.mark.slow
@pytest.mark.parametrize("group", [name for name in ARCHITECTURES if name not in FAST])
def test_all_models_run_in_eager_and_repeat_themselves(group: str) -> None:
    if "transformers" in ARCHITECTURES[group].tags:
        pytest.importorskip("transformers", reason="the extra torch-oracle[models] is not installed")
    for found in _programs(Selection(match=(group,))):
        _assert_runs_twice_alike(found)


@pytest.mark.slow
@pytest.mark.parametrize("group", list(ARCHITECTURES))
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_all_models_run_in_their_other_dtypes(group: str, dtype: str) -> None:
    if "transformers" in ARCHITECTURES[group].tags:
        pytest.importorskip("transformers", reason="the extra torch-oracle[models] is not installed")
    found = _programs(Selection(match=(group,), dtypes=(dtype,)))
    assert len(found) == (2 if dtype in ARCHITECTURES[group].dtypes else 0)
    for program in found:
        assert not any(isinstance(call, str) for call in run(program.program)), program.program.name
