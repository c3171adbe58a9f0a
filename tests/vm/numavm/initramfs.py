# SPDX-License-Identifier: MIT
"""The guest's initramfs: busybox, a few modules, and an /init made for one run."""

from __future__ import annotations

import os
import shlex


class Cpio:
    def __init__(self):
        self.parts, self.ino = [], 0

    def add(self, name, data=b"", mode=0o100755, rdev=(0, 0)):
        self.ino += 1
        raw = name.encode() + b"\0"
        fields = (self.ino, mode, 0, 0, 1, 0, len(data), 0, 0, rdev[0], rdev[1], len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % v for v in fields) + raw
        self.parts += [head, b"\0" * (-len(head) % 4), data, b"\0" * (-len(data) % 4)]

    def bytes(self):
        self.add("TRAILER!!!", mode=0)
        return b"".join(self.parts)


def guest_init(job):
    """The guest's /init, a busybox sh script made for this one run."""
    q = shlex.quote
    sh = [
        "#!/bin/busybox sh",
        "B=/bin/busybox",
        "$B mount -t devtmpfs dev /dev",
        "$B mount -t proc proc /proc",
        "$B mount -t sysfs sysfs /sys",
    ]
    sh += ["$B insmod /lib/%s.ko" % m for m in job["modules"]]
    mount = "$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=%s,%s %s %s"
    sh += [
        mount % ("loose", "ro", "root", "/r"),
        "for d in dev proc sys; do $B mount --move /$d /r/$d; done",
        "$B mkdir -p /r/dev/pts /r/dev/shm",
        "$B mount -t devpts devpts /r/dev/pts",
        "for d in tmp run var/tmp dev/shm; do $B mount -t tmpfs -o mode=1777 tmpfs /r/$d; done",
        "$B mount -t cgroup2 cgroup2 /r/sys/fs/cgroup",
    ]
    for i, (host, guest, rw) in enumerate(job["shares"]):
        sh += [
            "$B mkdir -p %s" % q("/r" + guest),
            mount
            % ("mmap" if rw else "loose", "rw" if rw else "ro", "share%d" % i, q("/r" + guest)),
        ]
    sh += ["$B hostname localhost; $B ip link set lo up"]
    for slot, ids in sorted(job["fake_ids"].items()):
        sh += ["read a </r/sys/bus/pci/slots/%d/address" % slot]
        for name, text in zip(
            ("vendor", "device", "class"), ("0x%04x 0x%04x 0x%06x" % ids).split()
        ):
            sh += [
                "echo %s >/id-%d-%s" % (text, slot, name),
                "$B mount --bind /id-%d-%s /r/sys/bus/pci/devices/$a.0/%s" % (slot, name, name),
            ]
    sh += [
        "for p in /r/sys/class/virtio-ports/*; do",
        '  read n <$p/name; n=${n#numavm.}; eval "P_$n=/r/dev/${p##*/}"; done',
        # The ports are single-open character devices; a pump makes stdout an ordinary pipe.
        "$B mkfifo /o /e; $B cat /o >$P_out & $B cat /e >$P_err &",
        'exec 3>$P_ctl; read up idle </r/proc/uptime; echo "up $up" >&3',
        "exec 5>/o 6>/e",
        "$B env -i /bin/busybox chroot /r /bin/sh -c %s >&5 2>&6 5>&- 6>&- 3>&- </dev/null"
        % q(job["script"]),
        "rc=$?; echo -n %s >&5; echo -n %s >&6" % (job["token"], job["token"]),
        'exec 5>&- 6>&-; wait; $B sync; echo "exit $rc" >&3; $B sleep 30; $B poweroff -f',
    ]
    return "\n".join(sh) + "\n"


def build_initrd(path, kernel_dir, busybox, job):
    c = Cpio()
    if job["madt"]:  # before all else: the kernel looks for ACPI tables there very early
        c.add("kernel", mode=0o40755)
        c.add("kernel/firmware", mode=0o40755)
        c.add("kernel/firmware/acpi", mode=0o40755)
        c.add("kernel/firmware/acpi/madt.aml", job["madt"], 0o100644)
    for d in ("bin", "dev", "lib", "proc", "sys", "r"):
        c.add(d, mode=0o40755)
    c.add("dev/console", mode=0o20600, rdev=(5, 1))
    c.add("dev/null", mode=0o20666, rdev=(1, 3))  # for init itself, once /dev has moved to /r
    with open(busybox, "rb") as f:
        c.add("bin/busybox", f.read())
    for m in job["modules"]:
        with open(os.path.join(kernel_dir, "modules", m + ".ko"), "rb") as f:
            c.add("lib/%s.ko" % m, f.read(), 0o100644)
    c.add("init", guest_init(job).encode())
    with open(path, "wb") as f:
        f.write(c.bytes())
