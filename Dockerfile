# Images of LiveCTR: `serve` answers requests, `train` learns and does everything else, `gpu` learns on a GPU.
#
#   make images                                        all of them that this machine needs, without Docker
#   docker build --target serve -t livectr/serve .     the same file with BuildKit
#   docker build --target gpu --build-arg TORCH=cuda -t livectr/gpu .
#
# Build arguments choose the base, torch's variant and the CPUs. Two secrets say where packages come from, so that
# no address is in here: `pip` is a pip.conf, `ca` a bundle of certificates that it may name as /run/secrets/ca.

# A Debian or Ubuntu with Python 3.11 or newer and venv.
ARG BASE=docker.io/library/python:3.12-slim-bookworm

# ── base ─────────────────────────────────────────────────────────────────────────────────────────────────────────
FROM ${BASE} AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN groupadd --gid 10001 livectr \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin livectr \
 && install -d -o livectr -g livectr /var/cache/livectr
# The root file system may be read-only: /tmp and /var/cache/livectr are where volumes go.
ENV PATH=/opt/livectr/app/bin:/opt/livectr/venv/bin:$PATH \
    HOME=/tmp \
    LIVECTR_CACHE_DIR=/var/cache/livectr \
    LIVECTR_KERNELS=/opt/livectr/kernels:/var/cache/livectr/kernels \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

# ── packages: torch and what else `serve` needs; only a change of versions makes them again ──────────────────────
FROM base AS packages
# Versions of Debian's packages are those of the base image's release.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ libnghttp2-dev libssl-dev \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_CONFIG_FILE=/run/secrets/pip PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# cpu or cuda. With cpu, an index that only has torch for CUDA will do, too: k8s/image/install_torch.py.
ARG TORCH=cpu
COPY constraints.txt k8s/image/install_torch.py ./
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python3 -m venv /opt/livectr/venv \
 && python install_torch.py "${TORCH}" --constraint constraints.txt
COPY pyproject.toml k8s/image/requirements.py ./
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python requirements.py serve > serve.txt \
 && python -m pip install --constraint constraints.txt --requirement serve.txt \
 && python -c 'import site; print(site.getsitepackages()[0])' > site.txt \
 && echo /opt/livectr/app > "$(cat site.txt)/livectr.pth"

# ── build: the code, its kernels and the bill of materials of `serve` ────────────────────────────────────────────
FROM packages AS build
COPY . .
# Levels of CPUs that run the image: x86-64-v3 is every server since 2015, x86-64-v4 has AVX-512 too.
ARG CPUS=x86-64-v3,x86-64-v4,x86-64-v4-bf16
RUN --mount=type=secret,id=pip --mount=type=secret,id=ca \
    LIVECTR_BUILD_LEVELS="${CPUS}" python -m pip install --no-deps --target /opt/livectr/app . \
 && python k8s/image/bill.py /opt/livectr/serve.cdx.json --constraint constraints.txt
# The fused plans of the example: any other pipeline starts at once, as calls into the library of the package.
RUN livectr features compile --servers --pipeline examples/display_ads/pipeline.py --cpu "${CPUS}" --to /opt/livectr/kernels

# ── serve: packages in one layer, what changes with the code in others ───────────────────────────────────────────
FROM base AS serve-packages
COPY --from=packages /opt/livectr/venv /opt/livectr/venv

FROM serve-packages AS serve-files
COPY --from=build /opt/livectr/kernels /opt/livectr/kernels
COPY --from=build /opt/livectr/app /opt/livectr/app
COPY --from=build /opt/livectr/serve.cdx.json /opt/livectr/

# Version and commit come last: they change with every commit, and what follows a layer is built again with it.
FROM serve-files AS serve
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="LiveCTR serve" \
      org.opencontainers.image.description="Rank and pre-rank servers of LiveCTR" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENTRYPOINT ["livectr"]
CMD ["--help"]

# ── train: the packages of `serve`, the others, and a compiler for pipelines that no image was built for ─────────
FROM serve-packages AS train-packages
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
ENV PIP_CONFIG_FILE=/run/secrets/pip PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /tmp
RUN --mount=type=bind,target=/src --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python /src/k8s/image/requirements.py train > train.txt \
 && python -m pip install --constraint /src/constraints.txt --requirement train.txt \
 && rm train.txt

FROM train-packages AS train-files
COPY --from=build /opt/livectr/kernels /opt/livectr/kernels
COPY --from=build /opt/livectr/app /opt/livectr/app
ARG CPUS=x86-64-v3,x86-64-v4,x86-64-v4-bf16
RUN --mount=type=bind,target=/src --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python /src/k8s/image/bill.py /opt/livectr/train.cdx.json --constraint /src/constraints.txt \
 && livectr features compile --pipeline /src/examples/display_ads/pipeline.py --cpu "${CPUS}" --to /opt/livectr/kernels

FROM train-files AS train
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="LiveCTR train" \
      org.opencontainers.image.description="Trainer, tools and simulator of LiveCTR" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENTRYPOINT ["livectr"]
CMD ["--help"]

# ── gpu: `train` with CuPy and NVRTC; needs TORCH=cuda ───────────────────────────────────────────────────────────
FROM train-files AS gpu
RUN --mount=type=bind,target=/src --mount=type=secret,id=pip --mount=type=secret,id=ca \
    python /src/k8s/image/install_torch.py --check-cuda \
 && python /src/k8s/image/requirements.py gpu > gpu.txt \
 && python -m pip install --constraint /src/constraints.txt --requirement gpu.txt \
 && python /src/k8s/image/bill.py /opt/livectr/gpu.cdx.json --constraint /src/constraints.txt \
 && rm gpu.txt
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="LiveCTR gpu" \
      org.opencontainers.image.description="Trainer of LiveCTR on NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENTRYPOINT ["livectr"]
CMD ["--help"]
