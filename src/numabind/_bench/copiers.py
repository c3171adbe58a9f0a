"""GPU libraries behind one small interface: torch if it has a GPU, else NVIDIA's cuda-bindings.

Each class is the calls and nothing else; what is done with them is in copies.py. Both libraries are
imported only here, and only when asked.
"""

from __future__ import annotations

from numabind._bench.copies import CopyError, Host
from numabind._problems import Problem, problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from numabind._bench.arena import Arena
    from numabind._bench.copies import Copier


def find_copier() -> Copier | Problem:
    """A library that can copy to the GPUs that this process sees; else why there is none.

    This initialises CUDA (or ROCm's HIP, through torch) in this process.
    """
    reasons = []
    for make in (_torch, _cuda_bindings):
        made = make()
        if not isinstance(made, str):
            return made
        reasons.append(made)
    return problem("no-copier", "; ".join(reasons))


def _torch() -> Copier | str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return TorchCopier(torch)


def _cuda_bindings() -> Copier | str:
    try:
        from cuda.bindings import runtime
    except ImportError:
        return "cuda-bindings is not installed (pip install 'numabind[cuda]')"
    try:
        return CudaCopier(runtime)
    except (CopyError, RuntimeError) as error:
        return f"cuda-bindings: {error}"


class TorchCopier:
    """PyTorch, for CUDA and ROCm."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.name = f"torch {torch.__version__}"
        self.gpus = tuple(self._address(i) for i in range(torch.cuda.device_count()))
        self._memory: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        self._hosts: dict[Arena, Any] = {}

    def _address(self, gpu: int) -> str:
        found = self.torch.cuda.get_device_properties(gpu)
        return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"

    def open(self, gpu: int, size: int) -> None:
        try:
            device = f"cuda:{gpu}"
            self._memory[gpu] = self.torch.empty(size, dtype=self.torch.uint8, device=device)
            self._streams[gpu] = self.torch.cuda.Stream(device)
        except RuntimeError as error:
            raise CopyError(str(error).partition("\n")[0]) from error

    def pin(self, arena: Arena) -> None:
        self._checked(self.torch.cuda.cudart().cudaHostRegister(arena.address, arena.size, 0))

    def unpin(self, arena: Arena) -> None:
        self._checked(self.torch.cuda.cudart().cudaHostUnregister(arena.address))

    def _checked(self, code: Any) -> None:
        if int(code) != 0:
            raise CopyError(f"CUDA error {int(code)}")

    def start(self, gpu: int, host: Host, to_device: bool) -> None:
        try:
            if host.arena not in self._hosts:
                whole = self.torch.frombuffer(host.arena.map, dtype=self.torch.uint8)
                self._hosts[host.arena] = whole
            there = self._memory[gpu]
            here = self._hosts[host.arena][host.start : host.start + host.size]
            with self.torch.cuda.stream(self._streams[gpu]):
                target, source = (there, here) if to_device else (here, there)
                target.copy_(source, non_blocking=True)
        except RuntimeError as error:
            raise CopyError(str(error).partition("\n")[0]) from error

    def wait(self, gpu: int) -> None:
        try:
            self._streams[gpu].synchronize()
        except RuntimeError as error:
            raise CopyError(str(error).partition("\n")[0]) from error


class CudaCopier:
    """NVIDIA's own binding of the CUDA runtime."""

    def __init__(self, runtime: Any) -> None:
        from importlib.metadata import version

        self.runtime = runtime
        self.name = f"cuda-bindings {version('cuda-bindings')}"
        count = self._call("cudaGetDeviceCount")
        self.gpus = tuple(
            self._call("cudaDeviceGetPCIBusId", 32, i).split(b"\0")[0].decode().lower()
            for i in range(count)
        )
        self._memory: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the runtime; each of its functions returns (error, values …)."""
        error, *values = getattr(self.runtime, name)(*arguments)
        if int(error) != 0:
            raise CopyError(f"{name}: {getattr(error, 'name', error)}")
        return values[0] if values else None

    def open(self, gpu: int, size: int) -> None:
        self._call("cudaSetDevice", gpu)
        self._memory[gpu] = self._call("cudaMalloc", size)
        self._streams[gpu] = self._call("cudaStreamCreate")

    def pin(self, arena: Arena) -> None:
        self._call("cudaHostRegister", arena.address, arena.size, 0)

    def unpin(self, arena: Arena) -> None:
        self._call("cudaHostUnregister", arena.address)

    def start(self, gpu: int, host: Host, to_device: bool) -> None:
        self._call("cudaSetDevice", gpu)
        here, there = host.arena.address + host.start, self._memory[gpu]
        kinds = self.runtime.cudaMemcpyKind
        target, source = (there, here) if to_device else (here, there)
        kind = kinds.cudaMemcpyHostToDevice if to_device else kinds.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", target, source, host.size, kind, self._streams[gpu])

    def wait(self, gpu: int) -> None:
        self._call("cudaStreamSynchronize", self._streams[gpu])
