"""A Slurm site on this one machine: munged, slurmctld and slurmd with four pretend GPUs.

Everything is in a folder of its own and on free ports, so that a real Slurm here is not disturbed.
Needs root, since slurmd starts tasks as other users.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

GPUS = 4

CONFIG = """\
ClusterName=pretend
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin={plugins}
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
ReturnToService=2
NodeName=pretend NodeHostname={host} NodeAddr=127.0.0.1 {hardware} RealMemory=100 Gres=gpu:{gpus}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Site:
    """Daemons that run from `start` to `stop`; `folder` holds their files and may hold a test's."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm"))
        self.folder.chmod(0o755)  # munge insists
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.environ = {"PATH": os.environ["PATH"], "SLURM_CONF": f"{self.folder}/slurm.conf"}

    def start(self, constrain: bool = False) -> None:
        """Write the configuration and start everything.

        `constrain`: tasks can open the devices that they were given, and no others.
        """
        folder = self.folder
        for name in ("state", "spool", "dev"):
            (folder / name).mkdir(exist_ok=True)
        for number in range(GPUS):
            # Slurm numbers only what is a device. NVIDIA's major number; no driver need be there.
            kind = stat.S_IFCHR | 0o666
            os.mknod(folder / f"dev/nvidia{number}", kind, os.makedev(195, number))
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        shown = subprocess.run(["slurmd", "-C"], capture_output=True, text=True, check=True).stdout
        words = shown.splitlines()[0].split()
        hardware = " ".join(w for w in words if not w.startswith(("NodeName=", "RealMemory=")))
        text = CONFIG.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            ports=_free_ports(),
            hardware=hardware,
            gpus=GPUS,
            plugins="task/affinity,task/cgroup" if constrain else "task/affinity",
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text(
            f"NodeName=pretend Name=gpu File={folder}/dev/nvidia[0-{GPUS - 1}]\n"
        )
        (folder / "cgroup.conf").write_text("ConstrainDevices=yes\nConstrainCores=no\n")
        munge = f"{folder}/munge"
        self._daemon(
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={munge}.socket", f"--pid-file={munge}.pid"),
            *(f"--log-file={munge}.log", f"--seed-file={munge}.seed"),
        )
        self._until((folder / "munge.socket").exists, "munged")
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D", "-N", "pretend")
        self._until(lambda: self._state() == "idle", "the node")

    @property
    def variables(self) -> dict[str, str]:
        """What a shell needs to use this site."""
        return {"SLURM_CONF": self.environ["SLURM_CONF"]}

    def add(self, line: str) -> None:
        """Add a line to the configuration of the running site."""
        with open(self.folder / "slurm.conf", "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        self.run("scontrol", "reconfigure")
        time.sleep(1)

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self._steps():
            os.kill(pid, signal.SIGKILL)
        for path in Path("/sys/fs/cgroup").glob("*/slurm_pretend"):
            for folder, _, _ in os.walk(path, topdown=False):
                os.rmdir(folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _steps(self) -> list[int]:
        """The slurmstepds of this site that have not noticed its end."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ours = str(self.folder).encode() in (path / "environ").read_bytes()
                if ours and (path / "comm").read_text() == "slurmstepd\n":
                    found.append(int(path.name))
            except OSError:
                continue  # it ended
        return found

    def run(self, *command: str, **variables: str) -> str:
        """The output of a Slurm command; its errors if it fails."""
        done = subprocess.run(
            command,
            env={**self.environ, **variables},
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def _daemon(self, *command: str) -> None:
        quiet = subprocess.DEVNULL
        path = self.environ["PATH"] + ":/usr/sbin"
        self.daemons.append(
            subprocess.Popen(
                command,
                env={**self.environ, "PATH": path},
                stdin=quiet,
                stdout=quiet,
                stderr=quiet,
                start_new_session=True,
            )
        )

    def _state(self) -> str:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%t"],
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not ready():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come up\n{self.logs()}")
            time.sleep(0.2)


def _free_ports() -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
