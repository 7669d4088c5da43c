"""TRL's tables, written by TRL's own trainer where it is installed, and rows of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.neighbors.export import to_trl
from mathturn_gym.show.view.adapters.trl import read_trl_table
from mathturn_gym.show.view.sources import read_curves, read_sets
from mathturn_gym.types import Episode

pa = pytest.importorskip("pyarrow")

SAMPLE = Path(__file__).parent / "data" / "trl_asynchronous_sample.json"


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.filterwarnings("ignore")  # TRL and its libraries warn of things of their own
def test_what_trls_trainer_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from mathturn_gym.testing import make_tokenizer

    tokenizer = make_tokenizer()
    size: Any = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
    seen: list[list[int]] = []

    def keep_tokens(prompts: list[Any], completion_ids: list[list[int]], log_extra: Any, **_: Any) -> list[float]:
        seen.extend(completion_ids)
        log_extra("completion_ids", completion_ids)
        return [float(k) for k in range(len(prompts))]

    args = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
        max_steps=2,
        logging_steps=1,
        save_steps=2,
        log_completions=True,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = Dataset.from_list([{"prompt": "1+1?"}] * 4)
    trainer = GRPOTrainer(
        model=model, reward_funcs=[keep_tokens], args=args, train_dataset=rows, processing_class=tokenizer
    )
    trainer.train()
    (found,) = [one for one in read_sets(tmp_path, "run") if one.format == "TRL"]
    assert found.left_out == []
    assert len(found.episodes) == 8
    assert sorted(e.ids[e.mask].tolist() for e in found.episodes) == sorted(seen)
    assert {e.reward for e in found.episodes} == {0.0, 1.0, 2.0, 3.0}
    assert {int(e.versions[e.mask].max()) for e in found.episodes if e.mask.any()} == {1, 2}  # type: ignore[index]
    assert len({e.group for e in found.episodes}) == 2
    assert len({e.problem_id for e in found.episodes}) == 1
    assert found.episodes[0].messages[0].text == "1+1?"
    assert all(len(set(e.values["advantage"][e.mask].tolist())) == 1 for e in found.episodes if e.mask.any())
    (curves,) = read_curves(tmp_path, "run")
    assert curves.columns["step"][:2] == [1.0, 2.0]
    assert "reward" in curves.columns


def table(**columns: Any) -> Any:
    known = {
        "step": [5, 5],
        "prompt": [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]] * 2,
        "completion": [
            [
                {"role": "assistant", "content": "3"},
                {"role": "user", "content": "no"},
                {"role": "assistant", "content": "2"},
            ]
        ]
        * 2,
        "accuracy": [1.0, 0.0],
        "format": [0.5, None],
        "advantage": [0.7, -0.7],
        "note": ["a", "b"],
    }
    return pa.table({**known, **columns})


def test_conversations_keep_their_turns_and_rewards_are_summed() -> None:
    (first, second), left_out = read_trl_table(table(), "t")
    assert left_out == []
    assert [(m.role, m.text) for m in first.messages] == [
        ("system", "Be brief."),
        ("user", "1+1?"),
        ("assistant", "3"),
        ("user", "no"),
        ("assistant", "2"),
    ]
    assert (first.reward, second.reward) == (1.5, 0.0)
    assert dict(first.facts) == {"accuracy": 1.0, "format": 0.5, "note": "a", "advantage": 0.7}
    assert first.problem_id == second.problem_id
    assert len(first.ids) == 0


def test_tokens_are_laid_on_the_turns_they_are_of() -> None:
    (episode, _), _ = read_trl_table(
        table(
            prompt_ids=[[1, 2, 3]] * 2,
            completion_ids=[[4, 5, 6, 7]] * 2,
            env_mask=[[1, 0, 1, 1]] * 2,
            logprobs=[[-1.0, 0.0, -2.0, -3.0]] * 2,
        ),
        "t",
    )
    assert episode.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    spans = [(m.role, m.text, m.start, m.end) for m in episode.messages]
    assert spans[1:] == [
        ("user", "1+1?", 0, 3),
        ("assistant", "3", 3, 4),
        ("user", "no", 4, 5),
        ("assistant", "2", 5, 7),
    ]
    assert episode.values["logprob"][episode.mask].tolist() == [-1.0, -2.0, -3.0]
    assert np.isnan(episode.values["logprob"][~episode.mask]).all()
    assert set(episode.values["advantage"][episode.mask].tolist()) == {np.float32(0.7)}
    assert episode.versions is not None
    assert episode.versions.tolist() == [-1, -1, -1, 5, -1, 5, 5]


def test_turns_that_no_message_can_be_laid_on_are_shown_without_text() -> None:
    (episode, _), _ = read_trl_table(
        table(prompt_ids=[[1]] * 2, completion_ids=[[4, 5, 6]] * 2, env_mask=[[1, 1, 1]] * 2), "t"
    )
    assert [(m.role, m.text) for m in episode.messages][-1] == ("assistant", None)


def test_rows_of_to_trl_are_read(tmp_path: Path, before: list[Episode]) -> None:
    columns = to_trl(before)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    (found,) = read_sets(write_rows(tmp_path / "rows.jsonl", *rows), "run")
    for one, episode in zip(found.episodes, before, strict=True):
        assert one.ids.tolist() == episode.ids.tolist()
        assert one.mask.tolist() == episode.loss_mask.tolist()
        assert one.values["logprob"][one.mask].tolist() == episode.logprobs[episode.loss_mask].tolist()
        assert sum(m.role == "assistant" for m in one.messages) == episode.num_turns
    assert found.episodes[0].problem_id == found.episodes[1].problem_id != found.episodes[4].problem_id


def test_samples_of_asynchronous_grpo_are_read(tmp_path: Path) -> None:
    sample = json.loads(SAMPLE.read_text())
    (found,) = read_sets(write_rows(tmp_path / "s.jsonl", sample, {**sample, "completion_mask": [1]}), "run")
    (episode,) = found.episodes
    assert [(m.role, m.start, m.end) for m in episode.messages] == [("user", 0, 2), ("assistant", 2, 4)]
    assert episode.values["logprob"][2:].tolist() == [-0.5, -0.25]
    assert episode.group == "3"
    assert found.left_out == ["s.jsonl, line 2: completion_mask has 1 entries for 4 input_ids"]


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="it lacks completion and has step, prompt"):
        read_trl_table(pa.table({"step": [1], "prompt": ["a"]}), "t.parquet")
    (_, left_out) = read_trl_table(table(completion_ids=[[1], [2]], logprobs=[[0.1, 0.2], [0.0]]), "t")
    assert left_out == ["t, row 0: logprob has 2 entries for 1 completion ids"]
