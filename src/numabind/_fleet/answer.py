"""What `fleet survey --srun` runs on each node: `python -m numabind._fleet.answer`."""

from __future__ import annotations

import os
import sys

from numabind._discover import Questions, discover_here
from numabind._errors import NumabindError
from numabind._fleet.wire import packed


def main() -> int:
    """Print this node's machine, or why there is none, as lines for the one that asked."""
    node = os.environ.get("SLURMD_NODENAME", "unknown")
    answer: dict[str, object] = {"nodes": os.environ.get("SLURM_STEP_NODELIST", "")}
    try:
        answer["machine"] = discover_here(os.environ, Questions()).as_dict()
    except NumabindError as error:
        answer["cause"] = str(error)
    sys.stdout.write("".join(f"{line}\n" for line in packed(answer, node)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
