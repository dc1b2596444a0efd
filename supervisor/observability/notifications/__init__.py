"""Notifications: messages to webhooks and Slack about decisions and trouble. Nothing waits for them."""
