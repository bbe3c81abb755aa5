# docker build -t transformer-mt .
# docker run --rm --gpus all -v "$PWD:/work" transformer-mt train configs/sample.toml
# For CPUs alone, build with --build-arg PIP_EXTRA_INDEX_URL=..., the index of PyTorch's build for
# CPUs (see README.md), and run without --gpus.
FROM python:3.13-slim
ARG PIP_EXTRA_INDEX_URL=""
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
# torch.compile calls a C compiler on a GPU.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY transformer_mt transformer_mt
RUN pip install --no-cache-dir -c constraints.txt '.[ctranslate2,plots]'
WORKDIR /work
ENTRYPOINT ["transformer-mt"]
