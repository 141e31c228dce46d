"""What users and upstream's tests call of capture, by upstream's names."""
