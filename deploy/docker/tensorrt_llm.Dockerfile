# For NVIDIA GPUs of one architecture (SM 80, 86, 89 or 90), from the root of a checkout:
#   docker build -f deploy/docker/tensorrt_llm.Dockerfile -t cog-triton-runner-90 --build-arg SM=90 .
#   docker build -f deploy/docker/tensorrt_llm.Dockerfile -t cog-triton-builder --target builder .
ARG PYTHON=python:3.11-slim-bookworm
ARG ENGINE_PYTHON=python:3.10-slim-bookworm

FROM ${ENGINE_PYTHON} AS engine-python

# Both Pythons: TensorRT-LLM's is 3.10.
FROM ${PYTHON} AS pythons
COPY --from=engine-python /usr/local/bin/python3.10 /usr/local/bin/
COPY --from=engine-python /usr/local/lib/python3.10 /usr/local/lib/python3.10
COPY --from=engine-python /usr/local/lib/libpython3.10.so.1.0 /usr/local/lib/
RUN ldconfig

FROM pythons AS environments
# Settings of pip: a mirror, or files of your own. PyTorch's and NVIDIA's pages are asked besides the index.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ARG PIP_TRUSTED_HOST
WORKDIR /build
COPY nix nix
COPY deploy/docker/environment.py .
RUN python3.11 environment.py serving /opt/serving

FROM environments AS engine
RUN python3.10 environment.py engine-tensorrt-llm /opt/engine --alias tensorrt=tensorrt_bindings

FROM environments AS slim-engine
ARG SM=90
RUN python3.10 environment.py engine-tensorrt-llm /opt/engine --alias tensorrt=tensorrt_bindings --sm "$SM"

# tini is the first process: it forwards signals and reaps orphaned processes. TensorRT-LLM starts MPI even for one GPU.
FROM pythons AS system
ARG PACKAGES="libopenmpi3 libstdc++6 openmpi-bin tini zlib1g"
RUN dpkg --status $PACKAGES > /dev/null 2>&1 \
    || { apt-get update && apt-get install --yes --no-install-recommends $PACKAGES && rm -rf /var/lib/apt/lists/*; }
# A user without rights, folders that any user may write into, and no program that gives rights.
RUN echo 'cog:x:1000:1000:cog:/home/cog:/bin/sh' >> /etc/passwd && echo 'cog:x:1000:' >> /etc/group \
    && mkdir -p /home/cog/.cache /src && chmod 1777 /home/cog /home/cog/.cache /src \
    && find / -xdev -perm /6000 -exec chmod ug-s {} +
ENV PATH=/opt/serving/bin:/opt/engine/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/nvidia/bin \
    LD_LIBRARY_PATH=/opt/engine/lib:\
/opt/engine/lib/python3.10/site-packages/tensorrt_llm/libs:\
/opt/engine/lib/python3.10/site-packages/torch/lib:\
/opt/engine/lib/python3.10/site-packages/nvidia/cublas/lib:\
/opt/engine/lib/python3.10/site-packages/nvidia/cuda_nvrtc/lib:\
/opt/engine/lib/python3.10/site-packages/nvidia/cuda_runtime/lib:\
/opt/engine/lib/python3.10/site-packages/nvidia/cudnn/lib:\
/opt/engine/lib/python3.10/site-packages/nvidia/nccl/lib:\
/usr/local/nvidia/lib64 \
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
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
LABEL org.opencontainers.image.licenses=Apache-2.0
WORKDIR /src
USER 1000:1000
ENTRYPOINT ["/bin/tini", "--"]

FROM system AS builder
COPY --from=engine /opt/engine /opt/engine
COPY --from=environments /opt/serving /opt/serving
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
COPY --from=slim-engine /opt/engine /opt/engine
COPY --from=environments /opt/serving /opt/serving
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
ENV COG_PREDICT_TYPE_STUB=/src/runner/run.py:Runner COG_MAX_CONCURRENCY=64 COG_TRITON_IMAGE=cog-triton-runner-$SM
EXPOSE 5000 8000 8001 8002 9000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m CMD ["python", "-m", "runner.probe", "ready"]
CMD ["python", "-m", "runner.cog_server", "--host", "0.0.0.0"]
