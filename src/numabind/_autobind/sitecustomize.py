"""What `numabind launch` puts first on PYTHONPATH: a worker binds itself as its Python starts.

Python imports the first `sitecustomize` that it finds, at start-up and before anything of the
program. This one binds the process if it is a worker, then steps aside for the user's own.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _bind() -> None:
    if not os.environ.get("NUMABIND_LAUNCH"):
        return
    if sys.version_info < (3, 10):  # noqa: UP036 (workers may run any Python)
        if os.environ.get("LOCAL_RANK"):
            text = "numabind: WARNING not bound: numabind needs Python 3.10, this worker has %d.%d"
            sys.stderr.write(text % sys.version_info[:2] + "\n")
        return
    # The worker may run another Python than the launcher, one that lacks numabind.
    home = os.path.dirname(os.path.dirname(_HERE))
    added = home not in sys.path
    if added:
        sys.path.append(home)
    try:
        from numabind._launch import bind_worker

        bind_worker(_HERE)
    except Exception as error:  # noqa: BLE001 (whatever it is, the worker must run)
        if sys.stderr is not None:
            text = "numabind: WARNING not bound: %s: %s\n"
            sys.stderr.write(text % (type(error).__name__, error))
    finally:
        if added:
            sys.path.remove(home)


def _step_aside() -> None:
    """Import the sitecustomize that Python would have found without this one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    this = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)
        if error.name != "sitecustomize":
            raise


if sys.platform == "linux":
    _bind()
_step_aside()
