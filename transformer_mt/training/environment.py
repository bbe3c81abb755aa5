"""The hardware and software of a run: what bit-equality depends on, and what train.log records."""

import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

from transformer_mt import __version__
from transformer_mt.system.device import supports


def numeric_environment(device: torch.device) -> dict[str, str]:
    """Names everything outside the configuration that the bits of a result depend on.

    Two runs of one configuration are bit-equal if these are equal.
    """
    bf16 = "with" if supports("bf16", torch.device("cpu")) else "without"
    return {
        "program version": __version__,
        "torch version": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "CPU features": f"{torch.backends.cpu.get_cpu_capability()} {bf16} bf16",
        "threads": str(torch.get_num_threads()),
        "processes": "1",
    }


def describe_changes(old: dict[str, str], new: dict[str, str]) -> str:
    """Lists the differences of two numeric environments; nothing if there are none."""
    changed = [name for name in new if name in old and old[name] != new[name]]
    return ", ".join(f"{name} (was {old[name]}, is {new[name]})" for name in changed)


def describe_software() -> str:
    """Describes, for train.log, the software a run was made with."""
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    python = f"python {platform.python_version()}"
    return f"transformer-mt {__version__}, commit {_commit()}, {versions}, {python}"


def _commit() -> str:
    """Names the commit of the source tree, if it is in a git repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return output.stdout.strip()
