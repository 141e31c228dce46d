"""Saved exported programs: a zip of JSON and safetensors, without pickle (docs/export_archive.md)."""
