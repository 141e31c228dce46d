"""Tests of what is done once for all workers of a campaign."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch

from fuzz.campaign import warming


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (lambda: None, True),
        (lambda: {}["missing"], False),
        (lambda: os._exit(3), False),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), False),
    ],
)
def test_a_trial_in_a_child_says_whether_it_ended_well(action: Callable[[], None], expected: bool) -> None:
    assert warming._ends_well(action) is expected


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "TRIAL_S", 0.3)
    started = time.monotonic()
    assert not warming._ends_well(lambda: time.sleep(60))
    assert time.monotonic() - started < 30


def test_where_the_compiler_comes_to_harm_this_process_does_not_try(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(warming, "_compile", lambda backend: tried.append(backend) or os._exit(1))
    warming.aot_eager()
    assert tried == []


def test_the_generator_is_left_as_it_was_and_the_compiler_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "_ends_well", lambda action: True)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, backend: compiled.append(backend) or function)
    before = torch.get_rng_state()
    warming.aot_eager()
    assert torch.equal(torch.get_rng_state(), before)
    assert compiled == ["aot_eager"]
