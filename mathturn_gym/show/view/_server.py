"""`mathturn view --serve`: the page of a run that is still going, on this machine only.

    GET /TOKEN/             the page, with all episodes so far
    GET /TOKEN/news?since=  what has come since, which the page asks for every two seconds

The address has a token, so that no other user of the machine and no other page in the browser can read the run; requests
for another host are refused, which keeps out names that were pointed at this address.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from mathturn_gym.base.text import TokenTexts
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view._encoding import Block, blocks, pack_json
from mathturn_gym.show.view._write import View, curves_json, find_tokenizer, policy_of, render_page
from mathturn_gym.show.view.sources import Curves, EpisodeSet, LineLog, read_curves, run_names, set_files

_SINCE: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


class Follower:
    """Reads runs on, and keeps what the page gets.

    Args:
        paths: Run folders, which may still be empty, or files of JSON-lines.
        tokenizer: See `read_view`.

    Raises:
        InvalidValueError: a path that is not there, or a file that cannot be followed.
    """

    def __init__(self, paths: Sequence[str | Path], *, tokenizer: Any = None) -> None:
        self._paths = [Path(path) for path in paths]
        for path in self._paths:
            if not path.exists():
                raise InvalidValueError(f"{str(path)!r} is not there: name a run's folder or a .jsonl file")
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._generation = 0
        self._begin()

    def page(self) -> str:
        """The page with all that is there now."""
        with self._lock:
            self._refresh()
            view = View([log.as_set() for log in self._logs] or [_nothing_yet(self._paths)], self._curves, self._texts)
            live = {"path": "news", "since": self._since()}
            return render_page({**view.about(), "live": live}, self._blocks)

    def news(self, since: str) -> dict[str, Any]:
        """What has come since a moment that an earlier answer, or the page, named."""
        with self._lock:
            self._refresh()
            known = _SINCE.fullmatch(since)
            if known is None or int(known[1]) != self._generation:
                return {"since": self._since(), "reload": True}
            fresh = self._blocks[int(known[2]) :]
            curves = self._curves if int(known[3]) != self._drawn else None
            return {
                "since": self._since(),
                "blocks": [{"set": number, "parts": block.to_json()} for number, block in fresh],
                "curves": None if curves is None else pack_json(curves_json(curves)),
            }

    def _begin(self) -> None:
        """Reads everything: at the start, and again where files were replaced."""
        self._generation += 1
        names = run_names(self._paths)
        self._logs = [
            _Followed(name, LineLog(file))
            for path, label in zip(self._paths, names, strict=True)
            for name, file in set_files(path, label)
        ]
        self._blocks: list[tuple[int, Block]] = []
        self._curves: list[Curves] = []
        self._drawn = 0
        self._texts = self._find_texts()

    def _refresh(self) -> None:
        """Packs what was not read yet; where files were replaced, everything."""
        names = run_names(self._paths)
        found = [file for path, label in zip(self._paths, names, strict=True) for _, file in set_files(path, label)]
        if found != [one.log.path for one in self._logs] or any(one.log.shrunk for one in self._logs):
            self._begin()
        for number, one in enumerate(self._logs):
            for block in blocks(one.log.read(growing=True), self._texts):
                self._blocks.append((number, block))
        curves = [curve for path, name in zip(self._paths, names, strict=True) for curve in read_curves(path, name)]
        if curves_json(curves) != curves_json(self._curves):
            self._curves, self._drawn = curves, self._drawn + 1

    def _since(self) -> str:
        return f"{self._generation}.{len(self._blocks)}.{self._drawn}"

    def _find_texts(self) -> TokenTexts:
        name = self._tokenizer
        for path in self._paths if name is None else ():
            name = name or find_tokenizer(path if path.is_dir() else path.parent)
        return TokenTexts(None if name is None else load_tokenizer(name))


class _Followed:
    """A file that is read on, and what the page calls it."""

    def __init__(self, name: str, log: LineLog) -> None:
        self.name, self.log = name, log

    def as_set(self) -> EpisodeSet:
        return EpisodeSet(self.name, str(self.log.path), self.log.format, [], self.log.left_out)


def _nothing_yet(paths: Sequence[Path]) -> EpisodeSet:
    """What stands where no file of episodes is there yet."""
    return EpisodeSet("nothing yet", ", ".join(map(str, paths)), "waiting for episodes", [])


class ViewServer:
    """Serves a followed run to this machine's browsers.

    Args:
        follower: The run.
        port: 0 takes a free one.

    Attributes:
        url: The page's address, token included.
    """

    def __init__(self, follower: Follower, *, port: int = 0) -> None:
        self._token = secrets.token_urlsafe(24)
        try:
            self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(follower, self._token))
        except (OSError, OverflowError) as error:
            raise InvalidValueError(f"port {port} cannot be used ({error}); 0 takes a free one") from error
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/{self._token}/"

    def run(self) -> None:
        """Answers until it is stopped from another thread or by Ctrl-C."""
        self._http.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Ends `run`, which another thread is in."""
        self._http.shutdown()

    def close(self) -> None:
        """Gives the port back."""
        self._http.server_close()


def _handler(follower: Follower, token: str) -> type[BaseHTTPRequestHandler]:
    """The class that answers requests; `http.server` makes one of it per connection."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds that a connection may stay silent
        server_version = "mathturn-view"
        sys_version = ""

        def do_GET(self) -> None:
            """Answers the page or the news."""
            address = urlsplit(self.path)
            _, given, *rest = [*address.path.split("/"), "", ""]
            port = self.server.server_address[1]  # type: ignore[index]
            if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "this server answers on 127.0.0.1 only\n")
            elif not hmac.compare_digest(given.encode(), token.encode()):
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "use the address that mathturn view printed\n")
            elif rest[0] == "news":
                since = parse_qs(address.query).get("since", [""])[0]
                self._answer(HTTPStatus.OK, "application/json", json.dumps(follower.news(since)))
            elif rest[0] == "":
                self._answer(HTTPStatus.OK, "text/html", follower.page())
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is nothing here\n")

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode("utf-8")
            self.send_response(status)
            headers = {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(body)),
                "Content-Security-Policy": f"{policy_of(live=True)}; frame-ancestors 'none'",
                "Cross-Origin-Resource-Policy": "same-origin",
                "Referrer-Policy": "no-referrer",
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "no-store",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing: a line per request would bury the address."""

    return Handler
