"""`python -m numabind._doctor > docs/doctor.md`."""

from numabind._doctor import as_markdown

print(as_markdown(), end="")
