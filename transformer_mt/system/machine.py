"""The resources of this machine for training: threads, memory, a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """The resources of a machine that training uses.

    Attributes:
        threads: Threads that PyTorch uses on the CPU.
        memory: Total memory in bytes: the GPU's if there is one, else the machine's.
        gpu: Name of the GPU, or None.
    """

    threads: int
    memory: int
    gpu: str | None = None

    def __str__(self) -> str:
        """Describes the resources in a few words."""
        memory = f"{self.memory / 1e9:.1f} GB of memory"
        if self.gpu:
            return f"{self.gpu} with {memory}"
        return f"{self.threads} CPU thread{'s' * (self.threads != 1)}, {memory}, no GPU"


def this_machine() -> Machine:
    """Finds the resources that `train.device = "auto"` would use."""
    import torch  # takes seconds; command-line mistakes must be reported sooner

    from transformer_mt.system.device import choose_device, total_memory

    device = choose_device("auto")
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return Machine(torch.get_num_threads(), total_memory(device), gpu)
