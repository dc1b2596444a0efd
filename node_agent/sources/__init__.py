"""Holds the sources of announcements. Each implements `node_agent.notices.NoticeSource`."""
