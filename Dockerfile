# The image of `drain`: docs/howto/docker.md says how to build it, and how to bring jobs of your own.
FROM python:3.13-slim

# By number: Kubernetes' runAsNonRoot cannot tell what a name stands for.
RUN useradd --system --uid 10001 drain

# Dependencies first: a change of the sources leaves this layer as it is.
COPY pyproject.toml /src/
RUN python -c "import tomllib; file = tomllib.load(open('/src/pyproject.toml', 'rb')); \
    print(*file['build-system']['requires'], *file['project']['dependencies'], sep='\n')" > /src/requirements.txt \
    && pip install --no-cache-dir --requirement /src/requirements.txt

COPY README.md LICENSE schema.sql /src/
COPY migrations /src/migrations
COPY drain /src/drain
COPY workers /src/workers
COPY pipeline /src/pipeline
COPY examples /src/examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation /src

# Jobs are imported by name from here: copy or mount your own package beside the examples.
WORKDIR /app
COPY examples /app/examples
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1

# Port on which the enqueuer, or workers, answer Prometheus and probes.
ENV DRAIN_METRICS_HOST=0.0.0.0 DRAIN_METRICS_PORT=9187 DRAIN_WORK_METRICS_PORT=9187
EXPOSE 9187
COPY deploy/healthcheck.py /usr/local/bin/
HEALTHCHECK --interval=15s --timeout=5s --retries=3 CMD ["python", "/usr/local/bin/healthcheck.py"]

USER 10001:10001
ENTRYPOINT ["drain"]
