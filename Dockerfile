# jev as a container: one server, one model, port 8000. See docs/serving.md.
#
#   docker build -t jev .                              for CPUs
#   docker build -t jev:cuda --build-arg TORCH=cu130 .  for NVIDIA GPUs (run with --gpus and JEV_DEVICE=cuda)

ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
# Which builds of torch: cpu, or a CUDA version that its index has for the pinned release.
ARG TORCH=cpu
ARG EXTRAS=server,ocr,otel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# For the CPU kernels; what they need at run time is in the other image.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/jev
WORKDIR /src
# What changes seldom first, so that a change of the code does not download torch again.
COPY constraints.txt ./
RUN /opt/jev/bin/pip install -c constraints.txt --extra-index-url "https://download.pytorch.org/whl/${TORCH}" \
    "torch==$(sed -n 's/^torch==//p' constraints.txt)+${TORCH}"
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY schemas schemas
COPY extractors extractors
COPY model model
COPY jev jev
RUN /opt/jev/bin/pip install -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON}-slim-bookworm
# OpenCV, which OCR uses, wants these two even without a display.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /var/lib/jev --create-home jev
COPY --from=build /opt/jev /opt/jev
# Nothing but /tmp (and /var/lib/jev, where uploads or batches are to stay) is written: the rest may be read-only.
ENV PATH=/opt/jev/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    JEV_HOST=0.0.0.0
USER 10001
WORKDIR /var/lib/jev
EXPOSE 8000
# Healthy is who serves: /ready is 503 while the model is loading.
HEALTHCHECK --interval=10s --timeout=5s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["jev"]
CMD ["serve"]
