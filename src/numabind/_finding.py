"""What `doctor` finds: one thing on this machine that works against locality."""

from __future__ import annotations

from numabind._record import record

SEVERITIES = ("serious", "warning", "note")


@record
class Finding:
    """One thing that works against locality here.

    `name` is stable (a key of the doctor's catalogue), `severity` one of SEVERITIES, `cause` one
    sentence on what is so on this machine and what it does, `evidence` the file or variable and its
    value ("/proc/sys/kernel/numa_balancing = 1"), `remedy` what to do, as a command if there is
    one.
    """

    name: str
    severity: str
    cause: str
    evidence: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """The JSON form: an object of the five fields."""
        return dict(self.__dict__)
