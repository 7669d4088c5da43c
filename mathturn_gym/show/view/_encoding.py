"""Episodes as the page carries them: blocks of a few hundred, each in three parts that are unpacked when needed.

    index    columns of what the list shows and filters by; unpacked at once
    texts    the dialogues; unpacked to search and to read
    tokens   a vocabulary of the block's ids, and a number per token and column; unpacked to look at tokens

A part is deflated and in base64: small, quick to unpack in a browser, and no text of a model ever stands in the HTML.
`data.js` is the reader.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.base.render import STATUSES
from mathturn_gym.base.text import TokenTexts
from mathturn_gym.show.formulas import FormulaSetter, formulas_in
from mathturn_gym.show.view.records import Message, ViewEpisode
from mathturn_gym.types import NO_VERSION
from mathturn_gym.verifier import answer_key

BLOCK_SIZE: Final = 256
_SNIPPET: Final = 160
_LETTER: Final = {status: style.letter for status, style in STATUSES.items()}
_UNJUDGED: Final = "-"
_ALIGNMENT: Final = 4
_TEX: Final = re.compile(r"[\\^_{]")


@dataclass(frozen=True, slots=True)
class Block:
    """A few hundred episodes, packed."""

    index: str  # columns of the list
    texts: str  # dialogues
    tokens: str  # tokens and their numbers

    def to_json(self) -> dict[str, str]:
        """As JSON types."""
        return {"index": self.index, "texts": self.texts, "tokens": self.tokens}


def blocks(episodes: Sequence[ViewEpisode], texts: TokenTexts) -> Iterator[Block]:
    """All episodes, in order, in blocks of at most `BLOCK_SIZE`."""
    setter = FormulaSetter()
    for start in range(0, len(episodes), BLOCK_SIZE):
        part = episodes[start : start + BLOCK_SIZE]
        yield Block(
            pack_json(_index(part)),
            pack_json([_dialogue(episode, texts, setter) for episode in part]),
            _pack(_tokens(part, texts)),
        )


def pack_json(value: Any) -> str:
    """JSON types, deflated and in base64; NaN and infinities become null, which JSON knows.

    What a Parquet file has and JSON has not (dates, bytes, decimals) becomes text.
    """
    # NaN is no JSON: `JSON.parse` would refuse all of the page.
    return _pack(json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), default=str).encode())


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def _index(episodes: Sequence[ViewEpisode]) -> dict[str, list[Any]]:
    rows = [_row(episode) for episode in episodes]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _row(episode: ViewEpisode) -> dict[str, Any]:
    answers = [message for message in episode.messages if message.role == "assistant"]
    logprob = episode.values.get("logprob")
    known = np.zeros(0) if logprob is None else logprob[~np.isnan(logprob)]
    return {
        "problem": episode.problem_id,
        "index": episode.index,
        "group": episode.group,
        "reward": episode.reward,
        "solved": episode.solved,
        "statuses": "".join(_UNJUDGED if a.verdict is None else _LETTER[a.verdict.status] for a in answers),
        "stop": episode.stop_reason,
        "family": episode.family,
        "level": episode.level,
        "tokens": len(episode.ids),
        "own": int(episode.mask.sum()),
        "logprob": float(known.mean()) if known.size else None,
        "version": _version(episode.versions),
        "repeated": _repeats(answers),
        "cut": any(answer.truncated for answer in answers),
        "snippet": _snippet(episode.messages),
    }


def _repeats(answers: Sequence[Message]) -> bool:
    """Returns True where an answer that was not right is given again."""
    keys = [answer_key(a.verdict.answer) for a in answers if a.verdict and a.verdict.answer and not a.verdict.correct]
    return len(set(keys)) < len(keys)


def _version(versions: npt.NDArray[np.int32] | None) -> int | None:
    """The latest version that sampled a token."""
    if versions is None or not len(versions) or versions.max() == NO_VERSION:
        return None
    return int(versions.max())


def _snippet(messages: Sequence[Message]) -> str:
    """The problem's first words."""
    text = next((message.text for message in messages if message.role == "user" and message.text), "")
    return " ".join(text[: 4 * _SNIPPET].split())[:_SNIPPET]


def _dialogue(episode: ViewEpisode, texts: TokenTexts, setter: FormulaSetter) -> dict[str, Any]:
    return {
        "messages": [_message(episode, message, texts, setter) for message in episode.messages],
        "sent": _prompt_as_sent(episode, texts),
        "gold": list(episode.gold),
        # a gold answer is a formula without its dollars.
        "goldFormulas": [setter(gold) if _TEX.search(gold) else None for gold in episode.gold],
        "facts": dict(episode.facts),
    }


def _prompt_as_sent(episode: ViewEpisode, texts: TokenTexts) -> str | None:
    """Returns the prompt with its system message and template, as the policy got it; None where that is unknown."""
    prompt = next((message for message in episode.messages if message.role == "user"), None)
    if prompt is None or prompt.end <= prompt.start or prompt is not episode.messages[0]:
        return None
    return _text_of(episode, prompt, texts)


def _text_of(episode: ViewEpisode, message: Message, texts: TokenTexts) -> str | None:
    """Returns the text of a message's tokens."""
    if episode.token_texts is not None:
        return "".join(episode.token_texts[message.start : message.end])
    return texts.decode(episode.ids[message.start : message.end].tolist())


def _formulas(text: str | None, setter: FormulaSetter) -> list[list[Any]] | None:
    """Returns the formulas of a text that can be set, as [start, end, tree] in a browser's units."""
    if text is None or not ("$" in text or "\\" in text):
        return None
    found = ((one, setter(one.inner, display=one.display)) for one in formulas_in(text))
    return [[*(_utf16(text, (one.start, one.end)) or ()), tree] for one, tree in found if tree is not None] or None


def _message(episode: ViewEpisode, message: Message, texts: TokenTexts, setter: FormulaSetter) -> dict[str, Any]:
    """A message with what it has; what it does not have is left out."""
    text = _text_of(episode, message, texts) if message.text is None else message.text
    fields: dict[str, Any] = {"role": message.role, "text": text, "start": message.start, "end": message.end}
    if message.verdict is not None:
        verdict = message.verdict
        fields |= {"status": _LETTER[verdict.status], "reason": verdict.reason, "answer": verdict.answer}
        fields |= {"span": _utf16(message.text, verdict.span), "tier": verdict.tier, "rule": verdict.rule}
        fields |= {"score": verdict.value}
    fields |= {
        "formulas": _formulas(text, setter),
        "reward": message.reward,
        "budget": message.budget,
        "cut": message.truncated or None,
    }
    return {name: value for name, value in fields.items() if value is not None or name == "text"}


def _utf16(text: str | None, span: tuple[int, int] | None) -> list[int] | None:
    """A span in the units that a browser counts in: characters beyond U+FFFF are two."""
    if text is None or span is None:
        return None
    return [len(text[:end].encode("utf-16-le", "surrogatepass")) // 2 for end in span]


def _tokens(episodes: Sequence[ViewEpisode], texts: TokenTexts) -> bytes:
    """A header in JSON, then columns of numbers, one episode after the other."""
    places, vocabulary = _vocabulary(episodes, texts)
    names = sorted({name for episode in episodes for name in episode.values})
    columns: list[tuple[str, npt.NDArray[Any]]] = [
        ("token", places),
        ("mask", _joined([episode.mask for episode in episodes], np.uint8)),
    ]
    for name in names:
        rows = [episode.values.get(name, np.full(len(episode.ids), np.nan)) for episode in episodes]
        columns.append((f"value:{name}", _joined(rows, np.float32)))
    if any(episode.versions is not None for episode in episodes):
        rows = [np.full(len(e.ids), NO_VERSION) if e.versions is None else e.versions for e in episodes]
        columns.append(("version", _joined(rows, np.int32)))
    header = {
        "lengths": [len(episode.ids) for episode in episodes],
        "columns": [[name, column.dtype.str[1:], len(column)] for name, column in columns],
        "ids": [token for token, _ in vocabulary],
        "texts": [text for _, text in vocabulary],
    }
    parts = [json.dumps(header, separators=(",", ":")).encode(), *(column.tobytes() for _, column in columns)]
    return len(parts[0]).to_bytes(_ALIGNMENT, "little") + b"".join(_aligned(part) for part in parts)


def _aligned(data: bytes) -> bytes:
    """The data with zeros to the next multiple of four: a browser reads numbers in place, at such offsets only."""
    return data + bytes(-len(data) % _ALIGNMENT)


def _vocabulary(
    episodes: Sequence[ViewEpisode], texts: TokenTexts
) -> tuple[npt.NDArray[np.uint32], list[tuple[int, str | None]]]:
    """The place of each token in the block's vocabulary, and the vocabulary: ids with their texts."""
    ids, places = np.unique(_joined([episode.ids for episode in episodes], np.int64), return_inverse=True)
    if all(episode.token_texts is None for episode in episodes):
        return places.astype("<u4"), [(token, texts(token)) for token in ids.tolist()]
    # Some logs say themselves what their tokens are, and may have no ids at all: then the pair is what counts.
    said: list[str | None] = []
    for episode in episodes:
        said += episode.token_texts or [texts(token) for token in episode.ids.tolist()]
    known: dict[tuple[int, str | None], int] = {}
    pairs = zip(ids[places].tolist(), said, strict=True)
    return np.array([known.setdefault(pair, len(known)) for pair in pairs], "<u4"), list(known)


def _joined(rows: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    """All rows end to end, little-endian."""
    return np.concatenate([np.zeros(0, dtype), *rows]).astype(np.dtype(dtype).newbyteorder("<"))
