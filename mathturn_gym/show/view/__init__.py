"""`mathturn view`: a run as one HTML file in which one can read its dialogues and look at every token.

    run folders, files of episodes, other trainers' logs ─► sets of ViewEpisodes and curves ─► view.html
    episodes ─► figures with intervals, charts ─► report.html

The file holds everything it shows and asks the network for nothing; what a model wrote is shown in it, never run.
"""

from mathturn_gym.show.evaluation import write_report
from mathturn_gym.show.view._server import Follower, ViewServer
from mathturn_gym.show.view._write import write_view

__all__ = ["Follower", "ViewServer", "write_report", "write_view"]
