"""Settings of the whole process. Only the program makes them, never the library.

A notebook or another program that imports the package keeps its own settings: the command line
calls these functions, and nothing else does.
"""

import os
import signal


def limit_kernel_caches() -> None:
    """Limits oneDNN's cache of compiled kernels; has an effect only before torch is imported.

    oneDNN, and PyTorch's bridge to it, keep a compiled kernel with its buffers for each of the
    last thousand shapes: with sentences of all lengths, memory grows for hours. Only the few
    shapes of one step are used again.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")


def silence_connections() -> None:
    """Hides PyTorch's own lines about lost connections, since the program reports them itself."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


def exit_on_closed_stdout() -> None:
    """Ends the process by SIGPIPE once the reader of stdout, such as `head`, has closed it."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
