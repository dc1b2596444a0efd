"""Where facts and decisions are kept: one interface, SQLite stand-alone."""
