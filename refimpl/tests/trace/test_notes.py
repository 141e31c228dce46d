"""Notes of our passes on the nodes of a graph."""

from __future__ import annotations

import pytest
import torch

from refimpl.trace.metadata import Notes, note, notes_of


def _node() -> torch.fx.Node:
    return torch.fx.Graph().placeholder("x")


def test_a_node_without_notes_has_every_default_and_no_key() -> None:
    node = _node()
    assert notes_of(node) == Notes()
    note(node, is_mutated_input=True)
    note(node, autograd_step=3)
    assert notes_of(node) == Notes(is_mutated_input=True, autograd_step=3)
    note(node, is_mutated_input=False, autograd_step=None)
    assert not node.meta


def test_a_copy_keeps_its_notes_when_the_original_is_noted_on() -> None:
    node = _node()
    note(node, given_with=frozenset({0}))
    copied = torch.fx.Graph().node_copy(node)
    note(node, given_with=frozenset({1}))
    assert notes_of(copied).given_with == {0}


def test_a_fact_that_no_field_stands_for_is_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="is_written"):
        note(_node(), is_written=True)
