-- complete_skip: a transaction of one handler may hold its row for long, and must not hold up the
-- completions of all others. Its own is tried again: settled_as.sql says that nothing has happened yet.
       FOR UPDATE OF j SKIP LOCKED
