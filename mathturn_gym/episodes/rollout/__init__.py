"""Environment and policy to episodes.

    EpisodePlan (what episode i is) ─► EpisodeRecorder (episode i as it is played) ─► Episode

`collect` plays the episodes of a plan in a vector environment. Episode i depends on (seed, i) alone: its problem and
every sampled id, whatever the number of environments, the scheduler, and the order in which episodes end. What a policy
declares as its `scheduler` decides how it is asked:

    "batched"     all running episodes go one turn further at once: one `complete` and one environment step per turn
    "streaming"   an episode goes on as soon as its own completion is there (`submit`, `advance`)
    "async"       every episode is a task that awaits its own completion (`acomplete`)

`acollect` is the form of `collect` for programs that run in asyncio themselves.
"""

from mathturn_gym.episodes.rollout._collect import acollect, check_tokenizer, collect
from mathturn_gym.episodes.rollout._recorder import AsyncPolicy, EpisodePlan, EpisodeRecorder

__all__ = ["AsyncPolicy", "EpisodePlan", "EpisodeRecorder", "acollect", "check_tokenizer", "collect"]
