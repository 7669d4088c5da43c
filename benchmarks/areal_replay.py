"""Plays recordings of the original agent again and compares everything: `python benchmarks/areal_replay.py PATH …`.

A recording is one JSON object: `inputs` (tokenizer, arguments, completions, verdicts) and `outputs` (observations,
calls of the environment, exceptions, samples, log files). `replay` plays the inputs with `MathMultiTurnAgent(compat=
True)`, `replay_env` with the environment (`feedback="areal-v0.3"`) and `ReturnsWrapper`; both list what differs.
`record` makes a recording of one's own.
"""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mathturn_gym.base.files import parse_json
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.neighbors.areal.agent import MathMultiTurnAgent
from mathturn_gym.neighbors.areal.dialogue import PROMPT_IDS, areal_feedback
from mathturn_gym.neighbors.areal.protocol import (
    BundledGenerationOutputs,
    EnvironmentService,
    GenerationHyperparameters,
)
from mathturn_gym.neighbors.areal.sample import SequenceSample, prompt_sample
from mathturn_gym.types import Completion, Episode, Problem
from mathturn_gym.verifier import extract

SCHEMA: Final = "areal-math-multi-turn-oracle/1"
_COMPARED: Final = (
    *("packed_input_ids", "packed_logprobs", "packed_prompts", "prompt_mask"),
    *("rewards", "seq_no_eos_mask"),
)
Recording = Mapping[str, Any]
Tokenizers = Callable[[str], Any]


def replay(recording: Recording, tokenizers: Tokenizers) -> list[str]:
    """Plays a recording's inputs with the agent; returns what differs from its outputs, [] where nothing does.

    Args:
        recording: As `json.load` gives it.
        tokenizers: From a tokenizer's name to what `load_tokenizer` takes.
    """
    made = play(recording["inputs"], tokenizers, recording["outputs"]["episodes"])
    differences: list[str] = []
    for k, (ours, theirs) in enumerate(zip(made["episodes"], recording["outputs"]["episodes"], strict=True)):
        differences += differences_at(f"episodes[{k}]", ours, comparable(theirs))
    for name in ("log_files", "files_outside_log_root"):
        if name in recording["outputs"]:
            differences += differences_at(name, made[name], recording["outputs"][name])
    return differences


def record(inputs: Mapping[str, Any], tokenizers: Tokenizers, name: str, note: str = "") -> dict[str, Any]:
    """A recording of what our agent makes of some inputs (every turn needs its `success`, or `raise`)."""
    verdicts = [
        {"env_calls": [_env_call(turn) for turn in episode["turns"]], "exception": None}
        for episode in inputs["episodes"]
    ]
    outputs = play(inputs, tokenizers, verdicts)
    return {"schema": SCHEMA, "name": name, "note": note, "inputs": dict(inputs), "outputs": outputs}


def _env_call(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {key: turn[key] for key in ("success", "raise") if key in turn}


# ---- the agent


def play(
    inputs: Mapping[str, Any], tokenizers: Tokenizers, episodes: Sequence[Mapping[str, Any]], *, compat: bool = True
) -> dict[str, Any]:
    """Runs the agent on a recording's inputs.

    Args:
        inputs: Of a recording.
        tokenizers: From a tokenizer's name to what `load_tokenizer` takes.
        episodes: The recorded outputs' episodes: `env_calls` has the verdicts, `exception` what they raised.
        compat: With False the repaired agent plays, whose answers may differ: where the recording's environment
            compared boxes, they are compared again.

    Returns:
        Outputs as recordings have them.

    Raises:
        InvalidValueError: a query id or a version would have the original's log files written outside of the folder that
            is made for them.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "below" / "logs"  # a query id may climb out of it
        root.mkdir(parents=True)
        _check_places(root, inputs["episodes"])
        now = {"time": 0.0}
        agent = MathMultiTurnAgent(
            GenerationHyperparameters(**inputs["gconfig"]),
            tokenizers(inputs["tokenizer"]),
            str(root),
            **inputs["agent_config"],
            compat=compat,
            clock=lambda: now["time"],
        )
        gold = None if compat or inputs["env"]["mode"] != "boxed" else inputs["env"]["gold"]
        plays = [_Play(agent, *pair, now, gold) for pair in zip(inputs["episodes"], episodes, strict=True)]
        asyncio.run(_run_all(plays, concurrent=inputs["schedule"] == "concurrent"))
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {
            "episodes": [play.outputs for play in plays],
            "log_files": {
                str(path.relative_to(root)): path.read_bytes().decode() for path in files if path.is_relative_to(root)
            },
            "files_outside_log_root": [path.name for path in files if not path.is_relative_to(root)],
        }


def _check_places(root: Path, episodes: Iterable[Mapping[str, Any]]) -> None:
    """Raises where the original's log files, whose names are a version and a query id, leave the folder above `root`."""
    for episode in episodes:
        for turn in episode["turns"]:
            place = os.path.normpath(os.path.join(root, str(turn["version_start"]), str(episode["qid"])))  # noqa: PTH118
            if not Path(place).is_relative_to(root.parents[1]):
                raise InvalidValueError(
                    f"query id {episode['qid']!r} and version {turn['version_start']!r} would be a log file at {place!r}:"
                    " a recording is played in a folder of its own, and may climb one folder up"
                )


async def _run_all(plays: Sequence[_Play], concurrent: bool) -> None:
    if concurrent:
        await asyncio.gather(*(play.run() for play in plays))
        return
    for play in plays:
        await play.run()


class _Play(EnvironmentService):
    """One episode: its prompt, its policy (both queues) and its environment, all from the recording."""

    def __init__(
        self,
        agent: MathMultiTurnAgent,
        inputs: Mapping[str, Any],
        verdicts: Mapping[str, Any],
        now: dict[str, float],
        gold: str | None,
    ) -> None:
        self._agent, self._inputs, self._verdicts, self._now = agent, inputs, verdicts, now
        self._gold = gold
        self._asked = 0
        self.outputs: dict[str, Any] = {"obs": [], "env_calls": [], "exception": None, "samples": None}

    async def run(self) -> None:
        """Collects the trajectory; keeps what came of it."""
        (task_id,) = self._inputs.get("task_ids") or [None]
        prompt = prompt_sample(self._inputs["qid"], self._inputs["prompt_token_ids"], task_id)
        self._now["time"] = self._inputs["now_timestamp"]
        try:
            samples = await self._agent.collect_trajectory(prompt, self, self, self)
        except Exception as error:
            self.outputs["exception"] = {"type": type(error).__name__, "message": str(error)}
        else:
            self.outputs["samples"] = [described(sample) for sample in samples]

    async def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[None, dict[str, Any]]:
        """Sets the clock to this episode's time: agents read it right after."""
        self._now["time"] = self._inputs["now_timestamp"]
        return None, {}

    async def step(self, action: tuple[str, list[str]]) -> tuple[None, list[float], bool, bool, dict[str, Any]]:
        """Gives the recorded verdict, or raises the recorded exception."""
        qid, answers = action
        turn, calls = len(self.outputs["env_calls"]), self._verdicts["env_calls"]
        known = calls[turn] if turn < len(calls) else self._inputs["turns"][turn]
        if self._gold is not None:
            boxes = [extract(answer) for answer in answers]
            known = {"success": [box is not None and box.text == self._gold for box in boxes]}
        call = {"qid": qid, "answers": list(answers), **{k: v for k, v in known.items() if k in ("success", "raise")}}
        self.outputs["env_calls"].append(call)
        await asyncio.sleep(0)
        if "raise" in known:
            raise _exception(known["raise"], self._verdicts["exception"])
        return None, known["success"], True, False, {}

    async def put(self, item: Any) -> None:
        """Takes an observation."""
        qid, token_ids, gconfig = item
        self.outputs["obs"].append({"qid": qid, "token_ids": list(token_ids), "gconfig": dataclasses.asdict(gconfig)})
        await asyncio.sleep(0)

    async def get(self) -> BundledGenerationOutputs:
        """Replies with what it was given and the recorded completion."""
        turn = self._inputs["turns"][self._asked]
        context = self.outputs["obs"][self._asked]["token_ids"]
        self._asked += 1
        await asyncio.sleep(0)
        return BundledGenerationOutputs(
            qid=self._inputs["qid"],
            prompt_ids=context,
            seqs=[context + turn["completion_ids"]],
            logprobs=[[0.0] * (len(context) - 1) + turn["completion_logprobs"]],
            no_eos=[turn["no_eos"]],
            version_start=[turn["version_start"]],
            version_end=[turn["version_end"]],
        )


def _exception(raised: Any, known: Mapping[str, str] | None) -> Exception:
    """The exception that the recorded environment raised: of a built-in type, or of one made for its name."""
    if not isinstance(raised, Mapping):
        raised = known or {"type": str(raised).partition(":")[0].partition("(")[0], "message": str(raised)}
    kind = getattr(builtins, raised["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):  # `exec` is a built-in, too
        kind = type(raised["type"], (Exception,), {})
    error: Exception = kind(raised.get("message", ""))
    return error


# ---- the front door


def collect_episodes(inputs: Mapping[str, Any], tokenizers: Tokenizers, calls: Sequence[Any]) -> list[Episode]:
    """Plays a recording's inputs in `MathMultiTurn-v0` with the original's feedback, and returns the episodes.

    Args:
        inputs: Of a recording.
        tokenizers: From a tokenizer's name to what `load_tokenizer` takes.
        calls: Per episode its `env_calls`, which have the verdicts.
    """
    return [_play_env(inputs, tokenizers, *pair)[0] for pair in zip(inputs["episodes"], calls, strict=True)]


def _play_env(inputs: Mapping[str, Any], tokenizers: Tokenizers, episode: Any, calls: Any) -> tuple[Episode, list[str]]:
    """One episode in the environment, and the answers that were verified."""
    env = _front_door(inputs, tokenizers, episode, iter([call["success"][0] for call in calls]))
    env.reset(seed=0)
    answers = []
    for completion in _completions(episode["turns"]) or [Completion(np.zeros(0, np.int64))]:
        *_, info = env.step(completion)
        answers.append(info["response"])
    env.close()
    return info["trajectory"], answers[: len(episode["turns"])]


def _front_door(inputs: Mapping[str, Any], tokenizers: Tokenizers, episode: Any, verdicts: Iterator[Any]) -> Any:
    import gymnasium as gym

    import mathturn_gym  # noqa: F401 - registers the environments
    from mathturn_gym.wrappers import ReturnsWrapper

    config = dict(inputs["agent_config"])
    discount = config.pop("turn_level_discount", 1.0)
    problem = Problem(
        str(episode["qid"]), "as ids in the metadata", "none", metadata={PROMPT_IDS: episode["prompt_token_ids"]}
    )
    env = gym.make(
        "MathMultiTurn-v0",
        problems=problem,
        tokenizer=tokenizers(inputs["tokenizer"]),
        feedback=areal_feedback,
        verifier=lambda response, gold: next(verdicts),
        max_completion_tokens=inputs["gconfig"].get("max_new_tokens", 16384),
        **config,
    )
    return ReturnsWrapper(env, discount=discount)


def _completions(turns: Sequence[Mapping[str, Any]]) -> list[Completion]:
    """The completions; without their versions where these run backwards, which an `Episode` does not allow."""
    starts = [turn["version_start"] for turn in turns]
    known = starts == sorted(starts) and min(starts, default=0) >= 0
    return [
        Completion(
            np.array(turn["completion_ids"], np.int64),
            np.array(turn["completion_logprobs"], np.float32),
            truncated=turn["no_eos"],
            version_start=turn["version_start"] if known else 0,
        )
        for turn in turns
    ]


def replay_env(recording: Recording, tokenizers: Tokenizers) -> list[str]:
    """Plays a recording's inputs in the environment; returns what differs, [] where nothing does.

    Compared are ids, masks, log-probs, cut-off turns and returns with the recorded sample, rewards with the formula's
    value for the recorded verdicts, the ids before each turn with the recorded observations, and the verified texts
    with the recorded answers. Episodes that ended in an exception have no sample to compare with, and are left out.
    """
    from mathturn_gym.neighbors.areal.episodes import to_sequence_sample

    inputs = recording["inputs"]
    differences: list[str] = []
    for k, (played, outputs) in enumerate(zip(inputs["episodes"], recording["outputs"]["episodes"], strict=True)):
        if outputs["exception"] is not None:
            continue
        place, calls = f"episodes[{k}]", outputs["env_calls"]
        episode, answers = _play_env(inputs, tokenizers, played, calls)
        contexts = [turn.context.tolist() for turn in episode.turns]
        differences += differences_at(f"{place}.obs", contexts, [one["token_ids"] for one in outputs["obs"]])
        differences += differences_at(f"{place}.answers", [[text] for text in answers], [c["answers"] for c in calls])
        formula = [_formula(call["success"][0], inputs["agent_config"]) for call in calls]
        differences += differences_at(f"{place}.raw_rewards", episode.rewards.tolist(), formula)
        for theirs in outputs["samples"]:
            ours = described(to_sequence_sample(episode))
            for key in _COMPARED:
                differences += differences_at(f"{place}.data.{key}", ours["data"][key], theirs["data"][key])
                differences += differences_at(f"{place}.seqlens.{key}", ours["seqlens"][key], theirs["seqlens"][key])
    return differences


def _formula(score: float, config: Mapping[str, float]) -> float:
    return ((float(score) - 0.5) * 2 - config.get("reward_bias", 0.0)) * config.get("reward_scaling", 1.0)


# ---- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Replays every recording under the given files and folders; prints a line for each and the sum.

    A recording's tokenizer is looked up in `../tokenizers` beside its folder. Returns 0 where all agree.

    Raises:
        InvalidValueError: a file cannot be read, or is a recording that cannot be played.
    """
    paths = sys.argv[1:] if arguments is None else arguments
    files = [file for path in paths for file in _files(Path(path))]
    agreed = 0
    for file in files:
        differences = _differences(_json_of(file), file)
        agreed += not differences
        sys.stdout.write(f"{'ok  ' if not differences else 'FAIL'} {file}\n")
        for line in differences[:10]:
            sys.stdout.write(f"       {line}\n")
    sys.stdout.write(f"{agreed} of {len(files)} recordings agree\n")
    return 0 if files and agreed == len(files) else 1


def _differences(recording: Recording, file: Path) -> list[str]:
    """What differs when a file's recording is played by the agent and in the environment."""
    try:
        return [
            *(f"agent: {line}" for line in replay(recording, tokenizers_beside(file))),
            *(f"environment: {line}" for line in replay_env(recording, tokenizers_beside(file))),
        ]
    except Exception as error:  # its values go through agent, environment and numpy, which name no file
        raise InvalidValueError(f"{file} cannot be played: {type(error).__name__}: {error}") from error


def tokenizers_beside(file: Path) -> Tokenizers:
    """Finds the tokenizers of a recording: `../tokenizers/NAME`, and "builtin"."""
    return lambda name: name if name == "builtin" else str(file.resolve().parent.parent / "tokenizers" / name)


def _files(path: Path) -> Iterable[Path]:
    """The recordings at or below a path: the JSON files that say so."""
    candidates = [path] if path.is_file() else sorted(path.rglob("*.json"))
    return [one for one in candidates if "tokenizers" not in one.parts and _is_recording(one)]


def _json_of(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"{path} cannot be read: {error}") from error


def _is_recording(path: Path) -> bool:
    content = _json_of(path)
    return isinstance(content, dict) and content.get("schema") == SCHEMA and "inputs" in content


# ---- differences, down to the last bit


def described(sample: SequenceSample) -> dict[str, Any]:
    """A sample as recordings have it."""
    data = sample.data or {}
    return {
        "ids": sample.ids,
        "keys": sorted(sample.keys),
        "dtypes": {key: str(dtype) for key, dtype in sample.dtypes.items()},
        "trailing_shapes": {key: list(shape or ()) for key, shape in sample.trailing_shapes.items()},
        "seqlens": sample.seqlens,
        "data": {key: None if value is None else value.tolist() for key, value in data.items()},
        "tensor_dtypes": {key: str(value.dtype) for key, value in data.items() if value is not None},
        "tensor_shapes": {key: list(value.shape) for key, value in data.items() if value is not None},
        "metadata": sample.metadata,
    }


def comparable(episode: Mapping[str, Any]) -> dict[str, Any]:
    """An episode's outputs, without the message of a ValidationError (it has the validating library's version)."""
    kept = {key: episode[key] for key in ("obs", "env_calls", "exception", "samples")}
    if kept["exception"] is not None and kept["exception"]["type"] == "ValidationError":
        kept["exception"] = {"type": "ValidationError"}
    return kept


def differences_at(place: str, ours: Any, theirs: Any) -> list[str]:
    """Where two trees of JSON types differ; numbers are compared with ==, and True is not 1."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        keys = [*theirs, *(key for key in ours if key not in theirs and not place.endswith(".exception"))]
        found = []
        for key in keys:
            if key in theirs and key in ours:
                found += differences_at(f"{place}.{key}", ours[key], theirs[key])
            else:
                found.append(f"{place}.{key}: only {'ours' if key in ours else 'theirs'} has it")
        return found
    if isinstance(theirs, list) and isinstance(ours, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for k, pair in pairs if pair[0] is not pair[1] for line in differences_at(f"{place}[{k}]", *pair)]
    if ours == theirs and isinstance(ours, bool) == isinstance(theirs, bool):
        return []
    return [f"{place}: ours {_short(ours)}, theirs {_short(theirs)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


if __name__ == "__main__":
    sys.exit(main())
