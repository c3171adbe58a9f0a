"""Fake machines: the files of sysfs and proc, written from a short description."""
