"""Strict export, which captures a program by reading its bytecode."""
