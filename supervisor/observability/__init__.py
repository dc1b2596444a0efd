"""Shows people and monitoring what the supervisor does: status, page, metrics, notifications and Events."""
