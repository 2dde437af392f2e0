-- What the fleet does in common: publishing what is due, looking for vanished workers, scanning.

-- One row a turn. The worker that it names does that work until then; after that, whichever worker asks first. A turn
-- only spares statements: everything done under it may be done by two workers at once.
CREATE TABLE tenure.turns (
    turn      text        PRIMARY KEY,
    worker_id text,
    until     timestamptz NOT NULL
) WITH (fillfactor = 10);                                   -- written once a second, for ever: in place
INSERT INTO tenure.turns (turn, until) VALUES
    ('relay', statement_timestamp()), ('vanished', statement_timestamp()), ('scan', statement_timestamp());
