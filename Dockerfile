# Image of `drain`: docs/howto/docker.md explains how to build it, and how to add your own jobs.
# A tag moves: in production give its digest, --build-arg BASE=python:3.13-slim@sha256:...
ARG BASE=python:3.13-slim
FROM $BASE

# User by number: Kubernetes' runAsNonRoot cannot resolve a name.
RUN useradd --system --uid 10001 drain

# Dependencies first, so that a change of the sources does not rebuild this layer. `make lock` writes the file.
COPY deploy/requirements.txt /src/
RUN pip install --no-cache-dir --require-hashes --requirement /src/requirements.txt

COPY pyproject.toml README.md LICENSE schema.sql /src/
COPY migrations /src/migrations
COPY drain /src/drain
COPY workers /src/workers
COPY pipeline /src/pipeline
COPY examples /src/examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation /src

# Directory from which jobs are imported by name: copy or mount your own package beside the examples.
WORKDIR /app
COPY examples /app/examples
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1

# Port on which the enqueuer or the workers serve Prometheus and probes.
ENV DRAIN_METRICS_HOST=0.0.0.0 DRAIN_METRICS_PORT=9186 DRAIN_WORK_METRICS_PORT=9186
EXPOSE 9186
COPY deploy/healthcheck.py /usr/local/bin/
HEALTHCHECK --interval=15s --timeout=5s --retries=3 CMD ["python", "/usr/local/bin/healthcheck.py"]

USER 10001:10001
ENTRYPOINT ["drain"]
