"""Making the objects that a segment leaves, after its graph has run."""
