# syntax=docker/dockerfile:1
# The production image: vLLM on CUDA 13, as requirements.txt pins it, under an unprivileged user.
#
#   docker build -t tailrace .
#   docker run --gpus all --ipc=host -p 8000:8000 -v tailrace-cache:/cache tailrace Qwen/Qwen3-0.6B

FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS build
# hadolint ignore=DL3008  # the base image's release fixes what can be had
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
COPY requirements.txt /requirements.txt
# Every package is pinned with all that it needs, so nothing is left to resolve.
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps -r /requirements.txt

FROM nvidia/cuda:13.0.2-base-ubuntu24.04
# Triton compiles its kernels' launchers while the engine starts: gcc and Python's headers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-dev gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home tailrace \
    && mkdir /cache && chown tailrace /cache
COPY --from=build /opt/venv /opt/venv
WORKDIR /app
COPY app.py settings.py ./
COPY engine engine
COPY routes routes
COPY metrics metrics
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface
USER 10001
EXPOSE 8000
# Alive from the first second; ready only when the model is loaded, which is not for Docker to restart over.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["python3", "app.py"]
