"""What of the chart is made of other files: `python -m charts` writes it, a test compares."""
