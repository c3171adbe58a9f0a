"""Run as a script by test_ray.py: every case in a real Ray worker; prints one JSON object.

Each case is what the worker saw: Ray's ids, the Binding, and the kernel's mask of every thread.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable

import ray

import numabind
import numabind.ray
from numabind._cpulist import format_list
from numabind._syscalls import get_memory_policy

NODES = (0, 0, 1, 1)  # of the GPUs in pretend.py, which are called 0 or GPU-0000 and so on


def masks() -> list[str]:
    """The distinct masks of this process's threads."""
    tids = os.listdir("/proc/self/task")
    return sorted({format_list(os.sched_getaffinity(int(tid))) for tid in tids})


def seen(binding: numabind.Binding) -> dict[str, object]:
    return {
        "ids": sorted(ray.get_runtime_context().get_accelerator_ids()["GPU"]),
        "variable": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "pid": os.getpid(),
        "masks": masks(),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        **binding.as_dict(),
    }


def work(**options: object) -> dict[str, object]:
    return seen(numabind.bind(**options))


class Actor:
    def work(self, **options: object) -> dict[str, object]:
        return work(**options)


@numabind.ray.bound
class Bound:
    def __init__(self, word: str = "") -> None:
        self.word, self.at_birth = word, masks()

    def look(self) -> dict[str, object]:
        return {"at_birth": self.at_birth, "word": self.word, **seen(numabind.bind())}


@numabind.ray.bound(mode="exclusive", memory="none")
class Bare:
    def look(self) -> list[str]:
        return masks()


class Threaded(Bound):
    async def look(self) -> dict[str, object]:
        return super().look()


class Policy:
    """Which memory policy the methods of an actor have that bound itself in its `__init__`."""

    def __init__(self) -> None:
        numabind.bind(memory="local")

    def look(self) -> tuple[str, list[str]]:
        return get_memory_policy()[0], masks()


class AsyncPolicy(Policy):
    async def look(self) -> tuple[str, list[str]]:
        return super().look()


@numabind.ray.bound
def task(_: int = 0) -> list[str]:
    return masks()


def one_each(actors: list[object]) -> list[dict[str, object]]:
    found = ray.get([actor.look.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)
    return found


def with_kept(count: int, call: object) -> object:
    """The answer of `call` while `count` GPUs are taken, so that it gets later ones."""
    keepers = [ray.remote(Actor).options(num_gpus=1, num_cpus=0).remote() for _ in range(count)]
    ray.get([keeper.work.remote(memory="none") for keeper in keepers])
    answer = ray.get(call())
    for keeper in keepers:
        ray.kill(keeper)
    return answer


def reused() -> list[dict[str, object]]:
    """A task that binds and leaves it so, then the same process with another GPU."""
    again = ray.remote(num_gpus=1, num_cpus=0, max_calls=0)(work)
    first = with_kept(2, again.remote)
    for _ in range(40):
        second = ray.get(again.remote())
        if second["pid"] == first["pid"] and second["ids"] != first["ids"]:
            return [first, second]
    raise SystemExit("Ray never reused a worker for another GPU")


def actor(env: dict[str, str] | None = None, **resources: object) -> object:
    """A fresh process: an actor with an environment of its own."""
    extra = {"runtime_env": {"env_vars": env}} if env else {}
    return ray.remote(Actor).options(num_cpus=0, **resources, **extra).remote()


def ask(made: object, **options: object) -> dict[str, object]:
    found = ray.get(made.work.remote(**options))
    ray.kill(made)
    return found


def in_group() -> dict[str, object]:
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"GPU": 1}] * 4)
    ray.get(group.ready())
    where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=2)
    found = ask(actor(num_gpus=0.5, scheduling_strategy=where))
    remove_placement_group(group)
    return found


def bound(target: type = Bound, **resources: object) -> object:
    return ray.remote(target).options(num_cpus=0, **{"num_gpus": 1, **resources})


def on_last(function: object) -> object:
    """A task of this function on GPU 3."""
    return with_kept(3, ray.remote(num_gpus=1, num_cpus=0)(function).remote)


def two_gpus(**options: object) -> object:
    return actor(num_gpus=2).work.remote(**options)


def until(nodes: int, call: Callable[[], dict[str, object]]) -> dict[str, object]:
    """The answer of `call` once Ray, which deals GPUs as it likes, took them from so many nodes."""
    for _ in range(20):
        found = call()
        if (
            len({NODES[int(name) if name.isdigit() else int(name[4])] for name in found["ids"]})
            == nodes
        ):
            return found
        settle()
    raise SystemExit(f"Ray never dealt GPUs of {nodes} nodes")


def settle() -> None:
    """Wait for the GPUs of actors that were killed."""
    for _ in range(100):
        time.sleep(0.2)
        if ray.available_resources().get("GPU") == 4:
            return


def strict() -> list[str]:
    try:
        until(1, lambda: with_kept(1, lambda: two_gpus(strict=True)))
    except ray.exceptions.RayTaskError as error:
        return [said.name for said in error.cause.problems]
    return []


CASES = {
    "task": lambda: on_last(work),
    "classes": lambda: one_each([bound().remote(str(n)) for n in range(4)]),
    "halves": lambda: one_each([bound(num_gpus=0.5).remote() for _ in range(2)]),
    "exclusive": lambda: one_each([bound(Bare).remote()])[0],
    "async": lambda: one_each([bound(Threaded).remote("derived")])[0],
    "policies": lambda: one_each(
        [
            bound(Policy).remote(),
            bound(Policy, max_concurrency=3).remote(),
            bound(AsyncPolicy).remote(),
        ]
    ),
    "bound task": lambda: on_last(task),
    "group": in_group,
    "two near": lambda: until(1, lambda: ray.get(two_gpus())),
    "two apart": lambda: until(2, lambda: with_kept(1, two_gpus)),
    "two apart, strict": strict,
    "one of two": lambda: ask(actor(num_gpus=2), local_rank=1),
    "reused": reused,
    "gpu named": lambda: ask(actor(num_gpus=1), gpu="0000:ba:00.0"),
    "rank in the environment": lambda: ask(actor({"LOCAL_RANK": "3"}, num_gpus=1)),
    "off": lambda: ask(actor({"NUMABIND": "0"}, num_gpus=1)),
    "no GPU": lambda: ask(actor()),
    "outside": lambda: {"task": task(), "bound": numabind.bind(gpu="0").as_dict()},
}


if __name__ == "__main__":
    faulthandler.dump_traceback_later(300, exit=True)
    ray.init(
        num_gpus=4,
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
    )
    found = {}
    for name in sys.argv[1:] or CASES:
        found[name] = CASES[name]()
        settle()
    json.dump(found, sys.stdout)
