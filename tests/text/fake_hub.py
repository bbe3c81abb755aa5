"""A Hugging Face hub on loopback that serves one dataset repository without folders."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves the files of `wmt/wmt16`; other repositories are absent.

    Attributes:
        files: Content by path in the repository.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Keeps quiet."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, files = self.path.partition("?")[0], self.server.files
        if match := re.fullmatch(r"/datasets/wmt/wmt16/resolve/[^/]+/(.+)", path):
            content = files.get(match[1])
            if content is None:
                self._reply(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self._reply(200, content, {"X-Repo-Commit": COMMIT, "ETag": _digest(content)})
        elif re.fullmatch(r"/api/datasets/wmt/wmt16(/revision/[^/]+)?", path):
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": "wmt/wmt16", "sha": COMMIT, "siblings": siblings, "tags": []})
        elif re.fullmatch(r"/api/datasets/wmt/wmt16/(tree|paths-info)/[^/]+", path):
            wanted = json.loads(body)["paths"] if body else files
            self._json(
                [
                    {"type": "file", "path": name, "oid": _digest(content), "size": len(content)}
                    for name, content in files.items()
                    if name in wanted
                ]
            )
        else:
            self._reply(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET = do_POST = _answer

    def _json(self, value: object) -> None:
        self._reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _reply(self, code: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[FakeHub]:
    with FakeHub(files) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
