"""results: records -> store, tables, comparisons, gates, exports. Torch-free."""
