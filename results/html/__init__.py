"""The HTML report of a run: one self-contained file that opens without a network (docs/reports.md)."""
