"""Traced and partitioned programs in files, for later processes (docs/compile_cache.md)."""
