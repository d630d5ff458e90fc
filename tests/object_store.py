"""An S3 server of the tests' own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.request import urlopen

from drain.embedded.addresses import free_port
from tests.helpers import wait_until


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Start an S3 server; yields the environment variables by which its clients find it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "--port", str(port)], stderr=subprocess.DEVNULL
    )

    def answers() -> bool:
        with suppress(OSError), closing(urlopen(f"{url}/moto-api/")):
            return True
        return False

    try:
        wait_until(answers)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.terminate()
        server.wait()
