"""Where a run's metrics and a few of its episodes are shown beside its folder: TensorBoard, and one tracker of the user's.

    tracker="wandb:PROJECT"       Weights & Biases: metrics, and episodes as a table of messages
    tracker="trackio:PROJECT"     trackio: metrics, and episodes as traces
    tracker="mlflow:EXPERIMENT"   MLflow: metrics, and episodes as text artifacts

Where they send what they are given, and with which key, is each library's own setting. A tracker never makes a run wait:
its calls are made by a thread of its own, and dropped where it falls behind.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from mathturn_gym.base.files import storage_errors
from mathturn_gym.base.render import render_episode
from mathturn_gym.errors import InvalidValueError, MissingDependencyError, install_extra

if TYPE_CHECKING:
    from mathturn_gym.types import Episode

_LOG: Final = logging.getLogger(__name__)
_WAITING: Final = 256  # calls; some minutes of the quickest runs
_CLOSING_S: Final = 30.0  # what a finished run waits for a tracker that does not answer
_SHOWN: Final = 4  # episodes of an iteration: they are for reading


class Tracker(Protocol):
    """What a run tells as it goes."""

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """Takes one iteration's metrics."""

    def show(self, name: str, episodes: Sequence[Episode], iteration: int) -> None:
        """Takes episodes to read; `name` is "validation" or "train"."""

    def close(self) -> None:
        """Ends the run's entry."""


class TensorBoard:
    """Event files in the run's folder; what was written after `iteration` is dropped.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self, folder: Path, iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = folder
        with storage_errors(folder):
            self._events: Any = SummaryWriter(str(folder), purge_step=iteration + 1)

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """Writes scalars."""
        with storage_errors(self._folder):
            for name, value in metrics.items():
                self._events.add_scalar(name, value, iteration)
            self._events.flush()

    def show(self, name: str, episodes: Sequence[Episode], iteration: int) -> None:
        """Writes the first episode."""
        # Four spaces make it code in Markdown, whatever it says.
        lines = render_episode(episodes[0], color=False).splitlines()
        with storage_errors(self._folder):
            self._events.add_text(f"episodes/{name}", "\n".join(f"    {line}" for line in lines), iteration)

    def close(self) -> None:
        """Closes the event file."""
        self._events.close()


class _Wandb:
    def __init__(self, wandb: Any, project: str, path: Path, config: dict[str, Any]) -> None:
        self._wandb = wandb
        self._run = wandb.init(project=project, name=path.name, dir=str(path), config=config)

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        self._run.log(dict(metrics), step=iteration)

    def show(self, name: str, episodes: Sequence[Episode], iteration: int) -> None:
        rows = [
            [iteration, one.problem_id, at, message["role"], message["content"], one.solved]
            for one in episodes
            for at, message in enumerate(_messages(one))
        ]
        columns = ["iteration", "problem", "message", "role", "text", "solved"]
        self._run.log({f"episodes/{name}": self._wandb.Table(columns=columns, data=rows)}, step=iteration)

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, trackio: Any, project: str, path: Path, config: dict[str, Any]) -> None:
        self._trackio = trackio
        self._run = trackio.init(project=project, name=path.name, config=config, embed=False)

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        self._run.log(dict(metrics), step=iteration)

    def show(self, name: str, episodes: Sequence[Episode], iteration: int) -> None:
        traces = [
            self._trackio.Trace(
                messages=_messages(one),
                metadata={"problem": one.problem_id, "solved": one.solved, "reward": float(one.rewards.sum())},
            )
            for one in episodes
        ]
        self._run.log({f"episodes/{name}": traces}, step=iteration)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    def __init__(self, mlflow: Any, experiment: str, path: Path, config: dict[str, Any]) -> None:
        # The client names its run in every call; `mlflow.log_metric` would write into whatever run a thread has open.
        self._client = mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        begun = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        self._run = self._client.create_run(begun, run_name=path.name).info.run_id
        self._client.log_dict(self._run, config, "config.json")

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        for name, value in metrics.items():
            # MLflow's names of metrics have no "@".
            self._client.log_metric(self._run, name.replace("@", "_at_"), value, step=iteration)

    def show(self, name: str, episodes: Sequence[Episode], iteration: int) -> None:
        text = "\n\n".join(render_episode(one, color=False) for one in episodes)
        self._client.log_text(self._run, text, f"episodes/{name}/{iteration:06d}.txt")

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: Final[Mapping[str, Callable[[Any, str, Path, dict[str, Any]], Tracker]]] = {
    "wandb": _Wandb,
    "trackio": _Trackio,
    "mlflow": _Mlflow,
}
"""Each tracker by its name, which is its module's and its extra's too."""


def check_tracker(text: object) -> tuple[str, str]:
    """Splits "NAME:PROJECT".

    Raises:
        InvalidValueError: it is something else, or no tracker has that name.

    >>> check_tracker("trackio:sums")
    ('trackio', 'sums')
    """
    name, _, project = text.partition(":") if isinstance(text, str) else ("", "", "")
    # A name, never an address: a run folder that somebody sent must not say where one's metrics go.
    if name not in TRACKERS or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", project) is None:
        raise InvalidValueError(
            f'tracker must be "NAME:PROJECT" with a name of {", ".join(TRACKERS)}'
            f' (tracker="trackio:sums"), or None, got {text!r}'
        )
    return name, project


def open_tracker(text: str, path: Path, config: dict[str, Any]) -> Tracker:
    """Begins an entry for a run in a tracker.

    Args:
        text: "NAME:PROJECT".
        path: The run's folder, whose name the entry takes.
        config: The run's config.

    Raises:
        MissingDependencyError: the tracker's package is not installed.
    """
    name, project = check_tracker(text)
    try:
        module: ModuleType = import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"tracker={text!r} needs {name}: {install_extra(name)}") from error
    # What is wrong with the key or the server is raised here, before the run begins.
    return _Queued(name, TRACKERS[name](module, project, path, config))


class _Queued:
    """A tracker whose calls are made by a thread, in their order; those that find the queue full are dropped."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(_WAITING)
        self._dropped = self._failed = 0
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        kept = dict(metrics)
        self._put(lambda: self._tracker.log(kept, iteration))

    def show(self, name: str, episodes: Sequence[Episode], iteration: int) -> None:
        kept = list(episodes[:_SHOWN])
        self._put(lambda: self._tracker.show(name, kept, iteration))

    def close(self) -> None:
        try:
            self._calls.put(None, timeout=_CLOSING_S)
            self._thread.join(_CLOSING_S)
        except queue.Full:
            _LOG.warning("%s did not take what is left of the run within %.0f s", self._name, _CLOSING_S)
        if self._dropped:
            _LOG.warning("%s fell behind: %d of its calls were dropped", self._name, self._dropped)

    def _put(self, call: Callable[[], None]) -> None:
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._try(call)
        self._try(self._tracker.close)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever it is, the run is worth more than its entry
            self._failed += 1
            if self._failed == 1:  # a server that is down says so at each call
                _LOG.warning("%s: %s: %s (the run goes on; said once)", self._name, type(error).__name__, error)


def _messages(episode: Episode) -> list[dict[str, str]]:
    """Returns an episode as chat messages: the question, then answers and feedback in turn."""
    found = [{"role": "user", "content": episode.prompt}]
    for response, feedback in zip(episode.responses, episode.feedbacks, strict=False):
        found.append({"role": "assistant", "content": response})
        found += [{"role": "user", "content": feedback}] * bool(feedback)
    return found
