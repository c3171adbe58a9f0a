# SPDX-License-Identifier: MIT
"""numavm: run one command inside a throw-away Linux VM that has a NUMA topology (QEMU, no KVM)."""
