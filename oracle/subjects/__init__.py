"""Subjects: one file for each way to run a program. The protocol is in oracle.subjects.base."""
