"""The functions of capture that users and upstream's tests call. Helpers that capture itself needs too are in
refimpl.capture.public.
"""
