"""The hardware and software of a run, on which bit-equality depends."""

import os
import re

import numpy
import sacrebleu
import sentencepiece
import torch

from transformer_mt.config.changes import changed_keys
from transformer_mt.config.keys import Config, flat_values
from transformer_mt.config.section import OnChange
from transformer_mt.system.device import cpu_maker
from transformer_mt.system.private_torch import cpu_bf16_instructions
from transformer_mt.training.fit import StepFitter
from transformer_mt.version import SOURCE_PACKAGES, __version__, source_digest

CUT_BY = frozenset(("train.micro_batch_tokens", "device", "threads", "processes", "torch.compile"))
"""What decides the micro-batches of a step; if one of them has changed, their bound is not kept."""
_RECORDED = frozenset(("train.device", "train.compile"))
"""Keys whose effect is recorded: other values, such as "auto" and "cpu", may mean the same."""
# NumPy's random numbers order the pairs; by sacreBLEU's scores the best checkpoint is chosen.
_LIBRARIES = torch, numpy, sentencepiece, sacrebleu
# Read while the code itself is being imported.
_SOURCES = {f"source of {name}/": source_digest(name) for name in SOURCE_PACKAGES}
# By these, libraries choose among kernels that round differently. What PyTorch itself has chosen,
# by ATEN_CPU_CAPABILITY, is in the CPU features.
_VARIABLES = re.compile(
    "(MKL|ONEDNN|DNNL|OPENBLAS|NPY|CUBLAS|CUBLASLT|CUDNN|NVIDIA|TORCH)_.*"
    "(CBWR|DYNAMIC|CPU|INSTRUCTIONS|CORETYPE|FPMATH|TF32|WORKSPACE|CUBLASLT).*"
    "|GLIBC_TUNABLES|TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE"
)


def numeric_environment(fitter: StepFitter) -> dict[str, str]:
    """Lists everything outside the configuration that the bits of a result depend on.

    Two runs of one configuration are bit-equal if these are equal and their steps are cut alike.
    """
    engine, device = fitter.engine, fitter.engine.device
    # To the libraries, an empty variable is not set.
    variables = [f"{k}={v}" for k, v in sorted(os.environ.items()) if v and _VARIABLES.fullmatch(k)]
    instructions = [torch.backends.cpu.get_cpu_capability(), *cpu_bf16_instructions()]
    environment = {
        **numeric_software(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "CPU features": ", ".join(instructions),
        "CPU maker": cpu_maker(),
        "environment variables": ", ".join(variables) or "none",
        "processes": str(engine.processes.world_size),
        "precision": engine.precision,
        "torch.compile": "on" if fitter.packs else "off",
    }
    if device.type == "cpu":
        environment["threads"] = str(torch.get_num_threads())
    return environment


def numeric_software() -> dict[str, str]:
    """Lists the software that the bits of a result depend on."""
    return {
        "program version": __version__,
        **{f"{library.__name__} version": library.__version__ for library in _LIBRARIES},
        **_SOURCES,
    }


def numeric_changes(
    before: Config, recorded: dict[str, str], config: Config, environment: dict[str, str]
) -> dict[str, str]:
    """Says, by name, what makes training with these not bit-equal to training as before."""
    old, new = flat_values(before) | recorded, flat_values(config) | environment
    changed = changed_keys(before, config, *set(OnChange) - {OnChange.ALLOWED})
    names = [key for key in changed if key not in _RECORDED]
    names += [name for name in environment if name in recorded and old[name] != new[name]]
    reasons = {name: f"{name} (was {old[name]}, is {new[name]})" for name in names}
    reasons |= {name: f"the {name} has changed" for name in names if name in _SOURCES}
    return reasons
