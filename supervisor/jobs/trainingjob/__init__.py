"""The kind TrainingJob of et-operator, which runs unmodified."""
