"""Train, run and score the Transformer of "Attention Is All You Need" on German-English."""

import os

__version__ = "0.1.0"

# oneDNN, and PyTorch's bridge to it, keep a compiled kernel with its buffers for each shape they
# have met, a thousand of them: with sentences of all lengths, memory climbs for hours. The few
# shapes of one step are all that is used again. Read when PyTorch is loaded.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
