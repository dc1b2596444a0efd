"""The agent stream, version 1: generated from `reclaim.proto` by `make proto`, never edited by hand."""
