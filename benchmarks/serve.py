"""A served environment under load, on loopback: sessions that must not be mixed up, the time of a step, and bad clients.

    python benchmarks/serve.py [--minutes 10] [--bad-minutes 0.5] [--sessions 256] [--good 32] [--think 0.1]
                               [--tokenizer builtin] [--out runs/benchmarks/serve.json]

The server is a process of its own (`mathturn serve`), the clients another one (one event loop, plain frames); both share
this machine's cores, and the CPU time of each is measured separately.

* soak: sessions that play episodes of `lins` side by side, each with problems and actions of its own. Every reply (ids,
  reward, flags, info) is compared with what the environment in the client's process gives for the same call.
* steps: 32 sessions, actions of 512 tokens. "busy" sends the next action as soon as the reply is there; "thinking" waits
  about 0.1 s before it, which is 5,000 sampled tokens per second and session. Reference, in the same run: the step of the
  environment in the client's process.
* bad clients: the same "thinking" sessions, every reply compared, while others send malformed, nested and oversized messages,
  wrong keys, half heads, floods of requests, letters one by one, nothing at all, or do not read. The server's own counts of what it
  refused and its memory after each minute are beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.dialogue import completion_ids
from mathturn_gym.neighbors.serve._protocol import info_from_record
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Ids

ACTION, KEY, BAD_OF_A_KIND, HALF_HEADS = 512, "benchmark", 4, 16


class Served:
    """The server's process, or one that runs already."""

    def __init__(self, port: int) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, tokenizer: str, sessions: int) -> Served:
        """Starts it."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            served = cls(probe.getsockname()[1])
        options = {
            "tokenizer": tokenizer,
            "port": served.port,
            "max-completion-tokens": ACTION,
            # Room for the bad clients beside the good ones; they are cut off soon.
            "max-sessions": sessions + 64,
            "session-timeout": 30,
            "log-level": "error",
        }
        flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        code = "from mathturn_gym.cli.app import main; main()"
        served.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", *flags], env={**os.environ, "MATHTURN_API_KEY": KEY}
        )
        while not served._answers():
            assert served.process.poll() is None, "the server did not start"
            time.sleep(0.1)
        return served

    def _answers(self) -> bool:
        try:
            return bool(self.get("/health"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def get(self, path: str) -> str:
        """Text of a page."""
        request = urllib.request.Request(self.url + path, headers={"x-api-key": KEY})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return str(reply.read().decode())

    def counts(self) -> dict[str, float]:
        """The server's metrics."""
        lines = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def memory_mb(self) -> float:
        """What the server holds."""
        return self.counts()["process_resident_memory_bytes"] / 2**20

    def cpu_s(self) -> float:
        """What the server has used."""
        return self.counts()["process_cpu_seconds_total"]

    def close(self) -> None:
        """Ends the server."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=30)


@asynccontextmanager
async def session(served: Served, **options: Any) -> AsyncIterator[Any]:
    """A WebSocket."""
    headers = options.pop("additional_headers", {"x-api-key": KEY})
    url = f"ws://127.0.0.1:{served.port}/ws"
    async with connect(url, compression=None, max_size=None, proxy=None, additional_headers=headers, **options) as one:
        yield one


async def ask(connection: Any, kind: str, data: dict[str, Any]) -> Any:
    """One request and its reply."""
    await connection.send(json.dumps({"type": kind, "data": data}))
    reply = json.loads(await connection.recv())
    if reply["type"] != "observation":
        raise RuntimeError(f"the server answered {reply}")
    return reply["data"]


def action_of(env: MathMultiTurnEnv, *place: int) -> Ids:
    """An action of 512 tokens that no other place has; one of four ends with an answer."""
    rng = np.random.default_rng(derive_seed("benchmark", *place))
    ids = rng.integers(env.dialogue.vocab_size, size=ACTION)
    if rng.random() < 0.25:
        answer = completion_ids(env.dialogue, rf"\boxed{{{rng.integers(10)}}}")
        ids[-len(answer) :] = answer
    return ids


class Compared:
    """A session's environment in this process, to compare every reply with."""

    def __init__(self, first: MathMultiTurnEnv) -> None:
        self.env = MathMultiTurnEnv(first.source, first.dialogue.tokenizer, max_completion_tokens=ACTION)
        self.context: Ids = np.zeros(0, np.int64)

    def reset(self, seed: int, index: int, reply: Any) -> None:
        """Raises where the reply to a reset is another one than here."""
        expected, info = self.env.reset(seed=seed, options={"index": index})
        self.context = np.array(reply["observation"]["tokens"], np.int64)
        assert np.array_equal(self.context, expected), f"session {seed}: another prompt"
        assert info_from_record(reply["observation"]["info"]) == info, f"session {seed}: another info"

    def step(self, action: Ids, reply: Any) -> None:
        """Raises where the reply to an action is another one than here."""
        shown = reply["observation"]
        expected, reward, terminated, truncated, info = self.env.step(action)
        self.context = np.concatenate([self.context[: shown["start"]], np.array(shown["tokens"], np.int64)])
        assert np.array_equal(self.context, expected), f"{info['problem_id']}: other ids"
        there = reply["reward"], reply["done"], shown["truncated"], info_from_record(shown["info"])
        assert there == (reward, terminated or truncated, truncated, info), f"{info['problem_id']}: {there}"


async def play(
    served: Served, number: int, until: float, think: float, seconds: list[float], compared: Compared | None, env: Any
) -> int:
    """One session that plays episode after episode; returns how many it began."""
    rng, episode = np.random.default_rng(number), 0
    async with session(served) as connection:
        await asyncio.sleep(think * rng.random())
        while time.monotonic() < until:
            reply = await ask(connection, "reset", {"seed": number, "index": episode, "send_tokens": "new"})
            if compared is not None:
                compared.reset(number, episode, reply)
            turn = 0
            while not reply["done"] and time.monotonic() < until:
                action = action_of(env, number, episode, turn)
                message = {"text": "", "tokens": action.tolist()}
                if think:
                    await asyncio.sleep(think * rng.uniform(0.5, 1.5))
                began = time.perf_counter()
                reply = await ask(connection, "step", message)
                seconds.append(time.perf_counter() - began)
                if compared is not None:
                    compared.step(action, reply)
                turn += 1
            episode += 1
    return episode


async def load(
    served: Served,
    sessions: int,
    duration: float,
    think: float,
    *,
    compare: bool = False,
    seconds: list[float] | None = None,
) -> dict[str, Any]:
    """Many sessions at once; the first error of any of them ends the run. What a step took is added to `seconds`."""
    env = MathMultiTurnEnv(tokenizer=TOKENIZER, max_completion_tokens=ACTION)
    compared = [Compared(env) if compare else None for _ in range(sessions)]
    seconds = [] if seconds is None else seconds
    cpu, own, began = served.cpu_s(), time.process_time(), time.monotonic()
    players = [
        play(served, number, began + duration, think, seconds, compared[number], env) for number in range(sessions)
    ]
    async with asyncio.timeout(duration + 120):
        episodes = await asyncio.gather(*players)
    took, own = time.monotonic() - began, time.process_time() - own
    return {
        "sessions": sessions,
        "seconds": took,
        "episodes": sum(episodes),
        "steps": len(seconds),
        "steps_per_s": len(seconds) / took,
        "server_cpu_ms_per_step": 1e3 * (served.cpu_s() - cpu) / max(1, len(seconds)),
        "client_cpu_ms_per_step": 1e3 * own / max(1, len(seconds)),
        **milliseconds(seconds),
    }


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Percentiles."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": at(1.0)}


def local_step() -> dict[str, float]:
    """The same actions in the environment of this process."""
    env = MathMultiTurnEnv(tokenizer=TOKENIZER, max_completion_tokens=ACTION)
    seconds = []
    for episode in range(100):
        env.reset(seed=1, options={"index": episode})
        for turn in range(env.num_turns):
            action = action_of(env, 1, episode, turn)
            began = time.perf_counter()
            env.step(action)
            seconds.append(time.perf_counter() - began)
    return {"p50_ms": 1e3 * statistics.median(seconds), "p99_ms": 1e3 * sorted(seconds)[int(0.99 * len(seconds))]}


# ---- bad clients


async def malformed(served: Served) -> None:
    """Sends what is no request, again and again."""
    rng = np.random.default_rng()
    messages = ["", "[]", "{", '{"type": "jump"}', '{"type": "step", "data": {"tokens": [1e99]}}', "\x00" * 100]
    messages += ["[" * 10**5, '{"type": "step", "data": {"text": "\\ud800", "tokens": [' + "9" * 6000 + "]}}"]
    async with session(served) as connection:
        while True:
            await connection.send(messages[rng.integers(len(messages))])
            await connection.recv()
            await asyncio.sleep(0.01)


async def oversized(served: Served) -> None:
    """Sends two megabytes."""
    async with session(served) as connection:
        await connection.send("x" * 2**21)
        await connection.recv()


async def unauthorized(served: Served) -> None:
    """Guesses a key."""
    async with session(served, additional_headers={"x-api-key": os.urandom(8).hex()}):
        pass


async def abandoned(served: Served) -> None:
    """Begins an episode and is not heard of again."""
    async with session(served, ping_interval=None) as connection:
        await ask(connection, "reset", {"seed": 0})
        await connection.wait_closed()


async def slow_reader(served: Served) -> None:
    """Asks for whole contexts and reads none."""
    async with session(served, max_queue=1) as connection:
        message = json.dumps({"type": "reset", "data": {"seed": 0, "send_tokens": "all"}})
        while True:
            await connection.send(message)
            await asyncio.sleep(0)  # a full buffer waits by itself, one that is not yet would not


async def slow_head(served: Served) -> None:
    """Sends a request letter by letter."""
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        for letter in b"GET /health HTTP/1.1\r\nHost: x\r\n" * 100:
            writer.write(bytes([letter]))
            await writer.drain()
            await asyncio.sleep(0.2)
    finally:
        writer.close()


async def half_heads(served: Served) -> None:
    """Keeps connections whose second request never ends; the server has to end them."""
    pairs = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(HALF_HEADS)]
    try:
        for _, writer in pairs:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHo")
        for reader, _ in pairs:
            while await reader.read(2**16):
                pass
    finally:
        for _, writer in pairs:
            writer.close()


async def flood(served: Served) -> None:
    """Asks for a reset without a key, as fast as a connection takes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        for _ in range(200):
            writer.write(b"POST /reset HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()
            await reader.readuntil(b"}")
    finally:
        writer.close()


BAD: dict[str, Callable[[Served], Any]] = {
    "malformed": malformed,
    "oversized": oversized,
    "unauthorized": unauthorized,
    "abandoned": abandoned,
    "slow_reader": slow_reader,
    "slow_head": slow_head,
    "half_heads": half_heads,
    "flood": flood,
}


async def repeat(kind: str, served: Served, tries: dict[str, int]) -> None:
    """A bad client that comes back whenever it is thrown out."""
    while True:
        tries[kind] = tries.get(kind, 0) + 1
        with suppress(ConnectionClosed, InvalidStatus, OSError, TimeoutError, RuntimeError):
            await BAD[kind](served)
        await asyncio.sleep(0.2)


async def bad_clients(served: Served, duration: float) -> dict[str, int]:
    """Four bad clients of each kind for a while; returns how often each came."""
    tries: dict[str, int] = {}
    tasks = [asyncio.create_task(repeat(kind, served, tries)) for kind in BAD for _ in range(BAD_OF_A_KIND)]
    await asyncio.sleep(duration)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=30)  # a time-out of their own can swallow the cancellation
    return tries


async def load_beside_bad_clients(served: Served, args: argparse.Namespace) -> dict[str, Any]:
    """The "thinking" sessions, with bad clients in a process of their own beside them."""
    before, memory, duration = served.counts(), [served.memory_mb()], 60 * args.bad_minutes
    seconds: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(60)
            memory.append(await asyncio.to_thread(served.memory_mb))
            so_far = {"minute": len(memory) - 1, "steps": len(seconds), "memory_mb": memory[-1]}
            print(json.dumps({**so_far, **milliseconds(seconds)}), file=sys.stderr)

    command = [sys.executable, __file__, "--bad-clients-of", str(served.port), "--seconds", str(duration)]
    other = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    watching = asyncio.create_task(watch())
    try:
        figures = await load(served, args.good, duration, args.think, compare=True, seconds=seconds)
        said, _ = await other.communicate()
    finally:
        watching.cancel()
        if other.returncode is None:
            other.terminate()
    after = served.counts()
    refused = {
        name.split('"')[1]: value - before.get(name, 0.0)
        for name, value in after.items()
        if name.startswith("mathturn_refused_total")
    }
    bad = {"bad_clients_at_once": BAD_OF_A_KIND * len(BAD), "tries": json.loads(said), "refused": refused}
    checked = {"replies_compared": figures["steps"] + figures["episodes"], "mixed_up": 0}
    return {**figures, **checked, **bad, "memory_mb_by_minute": [*memory, served.memory_mb()]}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of the soak; 0 leaves it out")
    parser.add_argument("--bad-minutes", type=float, default=0.5, help="of the part with bad clients")
    parser.add_argument("--sessions", type=int, default=256, help="of the soak")
    parser.add_argument("--good", type=int, default=32, help="sessions of every other part")
    parser.add_argument("--think", type=float, default=0.1, help="seconds that a thinking session waits")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the parts without bad clients")
    parser.add_argument("--tokenizer", default="builtin")
    parser.add_argument("--out", default="runs/benchmarks/serve.json")
    parser.add_argument(
        "--bad-clients-of", type=int, metavar="PORT", help="be the bad clients of a server, nothing else"
    )
    args = parser.parse_args()
    if args.bad_clients_of is not None:
        print(json.dumps(asyncio.run(bad_clients(Served(args.bad_clients_of), args.seconds))))
        return
    global TOKENIZER
    TOKENIZER = args.tokenizer
    files = 2 * args.sessions + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(files, hard)), hard))
    served = Served.start(args.tokenizer, args.sessions)
    try:
        report = asyncio.run(measure(served, args))
    finally:
        served.close()
    print(json.dumps(report, indent=2))
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


async def measure(served: Served, args: argparse.Namespace) -> dict[str, Any]:
    """All parts, one after the other."""
    report: dict[str, Any] = {
        "command": "python benchmarks/serve.py " + " ".join(sys.argv[1:]),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "tokenizer": args.tokenizer,
        "action_tokens": ACTION,
        "goal": {"p99_ms": 25.0, "sessions": 256, "minutes": 10},
        "memory_mb": {"start": served.memory_mb()},
        "local_step": local_step(),
    }
    await load(served, args.good, 5.0, 0.0)  # warms up
    report["steps_busy"] = await load(served, args.good, args.seconds, 0.0)
    report["steps_thinking"] = await load(served, args.good, args.seconds, args.think)
    report["bad_clients"] = await load_beside_bad_clients(served, args)
    report["memory_mb"]["before_soak"] = served.memory_mb()
    if args.minutes:
        soak = await load(served, args.sessions, 60 * args.minutes, 5 * args.think, compare=True)
        report["soak"] = {**soak, "replies_compared": soak["steps"] + soak["episodes"], "mixed_up": 0, "errors": 0}
    report["memory_mb"]["end"] = served.memory_mb()
    report["load_after"] = os.getloadavg()[0]
    counts = served.counts()
    report["server_errors"] = {
        name: value for name, value in counts.items() if name.startswith("mathturn_errors_total")
    }
    return report


TOKENIZER = "builtin"

if __name__ == "__main__":
    main()
