"""Registering memory with CUDA, through torch; where there is no CUDA, the reason.

Source: CUDA Runtime API, "Memory Management", cudaHostRegister. torch finds out by itself
(cudaPointerGetAttributes) that memory is registered, so `is_pinned()` is true then. ROCm's torch
has the same names.
"""

from __future__ import annotations

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


def register(address: int, size: int) -> str | None:
    """Pin a range of this process's memory; why not, if it is not pinned now."""
    import torch

    if not torch.cuda.is_available():
        return "torch sees no CUDA device here"
    try:
        code = torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE)
    except RuntimeError as error:
        # In a child that was forked after CUDA began, CUDA can't be used at all.
        return f"cudaHostRegister: {str(error).splitlines()[0]}"
    return None if int(code) == 0 else f"cudaHostRegister: CUDA error {int(code)}"


def unregister(address: int) -> None:
    """Undo `register`, before the memory is unmapped."""
    import torch

    torch.cuda.cudart().cudaHostUnregister(address)


def settle() -> None:
    """Wait until the current device has finished all that it was asked for."""
    import torch

    torch.cuda.synchronize()
