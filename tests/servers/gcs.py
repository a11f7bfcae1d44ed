"""A small Google Cloud Storage server on loopback, for as long as a `with` block: the XML API as obstore uses it.

It enforces the condition of a write as the service does: `x-goog-if-generation-match: 0` creates, any other number
replaces exactly that generation, and a generation is never given twice. A request that it does not know is refused with
501 instead of being half understood, so that a test cannot pass because a condition was overlooked.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import itertools
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

PAGE = 1000


def options_for(endpoint: str) -> dict[str, str]:
    """Options of `open_store` for this endpoint, such as a proxy before the server."""
    return {"base_url": endpoint, "bearer_token": "test-token"}  # any value does


class Stored(NamedTuple):
    body: bytes
    generation: int
    modified: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.body).hexdigest()}"'


class GcsServer:
    """A running server. Buckets are never removed: make a new one for each test, and forget it."""

    def __init__(self, endpoint: str, buckets: dict[str, dict[str, Stored]]) -> None:
        self.endpoint = endpoint
        self._buckets = buckets

    @property
    def options(self) -> dict[str, str]:
        return options_for(self.endpoint)

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name, which no other bucket has."""
        name = f"bucket-{uuid.uuid4().hex}"
        self._buckets[name] = {}
        return name


@contextlib.contextmanager
def gcs_server() -> Iterator[GcsServer]:
    """Start a server on a free port of 127.0.0.1, in threads of this process; it is stopped at the end."""
    with _Server() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        serving.start()
        try:
            yield GcsServer(f"http://127.0.0.1:{server.server_port}", server.buckets)
        finally:
            server.shutdown()
            serving.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.generations = itertools.count(1_760_000_000_000_000)
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: clients that disconnect are expected here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(address.path.removeprefix("/")).partition("/")
        body = self.rfile.read(int(self.headers.get("content-length") or 0))  # before the lock: a client may be frozen
        unknown = [
            name
            for name in (name.lower() for name in self.headers)
            if name.startswith(("x-goog-", "if-")) and name not in ("x-goog-if-generation-match", "x-goog-copy-source")
        ]
        if key and not unknown and query.keys() in ({"uploads"}, {"uploadId"}, {"partNumber", "uploadId"}):
            return self._multipart(bucket, key, query, body)
        if unknown or (key and query):
            return self._refuse(501, f"not known here: {unknown} {query}")
        with self.server.lock:
            objects = self.server.buckets.get(bucket)
            if objects is None:
                return self._refuse(404, "NoSuchBucket")
            if not key and self.command == "GET" and query.get("list-type") == "2":
                return self._list(bucket, objects, query)
            if key and self.command == "PUT" and (source := self.headers.get("x-goog-copy-source")):
                copied = self._found(urllib.parse.unquote(source))
                return self._put(objects, key, copied.body) if copied else self._refuse(404, "NoSuchKey")
            if key and self.command == "PUT":
                return self._put(objects, key, body)
            if key and self.command in ("GET", "HEAD"):
                return self._get(objects.get(key))
            if key and self.command == "DELETE":
                return self._answer(204) if objects.pop(key, None) else self._refuse(404, "NoSuchKey")
        return self._refuse(501, f"not known here: {self.command} {self.path}")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 - the names http.server calls

    def _multipart(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> None:
        """An upload in parts: without a condition, and the object is there when it is completed."""
        asked, name = (self.command, *sorted(query)), query.get("uploadId", "")
        with self.server.lock:
            parts = self.server.uploads.get(name)
            if asked == ("POST", "uploads"):
                name = uuid.uuid4().hex
                self.server.uploads[name] = {}
                opened = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{name}</UploadId>"
                answer = f"<InitiateMultipartUploadResult>{opened}</InitiateMultipartUploadResult>"
                return self._answer(200, {}, answer.encode())
            if parts is None or bucket not in self.server.buckets:
                return self._refuse(404, "NoSuchUpload")
            if asked == ("PUT", "partNumber", "uploadId"):
                parts[int(query["partNumber"])] = body
                return self._answer(200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
            if asked == ("POST", "uploadId"):
                del self.server.uploads[name]
                whole = b"".join(parts[number] for number in sorted(parts))
                stored = Stored(whole, next(self.server.generations), time.time())
                self.server.buckets[bucket][key] = stored
                tag = f"<ETag>{escape(stored.etag)}</ETag>"
                answer = f"<CompleteMultipartUploadResult>{tag}</CompleteMultipartUploadResult>"
                return self._answer(200, _described(stored), answer.encode())
            if asked == ("DELETE", "uploadId"):
                del self.server.uploads[name]
                return self._answer(204)
        return self._refuse(501, f"not known here: {self.command} {self.path}")

    def _found(self, path: str) -> Stored | None:
        bucket, _, key = path.removeprefix("/").partition("/")
        return self.server.buckets.get(bucket, {}).get(key)

    def _put(self, objects: dict[str, Stored], key: str, body: bytes) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        found = objects[key].generation if key in objects else 0
        if wanted is not None and int(wanted) != found:
            return self._refuse(412, "PreconditionFailed")
        objects[key] = stored = Stored(body, next(self.server.generations), time.time())
        return self._answer(200, _described(stored))

    def _get(self, stored: Stored | None) -> None:
        if stored is None:
            return self._refuse(404, "NoSuchKey")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if asked is None:
            return self._answer(200, _described(stored), stored.body)
        start, end, size = int(asked[1]), min(int(asked[2]) + 1, len(stored.body)), len(stored.body)
        if start >= size:
            return self._refuse(416, "InvalidRange")
        part = {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        return self._answer(206, _described(stored) | part, stored.body[start:end])

    def _list(self, bucket: str, objects: dict[str, Stored], query: dict[str, str]) -> None:
        if unknown := query.keys() - {"list-type", "prefix", "delimiter", "continuation-token", "max-keys"}:
            return self._refuse(501, f"not known here: {unknown}")
        after, prefix, delimiter = (query.get(name, "") for name in ("continuation-token", "prefix", "delimiter"))
        found = {_up_to(delimiter, name, prefix) for name in objects if name.startswith(prefix)}
        names = sorted(name for name in found if name > after)
        page = names[: min(PAGE, int(query.get("max-keys", PAGE)))]
        contents = "".join(
            _listed(name, objects[name])
            if name in objects and not (delimiter and name.endswith(delimiter))
            else f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in page
        )
        rest = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(page) < len(names) else ""
        document = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://doc.s3.amazonaws.com/2006-03-01">'
            f"<Name>{bucket}</Name><IsTruncated>{str(bool(rest)).lower()}</IsTruncated>{rest}{contents}"
            "</ListBucketResult>"
        )
        return self._answer(200, {"Content-Type": "application/xml"}, document.encode())

    def _refuse(self, status: int, code: str) -> None:
        return self._answer(status, {}, f"<Error><Code>{escape(code)}</Code></Error>".encode())

    def _answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _described(stored: Stored) -> dict[str, str]:
    return {
        "ETag": stored.etag,
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": "1",
        "Last-Modified": formatdate(stored.modified, usegmt=True),
    }


def _up_to(delimiter: str, name: str, prefix: str) -> str:
    """The name, or as much of it as a listing of folders shows."""
    folder, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
    return f"{prefix}{folder}{found}" if found else name


def _listed(name: str, stored: Stored) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(stored.modified)) + f"{stored.modified % 1:.3f}"[1:] + "Z"
    return (
        f"<Contents><Key>{escape(name)}</Key><Generation>{stored.generation}</Generation>"
        f"<LastModified>{when}</LastModified><ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size></Contents>"
    )
