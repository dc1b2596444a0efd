"""The sources of announcements, each a module: `node_agent.notices.NoticeSource` is their interface."""
