"""Judging one drawn program on one subject, or a program beside a related one, and what is observed meanwhile."""
