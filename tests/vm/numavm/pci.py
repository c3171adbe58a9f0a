# SPDX-License-Identifier: MIT
"""PCI functions with the ids of real accelerators, served to QEMU's x-pci-proxy-dev."""

from __future__ import annotations

import os
import socket
import struct
import threading

# kind -> (QEMU device, (vendor, device, class)).  "proxy" kinds are PCI functions whose whole
# config space is served by this program through QEMU's x-pci-proxy-dev, so vendor, device and
# class are what the real card has.  A QEMU without it gets pci-testdev and bind mounts over the
# three files in sysfs instead.  The other kinds are what QEMU emulates, ids as given here.
KINDS = {
    "nvidia-h100": ("proxy", (0x10DE, 0x2330, 0x030200)),
    "nvidia-l40s": ("proxy", (0x10DE, 0x26B9, 0x030200)),
    "nvidia-rtx4090": ("proxy", (0x10DE, 0x2684, 0x030000)),
    "nvidia-gb200": ("proxy", (0x10DE, 0x2941, 0x030200)),
    "nvidia-nvswitch": ("proxy", (0x10DE, 0x22A3, 0x068000)),
    "nvidia-audio": ("proxy", (0x10DE, 0x22BA, 0x040300)),
    "amd-mi300x": ("proxy", (0x1002, 0x74A1, 0x120000)),
    "amd-mi250x": ("proxy", (0x1002, 0x7408, 0x038000)),
    "intel-gaudi2": ("proxy", (0x1DA3, 0x1020, 0x120000)),
    "intel-max1550": ("proxy", (0x8086, 0x0BD5, 0x038000)),
    "mlx5-nic": ("proxy", (0x15B3, 0x1021, 0x020700)),
    "bmc-vga": ("proxy", (0x1A03, 0x2000, 0x030000)),
    "bochs-display": ("bochs-display,romfile=", (0x1234, 0x1111, 0x038000)),
    "virtio-gpu": ("virtio-gpu-pci,romfile=", (0x1AF4, 0x1050, 0x038000)),
    "ati-vga": ("ati-vga,romfile=,vgamem_mb=16", (0x1002, 0x5046, 0x030000)),
    "nic": ("e1000e,romfile=", (0x8086, 0x10D3, 0x020000)),
    "nvme": ("nvme,serial=numavm", (0x1B36, 0x0010, 0x010802)),
}


class PciFunction(threading.Thread):
    """Serves one PCI function's config space over QEMU's multi-process protocol.

    Messages are: int cmd, pad, size_t size, payload.  Only config reads and writes and
    BAR accesses want an answer (cmd 1 with a u64); memory tables and irqfds are ignored.
    """

    RET, CFGWRITE, CFGREAD, BARWRITE, BARREAD, RESET = 1, 2, 3, 4, 5, 7

    def __init__(self, ids, link=(5, 16)):
        super().__init__(daemon=True)
        self.sock, self.peer = socket.socketpair()
        vendor, device, klass = ids
        cfg = self.cfg = bytearray(256)
        struct.pack_into("<HHHH", cfg, 0, vendor, device, 0, 0x10)
        struct.pack_into("<I", cfg, 8, klass << 8 | 0xA1)
        struct.pack_into("<HH", cfg, 0x2C, vendor, device)
        cfg[0x34] = 0x40
        # PCI Express endpoint capability, so that sysfs shows a link speed and width.
        speed, width = link
        struct.pack_into(
            "<BBHIHHIHH",
            cfg,
            0x40,
            0x10,
            0,
            0x0002,
            0,
            0,
            0,
            width << 4 | speed,
            0,
            width << 4 | speed,
        )
        struct.pack_into("<I", cfg, 0x40 + 0x2C, ((1 << speed) - 1) << 1)
        self.writable = set(range(0x04, 0x08)) | {0x0C, 0x0D, 0x3C}
        # BAR0: 4 KiB of memory that reads as zero.
        self.bar0 = 0

    def read(self, addr, n):
        if addr == 0x10 and n == 4:
            return self.bar0
        return int.from_bytes(self.cfg[addr : addr + n], "little")

    def write(self, addr, value, n):
        if addr == 0x10:
            self.bar0 = value & 0xFFFFF000
            return
        for i, b in enumerate((value & (1 << 8 * n) - 1).to_bytes(n, "little")):
            if addr + i in self.writable:
                self.cfg[addr + i] = b

    def recv(self, n):
        buf = b""
        while len(buf) < n:
            # recvmsg, because some messages carry descriptors that we must take and close.
            part, anc, _, _ = self.sock.recvmsg(n - len(buf), 1024)
            for level, kind, data in anc:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    for (fd,) in struct.iter_unpack("i", data):
                        os.close(fd)
            if not part:
                raise EOFError
            buf += part
        return buf

    def run(self):
        try:
            while True:
                cmd, size = struct.unpack("=i4xQ", self.recv(16))
                data = self.recv(size)
                if cmd in (self.CFGREAD, self.CFGWRITE):
                    addr, value, n = struct.unpack_from("=IIi", data)
                    if cmd == self.CFGWRITE:
                        self.write(addr, value, n)
                    self.reply(self.read(addr, n) if cmd == self.CFGREAD else 0)
                elif cmd in (self.BARWRITE, self.BARREAD, self.RESET):
                    self.reply(0)
        except (EOFError, OSError):
            pass

    def reply(self, value):
        self.sock.sendall(struct.pack("=i4xQQ", self.RET, 8, value))
