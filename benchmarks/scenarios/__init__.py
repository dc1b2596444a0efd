"""One module a scenario: what is done, what is measured, what is real."""
