CREATE TABLE host_stays (
  job TEXT NOT NULL,
  begins FLOAT NOT NULL,
  host TEXT NOT NULL,
  writer TEXT NOT NULL,
  ends FLOAT,
  gone BOOLEAN NOT NULL,
  noticed FLOAT,
  deadline FLOAT,
  cloud TEXT,
  zone TEXT,
  instance_type TEXT,
  price_class TEXT,
  PRIMARY KEY (job, begins, host, writer)
) WITHOUT ROWID;
CREATE INDEX host_stays_by_end ON host_stays (ends);
CREATE TABLE record_entries (
  id INTEGER NOT NULL,
  at FLOAT NOT NULL,
  subject TEXT NOT NULL,
  what TEXT NOT NULL,
  text TEXT NOT NULL,
  run BIGINT NOT NULL,
  source TEXT NOT NULL,
  drill BOOLEAN NOT NULL,
  PRIMARY KEY (id)
);
CREATE INDEX record_entries_by_source ON record_entries (source, at, id) WHERE source != '';
CREATE INDEX record_entries_by_time ON record_entries (at, id);
CREATE TABLE record_version (
  version INTEGER NOT NULL,
  PRIMARY KEY (version)
);
CREATE TABLE wanted_spans (
  job TEXT NOT NULL,
  begins FLOAT NOT NULL,
  writer TEXT NOT NULL,
  ends FLOAT NOT NULL,
  least INTEGER NOT NULL,
  most INTEGER NOT NULL,
  in_process BOOLEAN NOT NULL,
  restarts INTEGER NOT NULL,
  step_seconds FLOAT,
  checkpoint_seconds FLOAT,
  start_seconds FLOAT,
  PRIMARY KEY (job, begins, writer)
) WITHOUT ROWID;
CREATE INDEX wanted_spans_by_time ON wanted_spans (begins);
CREATE TABLE record_concerned (
  subject TEXT NOT NULL,
  at FLOAT NOT NULL,
  entry INTEGER NOT NULL,
  PRIMARY KEY (subject, at, entry),
  FOREIGN KEY(entry) REFERENCES record_entries (id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX record_concerned_by_entry ON record_concerned (entry);
CREATE TABLE ledger_days (
  begins FLOAT NOT NULL,
  job TEXT NOT NULL,
  account TEXT NOT NULL,
  worker_seconds FLOAT NOT NULL,
  PRIMARY KEY (begins, job, account)
) WITHOUT ROWID;
CREATE TABLE ledger_hours (
  begins FLOAT NOT NULL,
  job TEXT NOT NULL,
  writer TEXT NOT NULL,
  account TEXT NOT NULL,
  worker_seconds FLOAT NOT NULL,
  PRIMARY KEY (begins, job, writer, account)
) WITHOUT ROWID;
CREATE TABLE ledger_hours_of_all (
  begins FLOAT NOT NULL,
  account TEXT NOT NULL,
  worker_seconds FLOAT NOT NULL,
  PRIMARY KEY (begins, account)
) WITHOUT ROWID;
CREATE TABLE ledger_summed (
  begins FLOAT NOT NULL,
  PRIMARY KEY (begins)
);
CREATE TABLE machine_days (
  begins FLOAT NOT NULL,
  job TEXT NOT NULL,
  cloud TEXT NOT NULL,
  zone TEXT NOT NULL,
  instance_type TEXT NOT NULL,
  price_class TEXT NOT NULL,
  gpus FLOAT NOT NULL,
  worker_seconds FLOAT NOT NULL,
  PRIMARY KEY (begins, job, cloud, zone, instance_type, price_class, gpus)
) WITHOUT ROWID;
CREATE TABLE machine_hours (
  begins FLOAT NOT NULL,
  job TEXT NOT NULL,
  writer TEXT NOT NULL,
  cloud TEXT NOT NULL,
  zone TEXT NOT NULL,
  instance_type TEXT NOT NULL,
  price_class TEXT NOT NULL,
  gpus FLOAT NOT NULL,
  worker_seconds FLOAT NOT NULL,
  PRIMARY KEY (begins, job, writer, cloud, zone, instance_type, price_class, gpus)
) WITHOUT ROWID;
CREATE TABLE pool_days (
  begins FLOAT NOT NULL,
  job TEXT NOT NULL,
  account TEXT NOT NULL,
  cloud TEXT NOT NULL,
  zone TEXT NOT NULL,
  instance_type TEXT NOT NULL,
  price_class TEXT NOT NULL,
  worker_seconds FLOAT NOT NULL,
  PRIMARY KEY (begins, job, account, cloud, zone, instance_type, price_class)
) WITHOUT ROWID;
CREATE TABLE pool_hours (
  begins FLOAT NOT NULL,
  job TEXT NOT NULL,
  writer TEXT NOT NULL,
  account TEXT NOT NULL,
  cloud TEXT NOT NULL,
  zone TEXT NOT NULL,
  instance_type TEXT NOT NULL,
  price_class TEXT NOT NULL,
  worker_seconds FLOAT NOT NULL,
  PRIMARY KEY (begins, job, writer, account, cloud, zone, instance_type, price_class)
) WITHOUT ROWID;
