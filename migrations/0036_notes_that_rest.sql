-- Lets the end of a job rest whose followers Postgres refuses to write: the notes behind it go on.
ALTER TABLE tenure.group_ends
    ADD COLUMN rests_until timestamptz;                     -- no look takes the note before; NULL: it has not rested
