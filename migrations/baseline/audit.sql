-- Audit: who has done what to how many jobs, a row an act, written by the statement that acts.

-- An act that changes nothing has no row. What tenure does by itself (a retry, a recovery, a tick of a schedule) is no
-- act. The roles of postgres/roles.sql that act add rows, and can neither change nor delete any.
CREATE TABLE tenure.audit (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- later acts have higher ones
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when the act was written, by the database's clock
    -- The login role and the address of the connection. Its program cannot choose them.
    role     text        NOT NULL DEFAULT session_user,
    address  text        DEFAULT host(inet_client_addr()),  -- NULL: a Unix socket
    -- By what: 'command line', 'dashboard', 'api', 'library', 'sql', or a word of the program's own.
    via      text        NOT NULL,
    actor    text,                                          -- who, as the program says; NULL: it does not
    act      text        NOT NULL,                          -- such as cancel, redrive, pause_queue
    queue    text,                                          -- NULL: jobs of several queues, or of none
    subject  text,                                          -- the job, if it is one; the lane, schedule or redrive
    jobs     bigint,                                        -- how many jobs it changed; NULL: it is no act on jobs
    details  jsonb,                                         -- of this sort of act; NULL: none
    -- Long enough for each note of tenure's own; a program's texts are a stranger's.
    CONSTRAINT notes_are_short CHECK (length(via) <= 200 AND length(actor) <= 200 AND length(act) <= 64
                                      AND length(subject) <= 1000)
);
-- list_audit.sql: the acts since a time. purge_audit: the oldest.
CREATE INDEX audit_by_at ON tenure.audit (at);
-- list_audit.sql: the acts on one job, lane, schedule or redrive.
CREATE INDEX audit_by_subject ON tenure.audit (subject) WHERE subject IS NOT NULL;
