"""Fails on purpose."""

msg = "this module cannot be imported"
raise ImportError(msg)
