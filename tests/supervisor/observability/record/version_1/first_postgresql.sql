CREATE TABLE record_entries (
  id BIGSERIAL NOT NULL,
  at FLOAT(53) NOT NULL,
  subject TEXT NOT NULL,
  what TEXT NOT NULL,
  text TEXT NOT NULL,
  run BIGINT NOT NULL,
  source TEXT NOT NULL,
  drill BOOLEAN NOT NULL,
  PRIMARY KEY (id)
);
CREATE INDEX record_entries_by_time ON record_entries (at, id);
CREATE TABLE record_version (
  version INTEGER NOT NULL,
  PRIMARY KEY (version)
);
CREATE TABLE record_concerned (
  subject TEXT NOT NULL,
  entry BIGINT NOT NULL,
  PRIMARY KEY (subject, entry),
  FOREIGN KEY(entry) REFERENCES record_entries (id) ON DELETE CASCADE
);
CREATE INDEX record_concerned_by_entry ON record_concerned (entry);
