"""Subjects: one file per way of running a program. See oracle.subjects.base for the protocol."""
