"""Identities, typed so that one cannot be taken for another."""

from typing import NewType

Host = NewType("Host", str)
"""One entry of a launcher's host list; stand-alone it is the node name of the host's agent."""

JobName = NewType("JobName", str)
Source = NewType("Source", str)

NoticeId = NewType("NoticeId", str)
"""`source/subject uid`: repeated polls, restarts and repeated Events meet in the same notice."""
