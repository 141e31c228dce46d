"""Symbolic shapes: sizes as expressions over symbols, with the guards under which what was concluded from them holds."""
