"""Writes the generated parts of the chart: `python -m charts`."""

from charts.files import written

if __name__ == "__main__":
    for path, text in written().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
