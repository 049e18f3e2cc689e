# For NVIDIA GPUs of one architecture (SM 80, 86, 89, 90, 100, 103 or 120), from the root of a checkout:
#   docker build -f deploy/docker/vllm.Dockerfile -t cog-triton-runner-vllm-90 --build-arg SM=90 .
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS environments
# Settings of pip: a mirror, or files of your own. PyTorch's and NVIDIA's pages are asked besides the index.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ARG PIP_TRUSTED_HOST
WORKDIR /build
COPY nix nix
COPY deploy/docker/environment.py .
RUN python3.11 environment.py serving /opt/serving
ARG SM=90
RUN python3.11 environment.py engine-vllm /opt/engine --sm "$SM"

# tini is the first process: it forwards signals and reaps orphaned processes. vLLM's Triton compiles launchers by gcc.
FROM ${PYTHON} AS system
ARG PACKAGES="gcc libc6-dev libstdc++6 tini zlib1g"
RUN dpkg --status $PACKAGES > /dev/null 2>&1 \
    || { apt-get update && apt-get install --yes --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; }
# A user without rights, folders that any user may write into, and no program that gives rights.
RUN echo 'cog:x:1000:1000:cog:/home/cog:/bin/sh' >> /etc/passwd && echo 'cog:x:1000:' >> /etc/group \
    && mkdir -p /home/cog/.cache /src && chmod 1777 /home/cog /home/cog/.cache /src \
    && find / -xdev -perm /6000 -exec chmod ug-s {} +
ENV PATH=/opt/serving/bin:/opt/engine/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/nvidia/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    COG_TRITON_ENGINE_PYTHON=/opt/engine/bin/python \
    TOKIO_WORKER_THREADS=1 \
    PORT=5000 \
    PYTHONPATH=/src \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/home/cog \
    USER=cog \
    LANG=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    VLLM_USE_FLASHINFER_SAMPLER=0 \
    VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1
LABEL org.opencontainers.image.licenses=Apache-2.0
WORKDIR /src
COPY --from=environments /opt/engine /opt/engine
COPY --from=environments /opt/serving /opt/serving
USER 1000:1000
ENTRYPOINT ["/bin/tini", "--"]

# The runner starts the builder for MODEL_ID, without its examples.
FROM environments AS builder-code
COPY builder /code/builder
RUN rm -r /code/builder/examples

FROM system AS runner
COPY errors errors
COPY engine engine
COPY --from=builder-code /code/builder builder
COPY triton_model_repo triton_model_repo
COPY runner runner
COPY runner/.cog .cog
# Where an engine may be mounted.
WORKDIR /src/triton_model_repo/tensorrt_llm/1
WORKDIR /src
ARG SM=90
ENV COG_PREDICT_TYPE_STUB=/src/runner/run.py:Runner COG_MAX_CONCURRENCY=64 COG_TRITON_IMAGE=cog-triton-runner-vllm-$SM
EXPOSE 5000 8000 8001 8002 9000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m CMD ["python", "-m", "runner.probe", "ready"]
CMD ["python", "-m", "runner.cog_server", "--host", "0.0.0.0"]
