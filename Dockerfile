FROM python:3.13-slim

COPY pyproject.toml README.md LICENSE schema.sql cli.py /src/
COPY migrations /src/migrations
COPY drain /src/drain
COPY workers /src/workers
COPY pipeline /src/pipeline
COPY examples /src/examples
RUN pip install --no-cache-dir /src

# Jobs are imported by name from here: copy or mount your own package beside the examples.
WORKDIR /app
COPY examples /app/examples
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1

RUN useradd --system drain
USER drain
ENTRYPOINT ["drain"]
