"""A run that is followed, over HTTP and without a browser."""

from __future__ import annotations

import hmac
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mathturn_gym.episodes.trajectories import EpisodeWriter, write_episodes
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view import Follower, ViewServer
from mathturn_gym.types import Episode


@contextmanager
def serving(follower: Follower) -> Iterator[ViewServer]:
    server = ViewServer(follower)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
        server.close()


def ask(url: str, path: str, host: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], str]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_news_are_what_came_since(tmp_path: Path, before: list[Episode]) -> None:
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, before[:2])
    follower = Follower([tmp_path])
    start = follower.news("")["since"]
    assert follower.news(start)["blocks"] == []
    with EpisodeWriter(path) as writer:
        writer.write(before[2])
    news = follower.news(start)
    assert [entry["set"] for entry in news["blocks"]] == [0]
    assert news["curves"] is None
    assert follower.news(news["since"])["blocks"] == []
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "loss": 2.0}\n')
    assert follower.news(news["since"])["curves"] is not None
    write_episodes(path, before[:1])  # another run in its place
    assert follower.news(news["since"])["reload"] is True
    again = follower.news(follower.news("")["since"])
    assert (again["blocks"], again["curves"]) == ([], None)  # the page that was loaded has it all
    assert follower.news("nonsense")["reload"] is True


def test_a_run_without_episodes_is_waited_for(tmp_path: Path, before: list[Episode]) -> None:
    follower = Follower([tmp_path])
    start = follower.news("")["since"]
    assert "mathturn" in follower.page()
    write_episodes(tmp_path / "episodes.jsonl", before[:1])
    assert follower.news(start)["reload"] is True


def test_a_line_that_is_still_written_is_waited_for(tmp_path: Path, before: list[Episode]) -> None:
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, before[:2])
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    follower = Follower([tmp_path])
    start = follower.news("")["since"]
    assert follower.news(start)["blocks"] == []
    path.write_bytes(whole)
    assert len(follower.news(start)["blocks"]) == 1
    assert [one.log.left_out for one in follower._logs] == [[]]


def test_a_tokenizer_that_is_given_is_used_and_else_the_runs(
    tmp_path: Path, before: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_episodes(tmp_path / "episodes.jsonl", before[:1])
    asked: list[Path] = []
    monkeypatch.setattr("mathturn_gym.show.view._server.find_tokenizer", asked.append)
    Follower([tmp_path, tmp_path / "episodes.jsonl"])
    assert asked == [tmp_path, tmp_path]
    with pytest.raises(InvalidValueError, match="no-such-tokenizer"):
        Follower([tmp_path], tokenizer="no-such-tokenizer")


def test_what_cannot_be_followed_is_named(tmp_path: Path, before: list[Episode]) -> None:
    with pytest.raises(InvalidValueError, match="is not there"):
        Follower([tmp_path / "none"])
    write_episodes(tmp_path / "e.jsonl.gz", before[:1])
    with pytest.raises(InvalidValueError, match=r"only .jsonl files grow"):
        Follower([tmp_path / "e.jsonl.gz"])
    with serving(Follower([tmp_path])) as server, pytest.raises(InvalidValueError, match="cannot be used"):
        ViewServer(Follower([tmp_path]), port=int(urlsplit(server.url).port or 0))


def test_only_who_has_the_address_is_answered(tmp_path: Path, before: list[Episode]) -> None:
    write_episodes(tmp_path / "episodes.jsonl", before[:1])
    with serving(Follower([tmp_path])) as server:
        address = urlsplit(server.url)
        assert address.hostname == "127.0.0.1"
        assert len(address.path) > 30
        status, headers, page = ask(server.url, address.path)
        assert (status, page.startswith("<!doctype html>")) == (200, True)
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers
        status, _, news = ask(server.url, f"{address.path}news?since=")
        assert (status, json.loads(news)["reload"]) == (200, True)
        for path in (
            "/",
            "/news",
            "/x/",
            "/favicon.ico",
            f"{address.path[:-3]}/",
            f"{address.path}../../etc/passwd",
            f"{address.path[:-1]}x/",
            "//",
            address.path.swapcase(),
        ):
            status, _, text = ask(server.url, path)
            assert (status, "algebra" in text, len(text) < 100) == (404, False, True), path
        # A name that somebody pointed at this machine: the browser would send it as the host.
        for host in ("evil.example", f"evil.example:{address.port}", "127.0.0.1"):
            assert ask(server.url, address.path, host=host)[0] == 421
        assert ask(server.url, address.path, host=f"localhost:{address.port}")[0] == 200
        assert ask(server.url, address.path, method="POST")[0] == 501


def test_every_server_has_an_address_of_its_own(tmp_path: Path) -> None:
    with serving(Follower([tmp_path])) as one, serving(Follower([tmp_path])) as two:
        assert urlsplit(one.url).path != urlsplit(two.url).path


def test_the_secret_is_compared_in_a_time_that_tells_nothing(
    tmp_path: Path, before: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    whole = hmac.compare_digest

    def recorded(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return whole(one, other)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    write_episodes(tmp_path / "episodes.jsonl", before[:1])
    with serving(Follower([tmp_path])) as server:
        assert ask(server.url, "/guess/")[0] == 404
        secret = urlsplit(server.url).path.strip("/")
    assert compared == [(b"guess", secret.encode())]
