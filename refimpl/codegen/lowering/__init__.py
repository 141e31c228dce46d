"""Operators as loop nests."""
