# SPDX-License-Identifier: MIT
"""Start the guest, pump its output, and bring back its exit code."""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from numavm.initramfs import build_initrd
from numavm.kernel import CACHE, Error, find_kernels, vmlinux_of
from numavm.topology import topology_args

EXIT_TIMEOUT, EXIT_VM = 124, 125
# Intel vendor on purpose: AuthenticAMD (what "max" says by default) costs TCG 2.5 s more.
DEFAULT_CPU = "max,vendor=GenuineIntel,la57=off"
# Slow things no NUMA test wants: keyrings, crypto self tests, BTF parsing, IPv6, mitigations.
KERNEL_ARGS = (
    "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off nokaslr tsc=reliable no_timer_check "
    "random.trust_cpu=on cryptomgr.notests ipv6.disable=1 audit=0 selinux=0 apparmor=0 "
    "rcupdate.rcu_expedited=1 nmi_watchdog=0 nowatchdog numa_balancing=disable cpu_init_udelay=0 "
    "initcall_blacklist=load_system_certificate_list,init_encrypted,jent_mod_init,"
    "bpf_tcp_ca_kfunc_init,bpf_dummy_struct_ops_init,crypto_kdf108_init,integrity_iintcache_init"
)

LIBC = ctypes.CDLL(None)


def has_proxy(qemu):
    """Whether x-pci-proxy-dev is usable: proved with QEMU 7.2; 10.0 crashes on it under TCG."""

    def says(*args):
        return subprocess.run(
            [qemu] + list(args), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    m = re.search(r"version (\d+)", says("--version").stdout)
    return bool(m) and int(m[1]) < 10 and says("-device", "x-pci-proxy-dev,help").returncode == 0


def run(opts):
    kernels = find_kernels()
    if opts.kernel:
        kernels = [
            k for k in kernels if re.search(r"kernel-%s(?!\d)" % re.escape(opts.kernel), k[1])
        ]
    if not kernels:
        raise Error("no kernel in %s: run numavm --setup" % CACHE)
    _, kernel_dir, vmlinuz = kernels[-1]
    for tool in (opts.qemu, opts.busybox):
        if not shutil.which(tool):
            raise Error("%s is missing (apt-get install qemu-system-x86 busybox-static)" % tool)
    with open(opts.topology) as f:
        topo = json.load(f)

    argv = list(opts.command)
    if argv[0] in ("python3", "python"):
        argv[0] = sys.executable  # not a pyenv shim: those cost seconds under TCG
    env = {
        "PATH": os.path.dirname(sys.executable) + ":" + os.defpath + ":/usr/sbin:/sbin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMAVM": "1",
        "NUMAVM_TOPOLOGY": json.dumps(topo, separators=(",", ":")),
    }
    env.update(e.split("=", 1) if "=" in e else (e, os.environ.get(e, "")) for e in opts.env)
    shares = []
    for spec, rw in [(s, False) for s in opts.share] + [(s, True) for s in opts.share_rw]:
        host, _, guest = spec.partition(":")
        host = os.path.realpath(host)
        if not os.path.isdir(host):
            raise Error("not a directory: " + host)
        shares.append((host, guest or host, rw))
    cwd = opts.cwd or os.getcwd()
    script = "".join("export %s=%s\n" % (k, shlex.quote(v)) for k, v in env.items())
    script += "cd %s 2>/dev/null || cd /tmp\nexec %s" % (
        shlex.quote(cwd),
        " ".join(map(shlex.quote, argv)),
    )

    proxy_ok = not opts.fake_ids and has_proxy(opts.qemu)
    pass_fds, token = [], "numavm-" + secrets.token_hex(8)
    topo_args, functions, table, fake_ids = topology_args(topo, pass_fds, proxy_ok)
    for fn in functions:
        fn.start()

    machine = "q35,sata=off,smbus=off,vmport=off"
    if topo.get("hmat"):
        machine += ",hmat=on"
    cmd = [
        opts.qemu,
        "-machine",
        machine,
        "-accel",
        "tcg,thread=" + opts.tcg_thread,
        "-cpu",
        topo.get("cpu", DEFAULT_CPU),
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
    ] + topo_args
    cmd += [
        "-fsdev",
        "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
        "-device",
        "virtio-9p-pci,bus=pcie.0,fsdev=root,mount_tag=root",
    ]
    for i, (host, _, rw) in enumerate(shares):
        cmd += [
            "-fsdev",
            "local,id=share%d,path=%s,security_model=none,multidevs=remap%s"
            % (i, host.replace(",", ",,"), "" if rw else ",readonly=on"),
            "-device",
            "virtio-9p-pci,bus=pcie.0,fsdev=share%d,mount_tag=share%d" % (i, i),
        ]
    channels = {}
    cmd += ["-device", "virtio-serial-pci,bus=pcie.0"]
    for name in ("ctl", "out", "err"):
        ours, theirs = socket.socketpair()
        channels[name] = ours
        pass_fds.append(theirs.fileno())
        cmd += [
            "-chardev",
            "socket,id=%s,fd=%d" % (name, theirs.fileno()),
            "-device",
            "virtserialport,chardev=%s,name=numavm.%s" % (name, name),
        ]
        channels[name + ".peer"] = theirs

    with tempfile.TemporaryDirectory(prefix="numavm-") as tmp:
        console, initrd = os.path.join(tmp, "console.log"), os.path.join(tmp, "initrd")
        job = {
            "shares": shares,
            "script": script,
            "token": token,
            "fake_ids": fake_ids,
            "madt": table,
        }
        with open(os.path.join(kernel_dir, "modules", "order")) as f:
            job["modules"] = f.read().split()
        build_initrd(initrd, kernel_dir, shutil.which(opts.busybox), job)
        # Port services cost 0.1 s a port; only the slot numbers that fake ids go by need them.
        append = " ".join(
            [KERNEL_ARGS]
            + ["pcie_ports=compat"] * (not fake_ids)
            + [topo.get("kernel_args", "")]
            + opts.kernel_arg
        ).strip()
        cmd += [
            "-serial",
            "file:" + console,
            "-kernel",
            vmlinux_of(vmlinuz),
            "-initrd",
            initrd,
            "-append",
            append,
        ] + opts.qemu_arg
        if opts.dry_run:
            print(shlex.join(cmd))
            return 0
        return drive(cmd, pass_fds, channels, token, console, opts)


def drive(cmd, pass_fds, channels, token, console, opts):
    start = time.monotonic()
    vm = subprocess.Popen(
        cmd,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: LIBC.prctl(1, 9),
    )  # QEMU dies with us
    sel = selectors.DefaultSelector()
    for name in ("ctl", "out", "err"):
        channels[name + ".peer"].close()
        sel.register(channels[name], selectors.EVENT_READ, name)
    sel.register(vm.stderr, selectors.EVENT_READ, "qemu")
    sinks = {"out": sys.stdout.buffer, "err": sys.stderr.buffer}
    tail = {"out": b"", "err": b""}
    done = {"out": False, "err": False}
    ctl, qemu_says, rc, up, times = b"", b"", None, None, {}
    mark = token.encode()
    deadline = start + opts.timeout
    try:
        while rc is None or not all(done.values()):
            left = deadline - time.monotonic()
            if left <= 0:
                rc = EXIT_TIMEOUT
                print("numavm: timed out after %g s" % opts.timeout, file=sys.stderr)
                break
            events = sel.select(min(left, 1.0))
            for key, _ in events:
                data = os.read(key.fd, 65536)
                if not data:
                    sel.unregister(key.fileobj)
                    continue
                if key.data == "qemu":
                    qemu_says += data
                elif key.data == "ctl":
                    ctl += data
                    m = re.search(rb"^up ([0-9.]+)$", ctl, re.M)
                    if m and up is None:
                        up, times["boot"] = float(m[1]), time.monotonic() - start
                    m = re.search(rb"^exit (\d+)$", ctl, re.M)
                    if m:
                        rc, times["done"] = int(m[1]), time.monotonic() - start
                else:
                    # Hold back what may be the beginning of the end mark.
                    buf = tail[key.data] + data
                    if buf.endswith(mark):
                        done[key.data], keep = True, 0
                        buf = buf[: -len(mark)]
                    else:
                        keep = next(
                            (
                                n
                                for n in range(min(len(mark), len(buf)), 0, -1)
                                if buf.endswith(mark[:n])
                            ),
                            0,
                        )
                    tail[key.data] = buf[len(buf) - keep :]
                    sinks[key.data].write(buf[: len(buf) - keep])
                    sinks[key.data].flush()
            if not events and vm.poll() is not None:
                break
    finally:
        if vm.poll() is None:
            vm.kill()
        qemu_says += vm.stderr.read() or b""
        vm.wait()
    qemu_says = b"\n".join(
        x
        for x in qemu_says.splitlines()
        if b"warning: TCG doesn't" not in x and b"Number of fds is more than" not in x
    )
    if rc is None:
        rc = EXIT_VM
        print(
            "numavm: the VM stopped without a result (QEMU exit %s)" % vm.returncode,
            file=sys.stderr,
        )
    if qemu_says:
        sys.stderr.write("numavm: qemu: " + qemu_says.decode("utf-8", "replace") + "\n")
    if rc in (EXIT_VM, EXIT_TIMEOUT) or opts.verbose:
        with open(console, errors="replace") as f:
            sys.stderr.write("".join("console: " + x for x in f.readlines()[-opts.console_lines :]))
            sys.stderr.write("\n")
    if opts.timings:
        print(
            "numavm: boot-to-command %.2f s, boot-to-done %.2f s (guest clock at command %s s)"
            % (times.get("boot", 0), times.get("done", 0), up),
            file=sys.stderr,
        )
    return rc
