#!/bin/sh
# Installs what the tests need beyond Python: a C compiler for the NVML stub, QEMU and a kernel for
# the virtual machines, hwloc as a second opinion, the launchers that are not Python's, shells for
# completion, a reader of manual pages, and a browser for the report's page.
# usage: setup.sh PYTHON
set -eu
python=$1
PATH=$PATH:/usr/sbin:/sbin
missing=
for pair in cc:gcc qemu-system-x86_64:qemu-system-x86 busybox:busybox-static zstd:zstd \
    lstopo-no-graphics:hwloc numactl:numactl tmux:tmux taskset:util-linux zsh:zsh fish:fish mandoc:mandoc \
    slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge \
    strace:strace mpirun.openmpi:openmpi-bin mpirun.mpich:mpich \
    chromium:chromium chromedriver:chromium-driver; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] || case "$missing" in *gcc*) missing="$missing libc6-dev" ;; esac
if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
        echo "The tests need these Debian packages; install them as root:$missing" >&2
        exit 1
    fi
    apt-get update -qq
    # Ubuntu has Chromium as a snap only, which no container runs.
    case "$missing" in
    *chromium*)
        if ! apt-cache policy chromium | grep -q 'Candidate: [0-9]'; then
            echo "No chromium package here: the tests of the page in a browser are skipped." >&2
            missing=$(echo "$missing" | sed -e 's/ chromium-driver//' -e 's/ chromium//')
        fi
        ;;
    esac
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing \
            >/dev/null
    fi
fi
exec "$python" "$(dirname "$0")/vm/numavm" --setup
