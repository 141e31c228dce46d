"""Symbolic shapes: sizes as expressions of symbols, with the guards under which a trace is valid."""
