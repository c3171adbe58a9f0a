# SPDX-License-Identifier: MIT
"""The guest's kernel: a Debian package, unpacked into a cache and never installed."""

from __future__ import annotations

import glob
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile

CACHE = os.environ.get("NUMAVM_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numavm"
)
# Everything else that the guest needs is built into Debian's kernel.
MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p")


class Error(Exception):
    """What a person can mend: the text says how."""


def find_kernels():
    found = []
    for d in glob.glob(os.path.join(CACHE, "kernel-*")):
        images = glob.glob(os.path.join(d, "boot", "vmlinuz-*"))
        if images:
            found.append((version_key(os.path.basename(d)), d, images[0]))
    return sorted(found)


def version_key(text):
    return [int(x) if x.isdigit() else 0 for x in re.split(r"[^0-9]+", text) if x]


def setup(package=None):
    """Download a kernel .deb and unpack it into the cache; installs nothing on the host.

    Without a package named, a kernel that is already there is enough. One that is there is never
    replaced, because a guest may be starting from it.
    """
    if package is None and find_kernels():
        print("kernel in %s" % find_kernels()[-1][1])
        return
    os.makedirs(CACHE, exist_ok=True)
    if not package:
        names = subprocess.run(
            ["apt-cache", "search", "--names-only", r"^linux-image-[0-9][0-9.+a-z-]*-amd64$"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split("\n")
        names = [n.split()[0] for n in names if n.strip()]
        names = [n for n in names if not re.search(r"-(cloud|rt)-|-dbg|unsigned", n)]
        if not names:
            raise Error("no linux-image package known to apt: run apt-get update first")
        package = max(names, key=version_key)
    target = os.path.join(CACHE, "kernel-" + package.replace("linux-image-", ""))
    if os.path.isdir(target):
        print("kernel in %s" % target)
        return
    with tempfile.TemporaryDirectory(dir=CACHE) as tmp:
        subprocess.run(
            ["apt-get", "download", package],
            cwd=tmp,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        (deb,) = glob.glob(os.path.join(tmp, "*.deb"))
        subprocess.run(["dpkg-deb", "-x", deb, os.path.join(tmp, "x")], check=True)
        ready = os.path.join(tmp, "ready")
        os.makedirs(os.path.join(ready, "modules"))
        shutil.move(os.path.join(tmp, "x", "boot"), os.path.join(ready, "boot"))
        order = []
        for name in MODULES:
            unpack_module(os.path.join(tmp, "x"), name, os.path.join(ready, "modules"), order)
        with open(os.path.join(ready, "modules", "order"), "w") as f:
            f.write("\n".join(order))
        try:
            os.rename(ready, target)  # whole or not at all
        except OSError:
            if not os.path.isdir(target):  # else another setup was quicker
                raise
    print("kernel %s in %s" % (package, target))


def unpack_module(tree, name, target, order):
    """Put a module, after the ones it depends on, into target; order grows in load order."""
    if name in order:
        return
    paths = glob.glob(os.path.join(tree, "**", name + ".ko*"), recursive=True)
    if not paths:
        return  # built in
    with (lzma.open if paths[0].endswith(".xz") else open)(paths[0], "rb") as f:
        blob = f.read()
    m = re.search(rb"\0depends=([^\0]*)\0", blob)
    for dep in m[1].decode().split(",") if m and m[1] else []:
        unpack_module(tree, dep, target, order)
    with open(os.path.join(target, name + ".ko"), "wb") as f:
        f.write(strip_signature(blob))
    order.append(name)


def strip_signature(blob):
    """Drop the appended module signature: checking RSA under TCG costs 0.1 s a module."""
    magic = b"~Module signature appended~\n"
    if not blob.endswith(magic):
        return blob
    end = len(blob) - len(magic)
    (sig_len,) = struct.unpack(">I", blob[end - 4 : end])
    return blob[: end - 12 - sig_len]


def vmlinux_of(vmlinuz):
    """Unpack the ELF image once, so TCG need not run the decompressor at every boot."""
    out = os.path.join(os.path.dirname(vmlinuz), "vmlinux")
    if os.path.exists(out):
        return out
    with open(vmlinuz, "rb") as f:
        image = f.read()
    start = (image[0x1F1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    payload = image[start : start + struct.unpack_from("<I", image, 0x24C)[0]]
    for magic, tool in (
        (b"\x28\xb5\x2f\xfd", ["zstd", "-dc"]),
        (b"\xfd7zXZ\0", ["xz", "-dc"]),
        (b"\x1f\x8b", ["gzip", "-dc"]),
    ):
        # The last 4 bytes are the unpacked size, not part of the stream (except gzip's own).
        if payload.startswith(magic) and shutil.which(tool[0]):
            data = payload if tool[0] == "gzip" else payload[:-4]
            elf = subprocess.run(tool, input=data, stdout=subprocess.PIPE).stdout
            if elf.startswith(b"\x7fELF"):
                # A file of its own: two guests may start at once.
                with tempfile.NamedTemporaryFile(dir=os.path.dirname(out), delete=False) as f:
                    f.write(elf)
                os.chmod(f.name, 0o644)
                os.replace(f.name, out)
                return out
    return vmlinuz
