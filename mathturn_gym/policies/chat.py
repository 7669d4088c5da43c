"""A model behind a chat API: messages out, text back; no token ids and no log-probs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from mathturn_gym.base.http import HttpClient, ServerGroup, servers_of
from mathturn_gym.env.dialogue import Dialogue, completion_ids
from mathturn_gym.errors import InvalidValueError, PolicyError, check_float, check_int
from mathturn_gym.types import Completion, Ids

_MOST_SEED: Final = 2**31  # servers read seeds as integers of 32 or 64 bits


class ChatPolicy:
    """Plays by texts, over any OpenAI-compatible `POST /chat/completions`: for evaluations, not for training.

    The environment is made with the built-in tokenizer, which keeps every text exactly. So budgets are counted in its ids (a byte
    or two each), answers have no log-probs, and the ids are not those that the model sampled.

    Args:
        url: What OpenAI's clients call `base_url`, e.g. "https://api.openai.com/v1".
        model: The model's name there.
        temperature: Sent as it is; None sends none.
        top_p: As `temperature`.
        api_key: Sent as a bearer token, never shown.
        timeout: Seconds that one attempt may take.
        retries: Further attempts of a request that failed for the server's sake.
        backoff: Seconds before the first retry; doubled with each.
        concurrency: Most connections at once.
        request: Further fields of the request, or other values for its fields; None leaves a field out (some models take
            `max_completion_tokens` in place of `max_tokens`).

    Raises:
        InvalidValueError: a value outside its range.
    """

    scheduler: Final = "async"

    def __init__(
        self,
        url: str,
        model: str,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 5,
        backoff: float = 0.5,
        concurrency: int = 64,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise InvalidValueError(f"model must be the model's name on the server, got {model!r}")
        self._servers, self._secrets = servers_of([url])
        self._api_key = api_key
        self._timeout = check_float("timeout", timeout, low=1e-3)
        self._retries = check_int("retries", retries, low=0)
        self._backoff = check_float("backoff", backoff, low=0.0)
        self._concurrency = check_int("concurrency", concurrency, low=1)
        self._fields = {"model": model, "temperature": temperature, "top_p": top_p}
        self._request = dict(request or {})
        self._dialogue = Dialogue("builtin")
        self.tokenizer = self._dialogue.tokenizer
        # By event loop, with the number of requests under way: a connection belongs to the loop that opened it.
        self._clients: dict[asyncio.AbstractEventLoop, tuple[HttpClient, int]] = {}

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """Continues a context by the model's next message.

        Args:
            context: int64 (L,), as the built-in chat template writes it.
            max_tokens: Sent to the server, whose tokens are longer than the built-in ones: what is over is cut off here.
            seed: Sent to the server.
            session: Unused: a chat API has no sessions.

        Raises:
            MissingDependencyError: httpx2 is not installed.
            PolicyError: the server refuses, or does not answer after all retries.
        """
        fields = {**self._fields, "max_tokens": max_tokens, "seed": None if seed is None else seed % _MOST_SEED}
        text, cut = await self._say({**fields, "messages": self.messages(context), **self._request})
        ids = completion_ids(self._dialogue, text)
        if cut:  # by the server's budget: the end of turn is not the model's
            ids = ids[: len(ids) - len(self._dialogue.end_of_turn)]
        return Completion(ids[:max_tokens], truncated=cut or len(ids) > max_tokens)

    def messages(self, context: Ids) -> list[dict[str, str]]:
        """The messages of a context, exactly: the ids of the template's marks are in no message's text.

        Args:
            context: int64 (L,), as the built-in chat template writes it; what follows its last end of turn is the prompt to answer.
        """
        start, end = self.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        found, ids = [], context.tolist()
        begins = [place for place, one in enumerate(ids) if one == start]
        for begin in begins:
            if end in ids[begin:]:
                role, _, content = self._dialogue.decode(context[begin + 1 : ids.index(end, begin)]).partition("\n")
                found.append({"role": role, "content": content})
        return found

    async def _say(self, fields: Mapping[str, Any]) -> tuple[str, bool]:
        group = ServerGroup(self._servers, timeout=self._timeout, retries=self._retries, backoff=self._backoff)
        async with self._connected() as client:
            try:
                return await group.ask("", lambda server: client.chat(server, fields))
            except PolicyError as error:  # an answer that is quoted may quote the request
                raise PolicyError(client.scrubbed(str(error))) from None

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[HttpClient]:
        """The client of the running event loop; the last request that uses it closes it, as nothing tells of a loop's end."""
        loop = asyncio.get_running_loop()
        client, users = self._clients[loop] if loop in self._clients else (self._client(), 0)
        self._clients[loop] = client, users + 1
        try:
            yield client
        finally:
            _, users = self._clients.pop(loop)
            if users > 1:
                self._clients[loop] = client, users - 1
            else:
                await client.close()

    def _client(self) -> HttpClient:
        return HttpClient(
            needed_by="ChatPolicy",
            timeout=self._timeout,
            connections=self._concurrency,
            api_key=self._api_key,
            secrets=self._secrets,
        )
