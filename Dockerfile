# syntax=docker/dockerfile:1
# docker build --build-arg VARIANT=cpu|cuda -t midstream:cpu .
# One image runs every role; the default model comes with a Python package, any other is downloaded into /data.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
ARG VARIANT=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /app
COPY requirements requirements
# The second step adds the CUDA libraries if this torch build names some that the lock file leaves out.
RUN pip install --no-deps -r requirements/${VARIANT}.txt \
    && pip install "$(grep '^torch==' requirements/${VARIANT}.txt)"
COPY . .
RUN pip install --no-deps --no-build-isolation -e .

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="Midstream" org.opencontainers.image.licenses="Apache-2.0"
# The CPU kernels are compiled for the processor that they run on, at the first start.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home midstream && install -d -o midstream -g midstream /data
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MIDSTREAM_DATA=/data \
    MIDSTREAM_MODEL_CACHE=/data/cache \
    HF_HOME=/data/huggingface \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER midstream
WORKDIR /app
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["midstream"]
CMD ["serve", "--host", "0.0.0.0"]
