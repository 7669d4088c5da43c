"""Writes the recordings in `data/` with our compat agent: `python tests/neighbors/areal/make_data.py`.

`test_recordings.py` holds their hand-checked expectations, so that a change of the agent cannot change both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from areal_replay import record

from mathturn_gym.env.dialogue import Dialogue

DIALOGUE = Dialogue("builtin")
END = list(DIALOGUE.end_of_turn)


def say(text: str) -> list[int]:
    ids: list[int] = DIALOGUE.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def turn(text: str, verdict: dict[str, Any], *, cut_off: bool = False, version: int = 0) -> dict[str, Any]:
    ids = say(text) + ([] if cut_off else END)
    logprobs = [-(k + 1) / 8 for k in range(len(ids))]
    return {
        "completion_ids": ids,
        "completion_logprobs": logprobs,
        "no_eos": cut_off,
        "version_start": version,
        "version_end": version,
        **verdict,
    }


def inputs(*turns: dict[str, Any], qid: str = "own/1@idx:0-0", **config: Any) -> dict[str, Any]:
    return {
        "tokenizer": "builtin",
        "agent_config": {"num_turns": len(turns), **config},
        "gconfig": {"n": 4, "max_new_tokens": 64, "temperature": 1.0},
        "env": {"mode": "pattern"},
        "schedule": "sequential",
        "episodes": [
            {
                "qid": qid,
                "prompt_token_ids": DIALOGUE.prompt_ids("Solve 3x+4=19 for x.").tolist(),
                "prompt_messages": [{"role": "user", "content": "Solve 3x+4=19 for x."}],
                "task_ids": [2],
                "now_timestamp": 1_700_000_000.25,
                "turns": list(turns),
            }
        ],
    }


RECORDINGS = {
    "own_two_turns": inputs(
        turn("\\boxed{4}", {"success": [False]}, version=3),
        turn("\\boxed{5}", {"success": [True]}, version=4),
        turn_level_discount=0.5,
    ),
    "own_partial_score": inputs(
        turn("\\boxed{4", {"success": [0.25]}, cut_off=True), turn("\\boxed{5}", {"success": [0]}), reward_scaling=2.0
    ),
    "own_env_raises": inputs(
        turn("\\boxed{4}", {"success": [False]}),
        turn("\\boxed{", {"raise": {"type": "OSError", "message": "disk full"}}),
    ),
}


def main() -> None:
    for name, one in RECORDINGS.items():
        made = record(one, lambda tokenizer: tokenizer, name)
        path = Path(__file__).parent / "data" / f"{name}.json"
        path.write_text(json.dumps(made, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
