"""PyArrow's file systems of archives and sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from drain import extras
from drain.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

# Lists a relative path: names, each with True for a directory.
Lister: TypeAlias = Callable[[str], list[tuple[str, bool]]]

# Hadoop's names, and PyArrow's for the same stores.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
_OBJECT_STORES = ("s3", "gs", "gcs", "abfs")
# A question mark is a wildcard, unless NAME= follows it.
_URL = re.compile(
    r"(?P<scheme>\w+)://(?P<login>(?P<user>[^/:@]*)(:.*)?@)?(?P<bucket>[^/?]*)(?P<path>.*?)(?P<query>\?\w+=.*)?"
)
# Spark takes these for patterns.
WILDCARD = re.compile(r"[*?\[{]")
_ADVICE = {
    "NO_SUCH_BUCKET": "the bucket does not exist: check its name, and AWS_ENDPOINT_URL if the store is not AWS",
    "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|HTTP status 40[13]|credentials": (
        "access was denied: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a key that may list and read it"
    ),
    "NETWORK_CONNECTION|curlCode": "the store cannot be reached: check AWS_ENDPOINT_URL and the network",
}


def opened(place: str) -> tuple[FileSystem, str]:
    """Open a path or URL such as `s3://bucket/jobs`, also as `s3a://`; return the file system and the path in it.

    Keys, region and endpoint come from the environment, as for AWS's own tools (AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL), or from the URL's query.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem, LocalFileSystem
    except ImportError:
        raise ConfigError(f"archives and object stores need pyarrow: {extras.install('spark')}") from None
    scheme, colon, rest = place.partition("://")
    if not colon:
        return LocalFileSystem(), str(Path(place.removeprefix("file:")).absolute())
    url = f"{_SCHEMES.get(scheme, scheme)}://{rest}"
    try:
        system, path = FileSystem.from_uri(url)
    except (OSError, ValueError, ArrowException) as error:
        text = str(error).partition("\n")[0].replace(url, shown(place))
        raise ConfigError(f"{shown(place)} cannot be opened: {text}") from None
    return system, path


def is_object_store(place: str) -> bool:
    """Return True for an object store's URL."""
    scheme, colon, _ = place.partition("://")
    return bool(colon) and _SCHEMES.get(scheme, scheme) in _OBJECT_STORES


def shown(place: str) -> str:
    """Return an object's URL in one spelling, without keys and query; other places unchanged."""
    if not is_object_store(place):
        return place
    found = _parts(place)
    user = f"{found['user']}@" if found["user"] else ""
    return f"{_SCHEMES.get(found['scheme'], found['scheme'])}://{user}{found['bucket']}{found['path']}"


def objects(place: str) -> tuple[FileSystem, str]:
    """Open an object store; return it, and the path in it, perhaps with wildcards."""
    found = _parts(place)
    system, root = opened(f"{found['scheme']}://{found['login']}{found['bucket']}{found['query']}")
    return system, f"{root}/{found['path']}".replace("//", "/").strip("/")


def information(system: FileSystem, path: str, place: str) -> FileInfo:
    """Return information about a path; ConfigError if it is missing or refused."""
    from pyarrow.fs import FileSelector, FileType

    try:
        info = system.get_file_info(path)
        if info.type == FileType.NotFound:
            # Lists, as only this reports a missing bucket.
            system.get_file_info(FileSelector(path))
    except OSError as error:
        raise ConfigError(explanation(place, error)) from None
    return info


def lister(place: str) -> Lister | None:
    """Return a function that lists below a directory; None for a file."""
    if not is_object_store(place):
        here = Path(place.removeprefix("file:"))
        if not here.is_dir():
            return None
        return lambda path: [(each.name, each.is_dir()) for each in (here / path).iterdir()]
    if WILDCARD.search(_parts(place)["path"]):
        return None
    from pyarrow.fs import FileSelector, FileType

    system, root = objects(place)
    if information(system, root, place).type != FileType.Directory:
        return None

    def list_(path: str) -> list[tuple[str, bool]]:
        try:
            found = system.get_file_info(FileSelector(f"{root}/{path}".rstrip("/")))
        except OSError as error:
            raise ConfigError(explanation(place, error)) from None
        return [(each.base_name, each.type == FileType.Directory) for each in found]

    return list_


def explanation(place: str, error: BaseException) -> str:
    """Explain without keys why a place is unreadable."""
    if isinstance(error, FileNotFoundError):
        return f"{shown(place)} does not exist"
    text = str(error).partition("\n")[0]
    advice = (words for pattern, words in _ADVICE.items() if re.search(pattern, text))
    return f"{shown(place)} cannot be read: {next(advice, text)}"


def _parts(place: str) -> dict[str, str]:
    found = _URL.fullmatch(place)
    return found.groupdict(default="") if found else {}
