"""Starts training processes without the start of Python and its libraries. `kubeai-python` stands in place of `python`.

A *template* is a process that has imported what the script imports, and nothing more. The next worker is a fork of it.
`python` is the command, `template` the process, `worker` what a fork becomes, and `prepare` makes a template for
workers that are still to come. Nothing here needs torch.
"""
