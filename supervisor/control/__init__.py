"""The control loop: reads facts, stores decisions and executes their actions."""
