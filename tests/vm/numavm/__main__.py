# SPDX-License-Identifier: MIT
"""The command. `python tests/vm/numavm --help`.

numavm --topology two-socket --share DIR -- python3 script.py args
numavm --setup        download + unpack a kernel into the cache (once)
numavm --list         list the topologies that ship with it
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys

HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, HERE)

from numavm.guest import EXIT_VM, run  # noqa: E402
from numavm.kernel import Error, setup  # noqa: E402


def main():
    p = argparse.ArgumentParser(
        prog="numavm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--topology", help="JSON file, or the name of one in topologies/")
    p.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="DIR[:GUEST]",
        help="mount a host directory read-only at the same path (needed for paths under "
        "/tmp, /run and /var/tmp; the rest of the host's / is visible anyway)",
    )
    p.add_argument(
        "--share-rw", action="append", default=[], metavar="DIR[:GUEST]", help="the same, writable"
    )
    p.add_argument("--cwd", help="working directory in the guest (default: the caller's)")
    p.add_argument("--env", action="append", default=[], metavar="K[=V]")
    p.add_argument("--timeout", type=float, default=120.0, help="seconds, default 120; exit 124")
    p.add_argument(
        "--kernel", metavar="VERSION", help="6.1, say, of the cached kernels (default: the newest)"
    )
    p.add_argument("--kernel-arg", action="append", default=[])
    p.add_argument("--qemu", default="qemu-system-x86_64")
    p.add_argument("--qemu-arg", action="append", default=[])
    p.add_argument("--tcg-thread", choices=("single", "multi"), default="single")
    p.add_argument("--busybox", default="busybox")
    p.add_argument(
        "--fake-ids",
        action="store_true",
        help="make PCI ids by bind mounts over sysfs even if QEMU has x-pci-proxy-dev",
    )
    p.add_argument("--timings", action="store_true")
    p.add_argument("--verbose", action="store_true", help="show the guest's console")
    p.add_argument("--console-lines", type=int, default=40)
    p.add_argument("--dry-run", action="store_true", help="print the QEMU command")
    p.add_argument("--setup", nargs="?", const="", metavar="PACKAGE", help="fetch a kernel")
    p.add_argument("--list", action="store_true", help="list topologies")
    p.add_argument("command", nargs="*", help="after --")
    opts = p.parse_args()
    try:
        if opts.setup is not None:
            setup(opts.setup or None)
            return 0
        if opts.list:
            for path in sorted(glob.glob(os.path.join(HERE, "topologies", "*.json"))):
                with open(path) as f:
                    print(
                        "%-22s %s"
                        % (os.path.basename(path)[:-5], json.load(f).get("description", ""))
                    )
            return 0
        if not opts.topology or not opts.command:
            p.error("--topology FILE and a command after -- are needed")
        if not os.path.exists(opts.topology):
            opts.topology = os.path.join(
                HERE, "topologies", opts.topology.removesuffix(".json") + ".json"
            )
        return run(opts)
    except (Error, OSError) as e:
        print("numavm: %s" % e, file=sys.stderr)
        return EXIT_VM


if __name__ == "__main__":
    sys.exit(main())
