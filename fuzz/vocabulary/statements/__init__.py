"""Statements by family, layouts of arguments, and call plans."""
