-- note_act: note an act that is no statement of its own, before it is done.
--
--   $1 who acts: by what, and the name  $2 the act  $3 queue, or NULL  $4 what on, or NULL  $5 details (JSON text), or NULL
INSERT INTO tenure.audit (via, actor, act, queue, subject, details)
VALUES (($1::text[])[1], ($1::text[])[2], $2, $3, $4, $5::text::jsonb)
