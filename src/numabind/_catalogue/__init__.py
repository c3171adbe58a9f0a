"""Every named problem: what it means, and the remedy. Loaded when there is one to tell of."""

from __future__ import annotations

from numabind._catalogue.memory import MEMORY
from numabind._catalogue.placing import PLACING

# name: (what it means, remedy)
CATALOGUE: dict[str, tuple[str, str]] = {**PLACING, **MEMORY}
