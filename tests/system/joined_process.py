"""One of two joined processes: `joined_process.py SCENARIO`; prints `finished` if nothing ends it.

Scenarios: `late`, the second is killed when the first has finished; `stopped`, the second no longer
answers, nor does the store, and a peer is given two seconds; `gpu`, the GPU of the second hangs,
and is given two seconds, while both wait for something else.
"""

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist

from transformer_mt.system import launcher, processes
from transformer_mt.system.processes import join_processes

SECONDS = timedelta(seconds=2)


def simulate_gpus(hangs: bool) -> None:
    """Makes two GPUs of none, and NCCL of gloo; the work of one that hangs is never done."""
    init_process_group = dist.init_process_group

    def init(backend: str, method: None, limit: timedelta, *arguments, device_id) -> None:
        assert (backend, limit) == ("nccl", timedelta(minutes=10))
        assert device_id.index == int(os.environ["LOCAL_RANK"])
        init_process_group("gloo", method, limit, *arguments)

    dist.init_process_group = init
    torch.cuda.device_count = lambda: 2
    torch.cuda.set_device = lambda device: None
    torch.cuda.default_stream = lambda device: device
    torch.cuda.Event = lambda: SimpleNamespace(record=lambda s: None, query=lambda: not hangs)


def main() -> None:
    scenario, is_second = sys.argv[1], os.environ["RANK"] == "1"
    if scenario == "stopped":
        processes.PEER_TIMEOUT = SECONDS
        silent_store = SimpleNamespace(add=lambda *arguments: time.sleep(60))
        record_ends = launcher.record_ends
        launcher.record_ends = lambda store: record_ends(silent_store)
    if scenario == "gpu":
        processes.GPU_TIMEOUT = SECONDS
        simulate_gpus(hangs=is_second)
    with join_processes("cuda" if scenario == "gpu" else "cpu") as joined:
        joined.watch_peers()
        assert joined.gather(joined.rank) == [0, 1]
        assert joined.max(2**25 + 1, -joined.rank) == [2**25 + 1, 0]  # not their sum
        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
        assert all(each.finished.is_set() for each in timers)
        if scenario == "gpu":
            time.sleep(60)
        if is_second:
            time.sleep(2)  # the first has finished by then
            os.kill(os.getpid(), signal.SIGSTOP if scenario == "stopped" else signal.SIGKILL)
        joined.finish()
    print("finished")


main()
