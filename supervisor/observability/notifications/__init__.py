"""Sends notifications to webhooks and Slack about decisions and problems. Nothing waits for them."""
