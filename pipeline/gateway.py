"""Object stores for Spark's readers: a WebHDFS server in the driver, on PyArrow's file systems.

Spark has a client for WebHDFS but not for S3. So `drain.pipeline.lines` applies to objects too, read in parallel parts
and without copies, through the driver. See decision record 0011.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from drain.pipeline.lake import stores

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem
    from pyspark.sql import SparkSession

# Size in bytes, and parts.
_Answer: TypeAlias = tuple[int, Iterable[bytes]]

_ROOT = "/webhdfs/v1/"
# Footers are small, texts are read to the end.
_FIRST_BYTES, _MOST_BYTES = 128 * 1024, 8 * 1024 * 1024
# Spark divides texts at multiples of a block.
_BLOCK_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class _Shared:
    system: FileSystem
    scheme: str
    prefix: str


_shared: dict[str, _Shared] = {}


def reachable(spark: SparkSession, path: str, options: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Return path and options for Spark, unchanged if it has a driver."""
    if not stores.is_object_store(path) or _has_driver(spark, path):
        return path, options
    system, name = stores.objects(path)
    wildcard = stores.WILDCARD.search(name)
    prefix = name[: wildcard.start()].rpartition("/")[0] if wildcard else name
    stores.information(system, prefix, path)
    base = next((each for each in options if each.lower() == "basepath"), "")
    if base:
        prefix = stores.objects(options[base])[1]
    root = _serve(spark, _Shared(system, stores.shown(path).partition(":")[0], prefix))
    return f"{root}/{name}", {**options, **({base: f"{root}/{prefix}"} if base else {})}


def _has_driver(spark: SparkSession, path: str) -> bool:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark.sparkContext._jvm
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(path.partition(":")[0], conf)
    except Py4JJavaError:
        return False
    return True


def _serve(spark: SparkSession, shared: _Shared) -> str:
    conf = spark.sparkContext.getConf()
    host = str(conf.get("spark.driver.host"))
    port = _port(str(conf.get("spark.driver.bindAddress", host)))
    token = secrets.token_hex(16)
    _shared[token] = shared
    # Mapped back by `failures`.
    return f"webhdfs://{host}:{port}/{token}/{shared.scheme}"


@cache
def _port(address: str) -> int:
    server = _Server((address, 0), _Handler)
    threading.Thread(target=server.serve_forever, name="object stores", daemon=True).start()
    return int(server.server_address[1])


# HTTPServer would ask DNS for its own name.
class _Server(ThreadingTCPServer):
    daemon_threads = True
    # Tasks connect simultaneously.
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Ignore errors: Spark closes connections early."""


class _Handler(BaseHTTPRequestHandler):
    """WebHDFS as far as Spark reads it.

    No Content-Type: Spark's client would parse it with a class that it lacks.
    """

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        token, _, rest = unquote(url.path).removeprefix(_ROOT).partition("/")
        path = rest.partition("/")[2].rstrip("/")
        shared = _shared.get(token)
        if shared is None or not f"{path}/".startswith(f"{shared.prefix}/"):
            self._refuse(PermissionError("this object is not part of the source"), path)
            return
        asked = {name.lower(): value for name, value in parse_qsl(url.query)}
        try:
            answer = _ANSWERS[asked["op"]](shared.system, path, asked)
        except (OSError, KeyError) as error:
            self._refuse(error, f"{shared.scheme}://{path}")
        else:
            self._send(HTTPStatus.OK, answer)

    def _refuse(self, error: Exception, place: str) -> None:
        missing = isinstance(error, FileNotFoundError)
        name = f"java.io.{'FileNotFound' if missing else 'IO'}Exception"
        words = {"exception": name, "javaClassName": name, "message": stores.explanation(place, error)}
        status = HTTPStatus.NOT_FOUND if missing else HTTPStatus.FORBIDDEN
        self._send(status, _json({"RemoteException": words}))

    def _send(self, status: HTTPStatus, answer: _Answer) -> None:
        size, parts = answer
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for part in parts:
            self.wfile.write(part)


def _status(system: FileSystem, path: str, _asked: Mapping[str, str]) -> _Answer:
    return _json({"FileStatus": _described(_information(system, path), "")})


def _list(system: FileSystem, path: str, _asked: Mapping[str, str]) -> _Answer:
    from pyarrow.fs import FileSelector, FileType

    info = _information(system, path)
    if info.type == FileType.Directory:
        found = [_described(each, each.base_name) for each in system.get_file_info(FileSelector(path))]
    else:
        found = [_described(info, "")]
    return _json({"FileStatuses": {"FileStatus": found}})


def _no_locations(_system: FileSystem, _path: str, _asked: Mapping[str, str]) -> _Answer:
    return _json({"BlockLocations": {"BlockLocation": []}})


def _read(system: FileSystem, path: str, asked: Mapping[str, str]) -> _Answer:
    file = system.open_input_file(path)
    offset = int(asked.get("offset", 0))
    file.seek(offset)
    return file.size() - offset, _parts(file)


def _parts(file: NativeFile) -> Iterator[bytes]:
    size = _FIRST_BYTES
    with file:
        while part := file.read(size):
            yield part
            size = min(4 * size, _MOST_BYTES)


def _information(system: FileSystem, path: str) -> FileInfo:
    from pyarrow.fs import FileType

    info = system.get_file_info(path)
    if info.type == FileType.NotFound:
        raise FileNotFoundError(path)
    return info


def _described(info: FileInfo, name: str) -> dict[str, object]:
    from pyarrow.fs import FileType

    directory = info.type == FileType.Directory
    return {
        "pathSuffix": name,
        "type": "DIRECTORY" if directory else "FILE",
        "length": 0 if directory else info.size,
        "modificationTime": (info.mtime_ns or 0) // 1_000_000,
        "blockSize": _BLOCK_BYTES,
        "accessTime": 0,
        "replication": 1,
        "owner": "",
        "group": "",
        "permission": "444",
    }


def _json(document: Mapping[str, object]) -> _Answer:
    text = json.dumps(document).encode()
    return len(text), [text]


_ANSWERS = {
    "GETFILESTATUS": _status,
    "LISTSTATUS": _list,
    "GETFILEBLOCKLOCATIONS": _no_locations,
    "OPEN": _read,
}
