-- note_function: notes which text of a function was applied.
--
--   $1 name   $2 checksum of its file
INSERT INTO tenure.functions AS f (name, checksum) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_at = clock_timestamp()
