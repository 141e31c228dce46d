"""Triage of a finding: its bucket, its first wrong rung, the part of the compiler that causes it, and a script that shows it."""
