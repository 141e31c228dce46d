"""What users and upstream's tests call of capture. What these share with capture is in refimpl.capture.public."""
