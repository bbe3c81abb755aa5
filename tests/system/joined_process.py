"""One of two joined processes: `joined_process.py SCENARIO`; prints `finished` if nothing ends it.

Scenarios: `killed`, the second is killed; `stopped`, the second no longer answers, and is given two
seconds once both have joined.
"""

import os
import signal
import sys
from datetime import timedelta

import torch.distributed as dist

from transformer_mt.errors import LostProcessError
from transformer_mt.system import processes
from transformer_mt.system.launcher import exit_with_error


def main() -> None:
    scenario, is_second = sys.argv[1], os.environ["RANK"] == "1"
    join = dist.init_process_group

    def join_and_hurry(*arguments, **options) -> None:
        join(*arguments, **options)
        processes.TIMEOUT = timedelta(seconds=2)

    if scenario == "stopped":
        dist.init_process_group = join_and_hurry
    with processes.join_processes("cpu") as joined:
        assert joined.gather(joined.rank) == [0, 1]
        assert joined.max(2**25 + 1, -joined.rank) == [2**25 + 1, 0]  # not their sum
        if is_second:
            os.kill(os.getpid(), signal.SIGSTOP if scenario == "stopped" else signal.SIGKILL)
        joined.finish()
    print("finished")


try:
    main()
except LostProcessError as error:
    exit_with_error(f"error: {error}")
