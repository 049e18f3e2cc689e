# For machines without a GPU, from the root of a checkout:
#   docker build -f deploy/docker/cpu.Dockerfile -t cog-triton-runner-cpu .
#   docker build -f deploy/docker/cpu.Dockerfile -t cog-triton-builder-cpu --target builder .
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
RUN python3.11 environment.py engine-transformers-cpu /opt/engine

# tini is the first process: it forwards signals and reaps orphaned processes.
FROM ${PYTHON} AS system
ARG PACKAGES="libgomp1 libstdc++6 tini zlib1g"
RUN dpkg --status $PACKAGES > /dev/null 2>&1 \
    || { apt-get update && apt-get install --yes --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; }
# A user without rights, folders that any user may write into, and no program that gives rights.
RUN echo 'cog:x:1000:1000:cog:/home/cog:/bin/sh' >> /etc/passwd && echo 'cog:x:1000:' >> /etc/group \
    && mkdir -p /home/cog/.cache /src && chmod 1777 /home/cog /home/cog/.cache /src \
    && find / -xdev -perm /6000 -exec chmod ug-s {} +
ENV PATH=/opt/serving/bin:/opt/engine/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/nvidia/bin \
    COG_TRITON_ENGINE_PYTHON=/opt/engine/bin/python \
    TOKIO_WORKER_THREADS=1 \
    PORT=5000 \
    PYTHONPATH=/src \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/home/cog \
    USER=cog \
    LANG=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
LABEL org.opencontainers.image.licenses=Apache-2.0
WORKDIR /src
COPY --from=environments /opt/engine /opt/engine
COPY --from=environments /opt/serving /opt/serving
USER 1000:1000
ENTRYPOINT ["/bin/tini", "--"]

FROM system AS builder
COPY errors errors
COPY engine engine
COPY builder builder
COPY builder/.cog .cog
RUN ln -s builder/examples examples
ENV COG_PREDICT_TYPE_STUB=/src/builder/run.py:Runner COG_MAX_CONCURRENCY=1 ENGINE_TAR=/src/engine.tar
EXPOSE 5000
CMD ["python", "-m", "builder.cog_server", "--host", "0.0.0.0"]

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
ENV COG_PREDICT_TYPE_STUB=/src/runner/run.py:Runner COG_MAX_CONCURRENCY=64
EXPOSE 5000 8000 8001 8002 9000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m CMD ["python", "-m", "runner.probe", "ready"]
CMD ["python", "-m", "runner.cog_server", "--host", "0.0.0.0"]
