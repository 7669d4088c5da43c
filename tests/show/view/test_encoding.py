"""What is packed is what was there: the blocks are unpacked here as the page unpacks them."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mathturn_gym.base.text import TokenTexts
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.episodes.returns import advantages
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view._encoding import BLOCK_SIZE, Block, blocks, pack_json
from mathturn_gym.show.view.records import Message, ViewEpisode, from_episodes
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Status, Verdict

NOTHING = TokenTexts(None)


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def read_json(text: str) -> Any:
    return json.loads(unpack(text))


def read_tokens(block: Block) -> dict[str, Any]:
    """The columns of a block's tokens, cut into episodes, as `data.js` cuts them."""
    data = unpack(block.tokens)
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    at = 4 + size + (-size % 4)
    ends = np.cumsum(header["lengths"])[:-1]
    columns = {}
    for name, kind, length in header["columns"]:
        assert at % 4 == 0
        column = np.frombuffer(data, np.dtype("<" + kind), length, at)
        columns[name] = np.split(column, ends)
        at += column.nbytes + (-column.nbytes % 4)
    assert at == len(data)
    return {**columns, "ids": header["ids"], "texts": header["texts"]}


def test_tokens_come_back_as_they_were(before: list[Episode]) -> None:
    tokenizer = load_tokenizer("builtin")
    (block,) = blocks(from_episodes(before), TokenTexts(tokenizer))
    found = read_tokens(block)
    for number, episode in enumerate(before):
        places = found["token"][number]
        assert [found["ids"][place] for place in places] == episode.ids.tolist()
        assert [found["texts"][place] for place in places] == [tokenizer.decode([i]) for i in episode.ids.tolist()]
        assert found["mask"][number].astype(bool).tolist() == episode.loss_mask.tolist()
        logprobs = found["value:logprob"][number]
        assert logprobs[episode.loss_mask].tobytes() == episode.logprobs[episode.loss_mask].tobytes()
        assert np.isnan(logprobs[~episode.loss_mask]).all()
        assert found["version"][number].tolist() == episode.versions.tolist()
        entropy = found["value:entropy"][number]
        assert entropy.tobytes() == episode.token_values["entropy"].tobytes()


def test_the_index_says_what_the_list_shows(before: list[Episode]) -> None:
    (block,) = blocks(from_episodes(before), NOTHING)
    index = read_json(block.index)
    assert index["problem"] == [e.problem_id for e in before]
    letters = {Status.RIGHT: "r", Status.WRONG: "w", Status.NO_ANSWER: "n", Status.UNDECIDED: "u"}
    assert index["statuses"] == ["".join(letters[v.status] for v in e.verdicts) for e in before]
    assert index["reward"] == [float(e.rewards.sum()) for e in before]
    assert index["own"] == [int(e.loss_mask.sum()) for e in before]
    assert index["family"] == [e.metadata["family"] for e in before]
    assert index["level"] == [str(e.metadata["level"]) for e in before]
    assert index["version"] == [3] * len(before)
    assert index["snippet"][0] == before[0].prompt


def test_dialogues_keep_texts_verdicts_rewards_and_budgets(before: list[Episode]) -> None:
    (block,) = blocks(from_episodes(before), NOTHING)
    for told, episode in zip(read_json(block.texts), before, strict=True):
        said = [message for message in told["messages"] if message["role"] == "assistant"]
        assert [m["text"] for m in said] == list(episode.responses)
        assert [[m["start"], m["end"]] for m in said] == episode.turn_spans.tolist()
        assert [m["reward"] for m in said] == episode.rewards.tolist()
        assert [m["budget"] for m in said] == list(episode.budgets)
        assert [m.get("answer") for m in said] == [v.answer for v in episode.verdicts]
        assert [m["text"] for m in told["messages"] if m["role"] == "user"][1:] == [f for f in episode.feedbacks if f]
        assert told["messages"][0]["text"] == episode.prompt
        assert told["gold"] == list(episode.gold)


def test_a_context_that_was_written_anew_is_a_part_of_its_own() -> None:
    grown = synthetic_episode(0, 0, [3, 2, 4], prompt=8, feedback=4, responses=("a", "b", "c"))
    anew = replace(
        grown, segment_starts=np.array([0, 11], np.int64)
    )  # the second turn was asked for in another context
    (block,) = blocks(from_episodes([anew]), NOTHING)
    (dialogue,) = read_json(block.texts)
    said = [(m["role"], m["start"], m["end"]) for m in dialogue["messages"]]
    assert said == [
        ("user", 0, 8),
        ("assistant", 8, 11),
        ("user", 11, 11),
        ("system", 11, 15),
        ("assistant", 15, 17),
        ("user", 17, 21),
        ("assistant", 21, 25),
    ]
    assert dialogue["messages"][2]["text"] == "again"
    assert "re-rendered: 4 tokens" in dialogue["messages"][3]["text"]


def test_where_an_answer_lies_is_counted_as_a_browser_counts() -> None:
    text = "🙂🙂 so 7"
    base = synthetic_episode(0, 0, [2])
    episode = replace(base, responses=(text,), verdicts=(Verdict(Status.RIGHT, answer="7", span=(6, 7)),))
    (block,) = blocks(from_episodes([episode]), NOTHING)
    start, end = read_json(block.texts)[0]["messages"][1]["span"]
    assert text.encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le") == text[6:7] == "7"


def test_advantages_of_groups_are_worked_out_where_nobody_noted_them(before: list[Episode]) -> None:
    shown = from_episodes(before)
    for one, episode, expected in zip(shown, before, advantages(before), strict=True):
        starts = episode.turn_spans[:, 0]
        assert one.values["advantage"][starts].tolist() == expected.tolist()
    assert all("advantage" not in one.values for one in from_episodes(before, credit=False))
    assert "advantage" not in from_episodes([replace(e, group=None) for e in before])[0].values
    noted = [replace(e, token_values={"advantage": np.full(len(e.ids), 7, np.float32)}) for e in before]
    assert set(from_episodes(noted)[0].values["advantage"].tolist()) == {7.0}


def test_episodes_without_texts_are_decoded_where_a_tokenizer_is_known() -> None:
    episode = synthetic_episode(0, 0, [3], vocab_size=400)
    tokenizer = load_tokenizer("builtin")
    (block,) = blocks(from_episodes([episode]), TokenTexts(tokenizer))
    messages = read_json(block.texts)[0]["messages"]
    assert messages[1]["text"] == tokenizer.decode(episode.turns[0].ids.tolist())
    (block,) = blocks(from_episodes([episode]), NOTHING)
    assert [m["text"] for m in read_json(block.texts)[0]["messages"]] == [None, None]
    assert set(read_tokens(block)["texts"]) == {None}
    (block,) = blocks(from_episodes([synthetic_episode(0, 0, [3], vocab_size=10**6)]), TokenTexts(tokenizer))
    assert None in read_tokens(block)["texts"]  # ids that the tokenizer does not have


def test_logs_that_say_themselves_what_tokens_are_need_no_ids() -> None:
    episode = ViewEpisode(
        "p",
        (Message("assistant", None, 0, 3),),
        ids=np.full(3, -1),
        mask=np.ones(3, np.bool_),
        token_texts=("a", "b", "a"),
    )
    (block,) = blocks([episode], NOTHING)
    found = read_tokens(block)
    assert [(found["ids"][p], found["texts"][p]) for p in found["token"][0]] == [(-1, "a"), (-1, "b"), (-1, "a")]
    assert read_json(block.texts)[0]["messages"][0]["text"] == "aba"


def test_blocks_have_at_most_so_many_episodes_and_columns_of_all() -> None:
    some = [synthetic_episode(0, i, [1]) for i in range(BLOCK_SIZE + 1)]
    some[3] = replace(some[3], token_values={"entropy": np.zeros(len(some[3].ids), np.float32)})
    parts = list(blocks(from_episodes(some), NOTHING))
    assert [len(read_json(part.index)["problem"]) for part in parts] == [BLOCK_SIZE, 1]
    entropy = read_tokens(parts[0])["value:entropy"]
    assert (np.isnan(entropy[2]).all(), entropy[3].tolist()) == (True, [0.0] * len(some[3].ids))
    assert list(blocks([], NOTHING)) == []


def test_numbers_that_json_does_not_have_become_null() -> None:
    assert read_json(pack_json({"a": [float("nan"), float("inf"), 1.5], 3: ("x",)})) == {
        "a": [None, None, 1.5],
        "3": ["x"],
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask": np.zeros(2, np.bool_)}, "mask has 2 entries for 3 tokens"),
        ({"values": {"x": np.zeros(4, np.float32)}}, "x has 4 entries for 3 tokens"),
        ({"token_texts": ("a",)}, "token_texts has 1 entries"),
        ({"messages": (Message("user", "", 2, 4),)}, r"message 0 has tokens \[2, 4\) of 3"),
    ],
)
def test_what_does_not_fit_its_tokens_is_refused(fields: dict[str, Any], message: str) -> None:
    known: dict[str, Any] = {"messages": (), "ids": np.zeros(3, np.int64), "mask": np.zeros(3, np.bool_)}
    with pytest.raises(InvalidValueError, match=message):
        ViewEpisode("p", **{**known, **fields})
    with pytest.raises(InvalidValueError, match="role must be one of"):
        Message("judge", "")
