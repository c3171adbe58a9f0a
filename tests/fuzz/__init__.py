"""Fuzz targets: damaged machines, snapshots, books and variables must never end in a traceback."""
