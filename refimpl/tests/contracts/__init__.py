"""Tests of the contracts (docs/contracts.md) that no test of a room shows."""
