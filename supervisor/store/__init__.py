"""Where facts and decisions are kept: one interface; SQLite stand-alone, custom resources on a cluster."""
